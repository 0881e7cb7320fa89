"""The keys of an erasure, and how whatever may hold them tells them: rows, bounds, partitions, texts."""

from __future__ import annotations

import json
import re
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus

import numpy as np
import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import make_compatible_name
from pyiceberg.transforms import DayTransform, IdentityTransform, TruncateTransform, VoidTransform
from pyiceberg.types import DateType, IntegerType, LongType

from worker.erasure.columns import FormerColumns
from worker.erasure.key_texts import SHORT, KeyTexts, spellings, whole_numbers
from worker.erasure.trace import NOTHING
from worker.io.file_formats import field_id_of
from worker.keys.key_set import KeyColumn, KeySet
from worker.keys.key_types import from_single_value, to_key_type, to_key_value, to_words
from worker.lookup.index_lookup import ANY_AGE, DeleteKeys
from worker.process.errors import JobError
from worker.table.manifest_values import ManifestEntryBounds, PartitionSummaries

IN_EVERY_PARTITION = -2  # which no key is of: it is looked for in all of them
_IN_PLACES = re.compile(r"([^/=\s]+)=([^/=\s]+)")
_IN_FOLDERS = re.compile(r"([^/=]+)=([^/=]+)")  # as Hive and Spark name them: spaces and + are themselves
_BEFORE_SURROGATES, _AFTER_SURROGATES = 0xD7FF, 0xE000  # no text has what is between
_NUMBERS = re.compile(r"(?<![^\W_])[+-]?\d+(?![^\W_])")
_PARTITION_COUNTS = "partitions."  # snapshot properties that name a partition
_NO_NAMES: Mapping[int, frozenset[str]] = {}
_NONE = FormerColumns()


class UnreadableValueError(JobError):
    code = "unreadable_value"
    title = "A value in a metadata file can't be read"
    remedy = "Restore the file, or rewrite the table's manifests (rewrite_manifests), and erase again."


