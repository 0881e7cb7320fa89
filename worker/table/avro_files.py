"""Metadata files in Avro: only the columns that are asked for are decoded, and damage is told as such."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import fastavro
import polars as pl
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema

from stores.avro_readers import SCHEMA, kept_by_schema, read_entries, read_schema, reader_of
from stores.manifest_files import readable_manifest
from stores.table_metadata import ENCRYPTED, ENCRYPTED_REMEDY
from worker.process.errors import JobError
from worker.table.avro_columns import Entries, NotInColumnsError, entries_of

_FACTOR = 10  # by which a metadata file is larger in memory while it is read


class UnsupportedTableError(JobError):
    """The table's metadata holds something that can't be read here. A retry can't help."""

    code = "unsupported_table"
    title = "The table can't be planned"
    remedy = "Convert it with another tool."


class EncryptedTableError(UnsupportedTableError):
    """Manifests and their lists are encrypted, so that nobody without the keys knows the table's files."""

    code = "encrypted_table"
    title = "The table is encrypted"
    remedy = ENCRYPTED_REMEDY


class CorruptMetadataError(UnsupportedTableError):
    """A manifest or manifest list is damaged. Nothing may be concluded from what is left of it."""

    code = "metadata_damaged"
    title = "A metadata file of the table is damaged"
    remedy = "Restore that file, or roll the table back to a snapshot before it; nothing was changed."


@kept_by_schema
def _written_schema(header: str) -> tuple[Schema, dict[str, Entries | None], dict[str | None, Any]]:
    """And what is known by it of how entries lie, and what reads them."""
    return read_schema(header), {}, {}


class AvroFile:
    """A metadata file, of which only some columns are decoded.

    The blocks are told apart by fastavro: PyIceberg takes one that was cut off for the end of the file.
    written: all of it, as the store has it. Raises CorruptMetadataError, FileNotFoundError, or OSError (a
    retry can help).
    """

    def __init__(self, io: FileIO, location: str) -> None:
        self._location = location
        with self.told_as_corrupt():
            with io.new_input(location).open() as source:
                self.written = content = source.read()
            if content.startswith(ENCRYPTED):
                raise EncryptedTableError(f"{location} is encrypted")
            content = readable_manifest(content)
            self.held_bytes = _FACTOR * len(content)
            self._content = content
            self._unread: Any = fastavro.block_reader(BytesIO(content))
            self.properties: Mapping[str, str] = self._unread.metadata
            self.schema, self._entries, self._readers = _written_schema(self.properties[SCHEMA])

    def columns(self, name: str, wanted: Schema) -> Iterator[pl.DataFrame]:
        """Those of `wanted`, some entries at a time, called as `entries_of` says.

        name: of such columns of such files. Raises NotInColumnsError where it is for `rows` to read them, and
        what polars raises: whoever asks tells what is corrupt.
        """
        if name not in self._entries:
            self._entries[name] = entries_of(self.schema, wanted)
        entries = self._entries[name]
        if entries is None:
            raise NotInColumnsError
        return entries.read(self._blocks())

    def rows(self, wanted: Schema, name: str | None = None) -> Iterator[Any]:
        """Tuples of the columns of `wanted`.

        name: of such columns of such files, whose reader is kept: of few entries, it takes longer to make.
        """
        with self.told_as_corrupt():
            reader = self._readers.get(name)
            if reader is None:
                reader = reader_of(self.schema, wanted)
            if name is not None:
                self._readers[name] = reader
            for count, content in self._blocks():
                yield from read_entries(reader, count, content)

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """How many entries each has, and these."""
        blocks: Any = self._unread or fastavro.block_reader(BytesIO(self._content))
        self._unread = None
        for block in blocks:
            yield block.num_records, block.bytes_.read()

    @contextmanager
    def told_as_corrupt(self) -> Iterator[None]:
        """Damaged bytes make decoders, and who works with the values, raise errors of many kinds; OSError is
        the store's."""
        try:
            yield
        except (UnsupportedTableError, OSError, MemoryError):
            raise
        except ValidationError as error:
            raise UnsupportedTableError(f"{self._location}: {error}.") from error
        except Exception as error:
            raise CorruptMetadataError(
                f"{self._location} is damaged: {type(error).__name__}: {error}"
            ) from error
