"""How bounds and partitions in manifests tell the keys of an erasure."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import GeometryType, LongType, NestedField, StringType, StructType

from stores.table_metadata import OpaqueType
from worker.erasure.columns import FormerColumns, TableColumns, _described
from worker.erasure.key_texts import is_escaped
from worker.erasure.keys import ErasedKeys, partition_fields
from worker.erasure.metadata_files import scalars
from worker.erasure.orphan_files import _json_of
from worker.keys.key_set import KeyColumn, KeySet
from worker.table.manifest_values import ManifestEntryBounds

NONE = FormerColumns()
_NAMES = {1: {"who"}, 2: {"c2"}}


def erased(
    *keys: Sequence[str], names: Mapping[int, set[str]] | None = None, former: FormerColumns = NONE
) -> ErasedKeys:
    columns = [KeyColumn(at, f"c{at}", (at,), StringType(), pa.string()) for at, _ in enumerate(keys[0], 1)]
    key_set = KeySet(tuple(columns))
    arrays = [
        pa.array([0] * len(keys), pa.int32()),
        *(pa.array(values) for values in zip(*keys, strict=True)),
    ]
    called = {field_id: frozenset(of_one) for field_id, of_one in (names or {}).items()}
    return ErasedKeys(key_set, pa.RecordBatch.from_arrays(arrays, schema=key_set.schema), called, former)


def entry(
    bounds: Mapping[int, tuple[str, str]],
    *,
    is_removed: bool = False,
    partition: str = "[]",
    path: str = "file",
) -> ManifestEntryBounds:
    told = {field_id: (low.encode(), high.encode()) for field_id, (low, high) in bounds.items()}
    return ManifestEntryBounds((path,), is_removed, told, partition)


def test_bounds_of_a_live_file_are_no_key_of_several_columns() -> None:
    """A file with (a, us) and (c, eu) has the bounds of (c, us), which no row has."""
    keys = erased(("c", "us"))
    bounds = {1: ("a", "c"), 2: ("eu", "us")}
    assert not keys.in_entry(entry(bounds), UNPARTITIONED_PARTITION_SPEC)
    assert keys.in_entry(entry(bounds, is_removed=True), UNPARTITIONED_PARTITION_SPEC) == {0}
    fields = [PartitionField(at, 1000 + at, IdentityTransform(), f"p{at}") for at in (1, 2)]
    assert keys.in_entry(entry({}, partition='["c", "us"]'), PartitionSpec(*fields)) == {0}


@pytest.mark.parametrize(
    ("lower", "upper", "told"),
    [
        ("person-0", "z", {0}),
        ("a", "person-1", {0}),
        ("a", "perso\ue000", {1}),
        ("a", "person-000002", set()),
        ("a", "person-000001", {0}),
    ],
)
def test_bounds_of_a_removed_file_may_be_cut_off(lower: str, upper: str, told: set[int]) -> None:
    keys = erased(("person-000001",), ("perso\ud7ff-1",))
    assert keys.in_entry(entry({1: (lower, upper)}, is_removed=True), UNPARTITIONED_PARTITION_SPEC) == told


@pytest.mark.parametrize(
    ("value", "is_removed", "told"),
    [("ab", False, {0}), ("abcd", False, set()), ("abcd", True, {1}), ("abc", True, set())],
)
def test_a_partition_that_was_not_cut_is_the_value(value: str, is_removed: bool, told: set[int]) -> None:
    """The rows of a live file are looked at; of one that was removed, a text as long as the cut may be it."""
    keys = erased(("ab",), ("abcd",), ("abcdef",))
    spec = PartitionSpec(
        PartitionField(1, 1000, TruncateTransform(4), "short"),
        PartitionField(1, 1001, BucketTransform(4), "b"),
    )
    assert keys.in_entry(entry({}, is_removed=is_removed, partition=f'["{value}", 3]'), spec) == told


def test_a_path_tells_a_key_of_which_it_names_each_value() -> None:
    keys = erased(("ada/eve", "us"), ("ada/eve", "eu"), names=_NAMES)
    assert keys.in_path("s3://b/t/data/who=ada%2Feve/c2=us/1.parquet") == {0}
    assert keys.in_path("s3://b/t/data/who=ada%2Feve/1.parquet") == set()
    assert keys.in_path("s3://b/t/data/other=ada%2Feve/c2=us/1.parquet") == set()
    path = "who=ada%2Feve/c2=eu/1.parquet"
    assert keys.in_entry(entry({}, path=path), UNPARTITIONED_PARTITION_SPEC) == {1}
    assert keys.in_texts(["partitions.who=ada%2Feve/c2=eu"]) == {1}


@pytest.mark.parametrize(
    ("folder", "told"),
    [("Ada+Eve", {0}), ("Ada Eve", {0}), ("Ada%20Eve", {0}), ("a%2Bb", {1}), ("a+b", {1}), ("Ada", set())],
)
def test_folders_of_partitions_are_told_as_iceberg_and_as_hive_name_them(folder: str, told: set[int]) -> None:
    for keys in (erased(("Ada Eve",), ("a+b",)), erased(("Ada Eve", "x"), ("a+b", "x"), names=_NAMES)):
        assert keys.in_path(f"s3://b/t/who={folder}/c2=x/1.parquet") == told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("first customer was ada.love.", {0}),
        ("owner:ada.love", {0}),
        ("hold_<xada.love>_2026", {0}),
        ("kept for Ada Lovelace, and others", {1}),
        ("by Ada+Lovelace", {1}),
        (r"by Ada\u0020Lovelace", {1}),
        ("for eve", {2}),
        ("hold_eve_2026", {2}),
        ("whenever", set()),
        ("2026-4711", {3}),
        ("total 47110", set()),
        ("f00d-4711f00d", set()),
    ],
)
def test_a_text_tells_a_key_that_stands_in_it(text: str, told: set[int]) -> None:
    """A short one, or one of digits, only by itself: counts and UUIDs have many."""
    keys = erased(("ada.love",), ("Ada Lovelace",), ("eve",), ("4711",))
    assert keys.in_texts([text]) == told


def test_numbers_in_values_are_keys_with_and_without_a_sign() -> None:
    column = KeyColumn(1, "c1", (1,), LongType(), pa.int64())
    arrays = [pa.array([0, 0, 0], pa.int32()), pa.array([5, -5, 10**18])]
    key_set = KeySet((column,))
    keys = ErasedKeys(key_set, pa.RecordBatch.from_arrays(arrays, schema=key_set.schema))
    assert keys.in_scalars(["10-5"]) == frozenset({0, 1})
    assert keys.in_scalars(["05", 10**18]) == frozenset({0, 2})
    documents = _json_of('["1.0E18", -50e-1, 1e999999999999999999999]')
    assert keys.in_scalars(scalars(documents)) == frozenset({0, 1, 2})


@pytest.mark.parametrize("name", ["No.", ".x", "a..b"])
def test_a_name_may_have_dots_anywhere(name: str) -> None:
    schema = Schema(NestedField(1, name, StringType()))
    columns = TableColumns((dict(_described(schema)),))
    assert columns.has_schema(schema)


def test_a_file_with_a_variant_or_a_geometry_is_one_of_the_tables() -> None:
    kinds = {2: OpaqueType("variant"), 3: OpaqueType("geometry(srid:3857)"), 4: GeometryType()}
    in_struct = StructType(NestedField(6, "x", StringType()))
    schema = Schema(*(NestedField(i, f"c{i}", kind) for i, kind in {**kinds, 5: in_struct}.items()))
    columns = TableColumns((dict(_described(schema)),))

    def column(field_id: int, kind: pa.DataType) -> pa.Field:
        return pa.field(f"c{field_id}", kind, metadata={"PARQUET:field_id": str(field_id)})

    parts = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
    assert columns.has_written(pa.schema([column(2, parts), column(3, pa.binary()), column(4, pa.binary())]))
    for other in (column(2, pa.binary()), column(3, parts), column(5, parts)):
        assert not columns.has_written(pa.schema([other]))


def test_fields_of_partitions_are_told_by_their_ids_or_else_by_any_name_that_they_had() -> None:
    specs = [PartitionSpec(PartitionField(1, 1000, IdentityTransform(), name)) for name in ("a b", "c")]

    def told(name: str, field_id: int | None) -> list[str]:
        metadata = None if field_id is None else {"PARQUET:field_id": str(field_id)}
        field = pa.field(name, pa.string(), metadata=metadata)
        return [field.name for _, field in partition_fields(pa.struct([field]), specs)]

    assert told("x", 1000) == ["a b", "c"]
    assert told("a_x20b", None) == ["a b"]
    for name, field_id in (("x", None), ("c", 1001)):
        with pytest.raises(ValueError, match="no partition spec"):
            told(name, field_id)


def test_a_last_column_id_of_any_size_takes_no_time() -> None:
    """Of columns that no schema knows any more, no key is compared with the values."""
    schema = Schema(NestedField(1, "c1", StringType()), NestedField(2, "c2", StringType()))
    metadata = new_table_metadata(schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "file:/t")
    key_set = erased(("a",)).key_set
    assert not FormerColumns.of(metadata, key_set)
    former = FormerColumns.of(metadata.model_copy(update={"last_column_id": 2**62}), key_set)
    assert former
    assert former.has_any_of([1, 3])
    assert not former.has_any_of([1, 2, -1, 2**62 + 1])


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("ab/cd", r"seen: {\"id\": \"ab\/cd\"}"),
        ('O"Neil', r'{"name": "O\"Neil"}'),
        (r"corp\ada", r'{"name": "corp\\ada"}'),
        ('O"Neil', '1,"O""Neil",x'),
        ("O'Neil", "VALUES ('O''Neil')"),
        ("Ada & Eve", "<name>Ada &amp; Eve</name>"),
        ("Jürgen", "<name>J&#252;rgen</name>"),
        ("Jürgen", "Name: J=C3=BCrgen"),
        ("Ada Lovelace", "Ada Love=\nlace"),
    ],
)
def test_a_text_tells_a_key_that_is_escaped_in_it(key: str, text: str) -> None:
    keys = erased((key,))
    assert keys.in_texts([text]) == {0}
    assert keys.in_plain(text) == frozenset({0})


def test_a_long_text_takes_little_memory() -> None:
    """A property of a table may be as long as its metadata."""
    keys, text = erased(("Ada Lovelace",)), " ".join(map(str, range(50_000)))
    tracemalloc.start()
    try:
        assert not keys.in_texts([text])
        assert tracemalloc.get_traced_memory()[1] < len(text)
    finally:
        tracemalloc.stop()


def test_text_that_may_stand_for_other_characters_is_told() -> None:
    assert all(is_escaped(text) for text in (r"\x41", "%2541", "&amp;#65;"))
    assert not any(is_escaped(text) for text in ("a=1", "100%", "R&D", 'say ""hi""'))
