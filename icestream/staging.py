"""Rows of which a request does not hold as many: staged as Parquet files, until their job has ended.

Whoever calls names the place and has the credentials; the service reads it with those of the table's catalog.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

FILES_AT_MOST: Final = 1_000
"""Of one write."""


class SparkFrame(Protocol):
    """A frame of PySpark, without which the client does."""

    def coalesce(self, partitions: int, /) -> Any: ...
    @property
    def write(self) -> Any: ...


@dataclass
class Source:
    """What a request says of its rows. in_use: a job may read the files that it names, now or later."""

    body: dict[str, Any]
    in_use: bool = False


@dataclass(frozen=True)
class Staging:
    """A folder of one write. location: as the service knows it; path: on the file system."""

    location: str
    filesystem: pafs.FileSystem
    path: str

    @classmethod
    def under(cls, staging: str, filesystem: Any = None) -> Staging:
        """A new one. filesystem: of pyarrow or fsspec; without it, what pyarrow finds for the location.

        Raises ValueError for a location that is not absolute or names no file system that pyarrow knows.
        """
        scheme, _, rest = staging.rstrip("/").rpartition("://")
        if not scheme and not staging.startswith("/"):
            raise ValueError(f"{staging!r} is no absolute place for files")
        if filesystem is None:
            known = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}.get(scheme, scheme)
            filesystem, path = pafs.FileSystem.from_uri(f"{known}://{rest}" if scheme else staging)
        else:
            path = rest
            if not isinstance(filesystem, pafs.FileSystem):
                filesystem = pafs.PyFileSystem(pafs.FSSpecHandler(filesystem))
        name = f"icestream-{uuid4()}"
        return cls(f"{staging.rstrip('/')}/{name}", filesystem, f"{path.rstrip('/')}/{name}")

    @contextmanager
    def holding(self, write: Callable[[], list[str]]) -> Iterator[Source]:
        """The files that `write` makes; they go at the end, unless a job may still read them."""
        source = Source({})
        try:
            source.body["files"] = write()
            yield source
        except BaseException as error:
            if source.in_use:
                error.add_note(f"The job may still read {self.location}: remove that when it has ended.")
            else:
                self._remove()
            raise
        self._remove()

    def write(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> list[str]:
        """Where the file with the rows is."""
        if not self.location.partition("://")[1] or self.location.startswith("file:"):
            self.filesystem.create_dir(self.path, recursive=True)
        stored = pa.schema([field.with_type(_in_parquet(field.type)) for field in schema])
        with (
            self.filesystem.open_output_stream(f"{self.path}/rows.parquet") as sink,
            pq.ParquetWriter(sink, stored) as writer,
        ):
            for batch in batches:
                writer.write_table(pa.Table.from_batches([batch], schema).cast(stored))
        return [f"{self.location}/rows.parquet"]

    def write_spark(self, frame: SparkFrame) -> list[str]:
        """Where the files are that Spark's tasks have written."""
        is_local = self.location.startswith("/")
        place = f"file://{self.location}" if is_local else self.location
        frame.coalesce(FILES_AT_MOST).write.parquet(place)
        found = self.filesystem.get_file_info(pafs.FileSelector(self.path))
        names = sorted(one.base_name for one in found if one.base_name.endswith(".parquet"))
        return [f"{self.location}/{name}" for name in names]

    def _remove(self) -> None:
        try:
            self.filesystem.delete_dir(self.path)
        except FileNotFoundError:
            pass  # nothing was written
        except OSError as error:
            warnings.warn(f"{self.location} could not be removed: {error}", stacklevel=2)


def _in_parquet(kind: pa.DataType) -> pa.DataType:
    """Arrow writes no views."""
    test = pa.types
    if test.is_struct(kind):
        return pa.struct([field.with_type(_in_parquet(field.type)) for field in kind])
    if test.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_in_parquet(kind.value_type)))
    if test.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_parquet(kind.value_type)))
    return {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(kind, kind)
