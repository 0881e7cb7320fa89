"""Files of sorted runs: Parquet in the layout of Paimon's thin mode, written by Arrow."""

import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from worker.index import checksums
from worker.index.checksums import FooterSink
from worker.io.sorting import is_bytes
from worker.io.storage import Storage

ROW_GROUP_ROWS = 8_192
DECODED_BYTES = "icestream.decoded-bytes"  # in memory; encoded sizes say little about keys with long prefixes
BUCKET = "bucket-0"
SYSTEM_COLUMNS = ("_SEQUENCE_NUMBER", "_VALUE_KIND")
TOP_LEVEL = 9  # of the LSM tree; with Paimon's default of 5, large indexes are rewritten more often


@dataclass(frozen=True, slots=True)
class RunFile:
    """One Parquet file of a sorted run. Keys are the first and last primary key, in column order."""

    location: str
    file_name: str
    size_bytes: int
    rows: int
    min_key: tuple[Any, ...]
    max_key: tuple[Any, ...]
    lower_bounds: tuple[Any, ...]  # the smallest value of each key column by itself; None: unknown
    upper_bounds: tuple[Any, ...]
    level: int = 0


class RunWriter:
    """Writes one file of a run from tables that follow each other in primary-key order.

    Nothing is visible until `commit_files`. Any call may raise OSError (a retry can help).
    """

    def __init__(
        self, storage: Storage, table_location: str, primary_key: Sequence[str], level: int = 0
    ) -> None:
        """primary_key: the leading columns of the tables."""
        self._file_name = f"data-{uuid.uuid4()}-0.parquet"
        self._location = f"{table_location}/{BUCKET}/{self._file_name}"
        self._storage = storage
        self._primary_key = primary_key
        self._level = level
        self._sink: FooterSink | None = None
        self._writer: pq.ParquetWriter | None = None
        self._rows = self._decoded_bytes = 0
        self._min_key: tuple[Any, ...] = ()
        self._max_key: tuple[Any, ...] = ()
        self._bounds: list[tuple[Any, Any]] = []

    def write(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        physical = _with_system_columns(rows)
        if self._writer is None:
            self._sink = FooterSink(self._storage.open_output(self._location))
            self._writer = pq.ParquetWriter(
                pa.PythonFile(self._sink, mode="w"),
                physical.schema,
                compression="zstd",
                use_dictionary=False,
                column_encoding=_encodings(physical.schema),
                write_page_index=False,
                # Neither zstd nor an encoding notices a flipped bit: it would be another row's address.
                write_page_checksum=True,
            )
        self._writer.write_table(physical, row_group_size=ROW_GROUP_ROWS)
        keys = [rows[name] for name in self._primary_key]
        bounds = [pc.min_max(column).as_py() for column in keys]
        known = self._bounds or [(bound["min"], bound["max"]) for bound in bounds]
        self._bounds = [
            (min(low, bound["min"]), max(high, bound["max"]))
            for (low, high), bound in zip(known, bounds, strict=True)
        ]
        self._min_key = self._min_key or tuple(column[0].as_py() for column in keys)
        self._max_key = tuple(column[-1].as_py() for column in keys)
        self._rows += rows.num_rows
        self._decoded_bytes += rows.nbytes

    def close(self) -> list[RunFile]:
        """The file; none if there were no rows."""
        if self._writer is None or self._sink is None:
            return []
        self._writer.add_key_value_metadata(
            {DECODED_BYTES: str(self._decoded_bytes), checksums.NAME: checksums.BLANK}
        )
        self._sink.footer_follows()
        self._writer.close()
        size_bytes = self._sink.close()
        return [
            RunFile(
                self._location,
                self._file_name,
                size_bytes,
                self._rows,
                self._min_key,
                self._max_key,
                tuple(low for low, _ in self._bounds),
                tuple(high for _, high in self._bounds),
                self._level,
            )
        ]


def write_run(
    storage: Storage, table_location: str, rows: pa.Table, *, primary_key: Sequence[str]
) -> list[RunFile]:
    """Writes rows, sorted by `primary_key` (their leading columns), as a run of one file; none if empty."""
    writer = RunWriter(storage, table_location, primary_key)
    writer.write(rows)
    return writer.close()


def _with_system_columns(rows: pa.Table) -> pa.Table:
    """Thin-mode layout: sequence number and kind (INSERT) before the table's own columns."""
    zeros = np.zeros(rows.num_rows, np.int64)
    system = dict(zip(SYSTEM_COLUMNS, (pa.array(zeros), pa.array(zeros.astype(np.int8))), strict=True))
    fields = [pa.field(name, array.type, nullable=False) for name, array in system.items()]
    return pa.Table.from_arrays([*system.values(), *rows.columns], schema=pa.schema([*fields, *rows.schema]))


def _encodings(schema: pa.Schema) -> dict[str, str]:
    """Delta encodings: sorted keys and dense addresses shrink to a few bits a value, and decode fast."""
    encodings = {}
    for field in schema:
        if pa.types.is_integer(field.type):
            encodings[field.name] = "DELTA_BINARY_PACKED"
        elif is_bytes(field.type):
            encodings[field.name] = "DELTA_BYTE_ARRAY"
    return encodings


def runs_of(files: Sequence[RunFile]) -> list[list[RunFile]]:
    """Each run's files, the smallest run first: level-0 files are a run each, a level above is one run."""
    by_run: dict[Any, list[RunFile]] = defaultdict(list)
    for file in files:
        by_run[file.level or file.file_name].append(file)
    return sorted(by_run.values(), key=lambda run: sum(file.rows for file in run))