class ErasedKeys:
    """batch: distinct keys, as `KeySet.schema`. number_of: of each key that was sent, which of these it is.

    What finds keys finds their numbers among the distinct ones.
    """

    def __init__(
        self,
        key_set: KeySet,
        sent: pa.RecordBatch,
        names: Mapping[int, frozenset[str]] = _NO_NAMES,
        former: FormerColumns = _NONE,
    ) -> None:
        """names: what places call each key column, see `columns.names_of`. former: columns of which no key is
        compared with the values."""
        self.key_set = key_set
        self.former = former
        self._names = names
        last = np.sort(DeleteKeys.numbered(sent).sequence_numbers - ANY_AGE)
        self.batch = sent.take(pa.array(last))
        rows, numbers = self.wanted.find(sent, IN_EVERY_PARTITION)
        self.number_of = np.empty(sent.num_rows, np.int64)
        self.number_of[rows] = numbers - ANY_AGE

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @cached_property
    def wanted(self) -> DeleteKeys:
        """For tasks: the numbers of matches are above ANY_AGE."""
        return DeleteKeys.numbered(self.batch)

    def in_entry(self, entry: ManifestEntryBounds, spec: PartitionSpec) -> frozenset[int]:
        """The keys that an entry of a manifest tells: each of their values is a bound, the partition's, or in
        a path.

        Bounds of several columns of a live file are no key: they may be of different rows, and its rows are
        looked at. The bounds of a file that was removed may be cut off.
        """
        has_bounds = entry.is_removed or len(self.key_set.columns) == 1
        partition = list(zip(spec.fields, json.loads(entry.partition), strict=True))

        def told(at: int, column: KeyColumn) -> frozenset[int]:
            found: frozenset[int] = frozenset()
            if has_bounds:
                lower, upper = _from_bounds(entry.bounds.get(column.field_id, (None, None)), column)
                found = self._having(at, lower) | self._having(at, upper)
                if entry.is_removed:
                    found |= self._cut_to(at, lower) | self._cut_to(at, _before(upper))
            for field, written in partition:
                if field.source_id == column.field_id and _keeps_type(field, column):
                    value = _from_partition(written, column)
                    if _is_whole(field, value, may_be_cut=entry.is_removed):
                        found |= self._values[at].get(value, frozenset())
            return found.union(*(self._in_path(at, path) for path in entry.paths))

        return self._in_all_columns(told)

    def is_former_in(self, entry: ManifestEntryBounds, spec: PartitionSpec) -> bool:
        """Whether an entry of a manifest tells values of a column that was called like one of the key."""
        return self.former.has_any_of(entry.bounds) or self.is_former_of(spec.fields)

    def is_former_of(self, fields: Iterable[PartitionField]) -> bool:
        return self.former.has_any_of(
            field.source_id for field in fields if not isinstance(field.transform, VoidTransform)
        )

    def in_list(self, told: PartitionSummaries, spec: PartitionSpec, *, is_named: bool) -> frozenset[int]:
        """The keys that a manifest list tells, by the bounds of partitions in a manifest and by its place.

        is_named: by a snapshot, so that its manifests are looked at, too. Bounds of several columns are no
        key then, as they are none of a live file.
        """
        bounds = list(zip(spec.fields, told.bounds, strict=False))

        def of_column(at: int, column: KeyColumn) -> frozenset[int]:
            found = self._in_path(at, told.manifest_path)
            for field, both in bounds:
                if field.source_id != column.field_id or (is_named and len(self.key_set.columns) > 1):
                    continue
                for bound in both if _keeps_type(field, column) else ():
                    value = None if bound is None else _from_bound(bound, column)
                    if value is not None and _is_whole(field, value, may_be_cut=not is_named):
                        found |= self._having(at, value)
            return found

        return self._in_all_columns(of_column)

    def in_any_bound(self, told: PartitionSummaries) -> frozenset[int]:
        """The keys of which each value may be a bound of some field, whichever that is."""
        bounds = [bound for both in told.bounds for bound in both if bound is not None]

        def of_column(at: int, column: KeyColumn) -> frozenset[int]:
            found = NOTHING
            for bound in bounds:
                with suppress(UnreadableValueError):
                    value = _from_bound(bound, column)
                    found |= self._having(at, value) | self._cut_to(at, value)
            return found

        return self._in_all_columns(of_column)

    def in_partitions(
        self, partitions: pa.StructArray, fields: Iterable[tuple[int, PartitionField]]
    ) -> frozenset[int]:
        """The keys that partitions tell: structs that have the fields of all specs. fields: see
        `partition_fields`.

        Null may stand for a field that a partition has not, and tells the null keys.
        """
        told: list[frozenset[int]] | None = None
        for at, column in enumerate(self.key_set.columns):
            here = [frozenset[int]()] * len(partitions)
            for place, field in fields:
                if field.source_id == column.field_id and _keeps_type(field, column):
                    values = to_key_type(partitions.field(place), column).to_pylist()
                    of_field = (self._values[at].get(value, frozenset()) for value in values)
                    here = [one | other for one, other in zip(here, of_field, strict=True)]
            told = here if told is None else [one & other for one, other in zip(told, here, strict=True)]
        return frozenset[int]().union(*(told or ()))

    def in_path(self, path: str) -> frozenset[int]:
        """The keys that a place names: each of their values is that of a partition, as Hive writes it."""
        return self._in_all_columns(lambda at, _: self._in_path(at, path))

    def _in_path(self, at: int, path: str) -> frozenset[int]:
        if "=" not in path:
            return NOTHING
        found: set[int] = set()
        names = self._names.get(self.key_set.columns[at].field_id, ())
        for name, value in {*_IN_PLACES.findall(path), *_IN_FOLDERS.findall(path)}:
            for decoded in (unquote_plus, unquote):
                if self._is_text or decoded(name).removeprefix(_PARTITION_COUNTS) in names:
                    found |= self._by_words[at].get(decoded(value), NOTHING)
        return frozenset(found)

    def _in_all_columns(self, told: Callable[[int, KeyColumn], frozenset[int]]) -> frozenset[int]:
        """The keys of which each value is told."""
        found: frozenset[int] | None = None
        for at, column in enumerate(self.key_set.columns):
            here = told(at, column)
            found = here if found is None else found & here
            if not found:
                break
        return found or frozenset()

    def in_texts(self, texts: Iterable[str]) -> frozenset[int]:
        """The keys that texts of the table's metadata tell: they are one, or name a partition of it."""
        found: set[int] = set()
        for text in texts:
            found |= self.in_path(text)
            if self._is_text:
                found |= self._texts_told.told_in(text)
        return frozenset(found)

    @cached_property
    def _texts_told(self) -> KeyTexts:
        return KeyTexts(self._words)

    def in_default(self, field_id: int, value: Any) -> frozenset[int]:
        """The keys of one column that a default of some column is, in JSON as the schema has it."""
        if self._is_text:
            return self.in_texts([str(value)])
        if self.key_set.equality_field_ids != (field_id,) or value is None:
            return frozenset()
        return self._values[0].get(from_single_value(value, self.key_set.columns[0]), frozenset())

    def redacted(self, text: str) -> str:
        """Without texts that are a value of a key, and without values in what names places of partitions."""
        return self._without_texts(_IN_PLACES.sub(lambda part: self._without_value(*part.groups()), text))

    def redacted_name(self, name: str) -> str:
        """The same of a file, a branch or a tag, which has no numbers that count: also without those."""

        def told(number: re.Match[str]) -> str:
            return "..." if number[0].lstrip("+-") in self._numerals else number[0]

        return _NUMBERS.sub(told, self.redacted(name))

    def _without_value(self, name: str, value: str) -> str:
        return f"{name}=..." if unquote_plus(value) in self._values_as_words else f"{name}={value}"

    def _without_texts(self, text: str) -> str:
        """Whatever the number of keys: only their lengths count."""
        told, at = [], 0
        while at < len(text):
            size = next((size for size in self._text_sizes if self._is_told(text, at, at + size)), 0)
            told.append("..." if size else text[at])
            at += size or 1
        return "".join(told)

    def _is_told(self, text: str, start: int, end: int) -> bool:
        if end > len(text) or text[start:end] not in self._texts:
            return False
        around = text[start - 1 : start] + text[end : end + 1] if start else text[end : end + 1]
        return end - start >= SHORT or not any(character.isalnum() for character in around)

    @cached_property
    def _texts(self) -> set[str]:
        """Values of keys that are no numbers, as people and as paths write them."""
        found = {
            word
            for column, values in zip(self.key_set.columns, self._values, strict=True)
            for value in values
            if value is not None and isinstance(word := to_words(value, column), str) and word
        }
        return found | {written(word) for word in found for written in (quote, quote_plus)}

    @cached_property
    def _text_sizes(self) -> list[int]:
        """The longest first."""
        return sorted({len(word) for word in self._texts}, reverse=True)

    @cached_property
    def _numerals(self) -> set[str]:
        return {word.lstrip("-") for word in self._values_as_words if word.lstrip("-").isdecimal()}

    @cached_property
    def _values_as_words(self) -> set[str]:
        return {
            str(to_words(value, column))
            for column, values in zip(self.key_set.columns, self._values, strict=True)
            for value in values
            if value is not None
        }

    def in_bytes(self, content: bytes) -> frozenset[int] | None:
        """The keys whose text stands in a file of unknown form; None where keys have no text."""
        if not self._is_text:
            return None
        return frozenset(
            number for word, numbers in self._words.items() if word.encode() in content for number in numbers
        )

    def in_plain(self, text: str) -> frozenset[int] | None:
        """The same of a text, and of what it stands for in URLs and JSON."""
        if not self._is_text:
            return None
        found = (self.in_bytes(one.encode(errors="surrogatepass")) for one in spellings(text))
        return NOTHING.union(*(told or () for told in found))

    def in_scalars(self, scalars: Iterable[Any]) -> frozenset[int] | None:
        """The keys that values of JSON tell; None where keys are written in too many ways to know."""
        if self._is_text:
            return self.in_plain("\n".join(map(str, scalars)))
        if len(self.key_set.columns) > 1 or not pa.types.is_integer(self.key_set.columns[0].key_type):
            return None
        if not isinstance(self.key_set.columns[0].iceberg_type, IntegerType | LongType):
            return None  # dates and times are numbers in keys alone
        numbers = {
            str(signed) for number in whole_numbers(map(str, scalars)) for signed in (number, abs(number))
        }
        return frozenset(number for one in numbers for number in self._words.get(one, ()))

    @property
    def _is_text(self) -> bool:
        return len(self.key_set.columns) == 1 and pa.types.is_string(self.key_set.columns[0].key_type)

    @cached_property
    def _words(self) -> Mapping[str, set[int]]:
        """Of keys of one column."""
        if len(self.key_set.columns) > 1:
            return {}
        (column,) = self.key_set.columns
        found = {
            str(to_words(value, column)): set(numbers)
            for value, numbers in self._values[0].items()
            if value is not None
        }
        found.pop("", None)
        return found

    @cached_property
    def _by_words(self) -> list[Mapping[str, frozenset[int]]]:
        """Of each key column: which keys have a value that is written so."""
        return [
            {
                word.lower() if pa.types.is_boolean(column.key_type) else word: numbers
                for value, numbers in values.items()
                if value is not None and (word := str(to_words(value, column)))
            }
            for column, values in zip(self.key_set.columns, self._values, strict=True)
        ]

    @cached_property
    def _columns(self) -> list[list[Any]]:
        rows = list(zip(*(column.to_pylist() for column in self.batch.columns), strict=True))
        return [
            [None if self.key_set.is_null(at, row) else row[1 + at] for row in rows]
            for at in range(len(self.key_set.columns))
        ]

    @cached_property
    def _values(self) -> list[Mapping[Any, frozenset[int]]]:
        """Of each key column: which keys have a value."""
        return [_numbers_by(values) for values in self._columns]

    def _having(self, at: int, bound: Any) -> frozenset[int]:
        return frozenset() if bound is None else self._values[at].get(bound, frozenset())

    def _cut_to(self, at: int, bound: Any) -> frozenset[int]:
        """The keys of which a value goes on after a bound."""
        if not isinstance(bound, str | bytes) or not bound:
            return frozenset()
        return self._prefixes(at, len(bound)).get(bound, frozenset())

    @lru_cache(maxsize=64)  # noqa: B019 - lives as long as a job
    def _prefixes(self, at: int, size: int) -> Mapping[Any, frozenset[int]]:
        """Of values that are longer."""
        return _numbers_by(
            value[:size] if value is not None and len(value) > size else None for value in self._columns[at]
        )


