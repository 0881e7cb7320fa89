"""Files as a streaming writer such as Flink leaves them: rows, equality deletes, and deletes by position
where a checkpoint has written a row twice. Nothing is committed here.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from py4j.java_gateway import JavaObject
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from worker.deletes.puffin import PuffinWriter, bitmap_of
from worker.io.storage import Storage
from worker.spark.jvm import jvm_of

Description = dict[str, Any]
"""Of a file that is written, as Iceberg's `ContentFileParser` takes it."""
_POSITION_DELETES = Schema(
    NestedField(2147483546, "file_path", StringType(), required=True),
    NestedField(2147483545, "pos", LongType(), required=True),
)


class StreamedFiles:
    """Writes files of one table, by its schema, spec and format version of when this was made."""

    def __init__(self, table: JavaObject, key: Sequence[str], storage: Storage | None = None) -> None:
        """table: an `org.apache.iceberg.Table`. key: columns of integers or text, by which rows are deleted.
        storage: of the table's files; the local disk by default.
        """
        self._table, self._key, self._storage = table, tuple(key), storage or Storage()
        self._iceberg = jvm_of(table).org.apache.iceberg
        self._schema = Schema.model_validate_json(self._iceberg.SchemaParser.toJson(table.schema()))

    def data_file(self, rows: pa.Table, partition: Sequence[str] = ()) -> Description:
        """rows: with all columns. partition: values of the spec's fields."""
        return self._write(rows, self._schema, partition, self._bounds(rows)) | {"content": "data"}

    def equality_deletes(self, keys: pa.Table, partition: Sequence[str] = ()) -> Description:
        """keys: with the columns of the key."""
        ids = [self._schema.find_field(name).field_id for name in self._key]
        written = self._write(keys, self._schema.select(*self._key), partition, self._bounds(keys))
        return written | {"content": "equality-deletes", "equality-ids": ids}

    def vectors(
        self, positions: Sequence[tuple[Description, npt.NDArray[np.int64]]]
    ) -> Iterator[Description]:
        """One Puffin file with a deletion vector for each of the data files (format V3)."""
        if not positions:
            return
        path = self._new_path("puffin")
        with self._storage.open_output(path) as sink:
            puffin = PuffinWriter(sink)
            written = [puffin.write(file["file-path"], bitmap_of(deleted)) for file, deleted in positions]
            size = puffin.finish()
        for (data_file, _), vector in zip(positions, written, strict=True):
            yield {
                "spec-id": data_file["spec-id"],
                "content": "position-deletes",
                "file-path": path,
                "file-format": "puffin",
                "partition": data_file["partition"],
                "file-size-in-bytes": size,
                "record-count": vector.cardinality,
                "referenced-data-file": vector.referenced_data_file,
                "content-offset": vector.content_offset,
                "content-size-in-bytes": vector.content_size_bytes,
            }

    def position_deletes(
        self, positions: Sequence[tuple[Description, npt.NDArray[np.int64]]]
    ) -> Iterator[Description]:
        """A position delete file for each of the data files (format V2)."""
        for data_file, deleted in positions:
            path = data_file["file-path"]
            rows = pa.table({"file_path": [path] * len(deleted), "pos": np.sort(deleted)})
            bound = {"keys": [_POSITION_DELETES.fields[0].field_id], "values": [path.encode().hex()]}
            written = self._write(rows, _POSITION_DELETES, data_file["partition"], (bound, bound))
            yield written | {"content": "position-deletes", "referenced-data-file": path}

    def content_file(self, description: Description) -> JavaObject:
        """An `org.apache.iceberg.ContentFile`, for a commit."""
        node = self._iceberg.util.JsonUtil.mapper().readTree(json.dumps(description))
        return self._iceberg.ContentFileParser.fromJson(node, self._table.specs())

    def _write(
        self,
        rows: pa.Table,
        schema: Schema,
        partition: Sequence[str],
        bounds: tuple[dict[str, Any], dict[str, Any]],
    ) -> Description:
        """A Parquet file with field ids."""
        path = self._new_path("parquet")
        arrow = schema_to_pyarrow(schema)
        with self._storage.open_output(path) as sink:
            pq.write_table(rows.select(arrow.names).cast(arrow), sink, compression="zstd", store_schema=False)
            size = sink.tell()
        return {
            "spec-id": self._table.spec().specId(),
            "file-path": path,
            "file-format": "parquet",
            "partition": list(partition),
            "file-size-in-bytes": size,
            "record-count": rows.num_rows,
            "lower-bounds": bounds[0],
            "upper-bounds": bounds[1],
        }

    def _bounds(self, rows: pa.Table) -> tuple[dict[str, Any], dict[str, Any]]:
        """The least and the greatest value of each column of the key, by field id, as Iceberg writes them."""
        ids = [self._schema.find_field(name).field_id for name in self._key]
        found = [pc.min_max(rows.column(name)).as_py() for name in self._key]
        lower, upper = ([_bound(one[end]) for one in found] for end in ("min", "max"))
        return {"keys": ids, "values": lower}, {"keys": ids, "values": upper}

    def _new_path(self, extension: str) -> str:
        return f"{self._table.location().rstrip('/')}/data/{uuid4()}.{extension}"


def _bound(value: int | str) -> str:
    content = value.encode() if isinstance(value, str) else value.to_bytes(8, "little", signed=True)
    return content.hex()