def partition_fields(
    partition: pa.StructType, specs: Iterable[PartitionSpec]
) -> list[tuple[int, PartitionField]]:
    """Place in a struct of partitions -> what that is in each spec, which may call it something else.

    Raises ValueError for one that no spec has.
    """
    known = [field for spec in specs for field in spec.fields]
    found = []
    for place, told in enumerate(partition):
        field_id = field_id_of(told)
        of_place = [
            (place, field)
            for field in known
            if field.field_id == field_id
            or (field_id is None and told.name in (field.name, make_compatible_name(field.name)))
        ]
        if not of_place:
            raise ValueError(f"no partition spec has {told.name!r}")
        found += of_place
    return found


def _keeps_type(field: PartitionField, column: KeyColumn) -> bool:
    """Whether values of a partition may be those of the column."""
    if isinstance(field.transform, DayTransform):
        return isinstance(column.iceberg_type, DateType)
    return isinstance(field.transform, IdentityTransform | TruncateTransform)


def _is_whole(field: PartitionField, value: Any, *, may_be_cut: bool) -> bool:
    """Whether a partition's value is the column's in all of its rows, or may be in some.

    Only a text that is shorter than what it would be cut to was not cut for sure.
    """
    if isinstance(field.transform, TruncateTransform) and value is not None and not may_be_cut:
        return isinstance(value, str | bytes) and len(value) < field.transform.width
    return True


def _before(bound: Any) -> Any:
    """What an upper bound was cut to, before its last character was made greater; None for other types."""
    if not isinstance(bound, str | bytes) or not bound or not (last := ord(bound[-1:])):
        return None
    if isinstance(bound, bytes):
        return bound[:-1] + bytes([last - 1])
    return bound[:-1] + chr(last - 1 if last != _AFTER_SURROGATES else _BEFORE_SURROGATES)


def _numbers_by(values: Iterable[Any]) -> Mapping[Any, frozenset[int]]:
    found: dict[Any, set[int]] = defaultdict(set)
    for number, value in enumerate(values):
        found[value].add(number)
    return {value: frozenset(numbers) for value, numbers in found.items()}


def _from_bounds(bounds: Iterable[bytes | None], column: KeyColumn) -> Iterator[Any]:
    return (None if bound is None else _from_bound(bound, column) for bound in bounds)


def _from_bound(bound: bytes, column: KeyColumn) -> Any:
    with _readable(column):
        return to_key_value(from_bytes(column.iceberg_type, bound), column)


def _from_partition(written: Any, column: KeyColumn) -> Any:
    with _readable(column):
        return from_single_value(written, column)


@contextmanager
def _readable(column: KeyColumn) -> Iterator[None]:
    """Damaged values raise errors of many kinds."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, struct.error) as error:
        raise UnreadableValueError(f"a value of {column.name} can't be read: {error}") from error
