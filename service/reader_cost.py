"""What a read of a table costs: a model that `make bench-readers` fits to Spark and DuckDB.

Pure. Seconds are processor time of a warm reader of format version 3 whose files lie on a local disk, on the
machine that the model names. Elsewhere seconds differ, and ratios say more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

MODEL = Path(__file__).with_name("reader_cost.json")
TARGET_FILE_BYTES = 512 * 1024 * 1024
"""Of a table that does not say how large its data files should be, as Iceberg has it."""
SMALL_SHARE = 0.75
"""Of that size: data files below it are small, as Iceberg's planner has it."""


class Reader(StrEnum):
    SPARK = "spark"
    DUCKDB = "duckdb"


class Read(StrEnum):
    """A `full` read goes through all columns of all rows, a `point` read looks for one key."""

    FULL = "full"
    POINT = "point"


HEADLINE = (Reader.SPARK, Read.FULL)
"""By this read, tables are compared."""


@dataclass(frozen=True)
class Shape:
    """What a reader has to do with: of the head of a branch."""

    data_files: int
    rows: int
    equality_delete_files: int = 0
    equality_deletes: int = 0
    vectors: int = 0
    """Deletion vectors, each of a data file; a position delete file of format version 2 counts as one."""
    positions: int = 0
    """Rows that these delete."""
    data_bytes: int = 0
    """0 if the writer does not tell."""
    delete_bytes: int = 0
    key_columns: int = 0
    """Of the keys of equality deletes, the most that one has; 0 where nobody tells, as of the past."""

    @property
    def delete_files(self) -> int:
        """What a full read joins with the data files."""
        return self.equality_delete_files + self.vectors

    def as_json(self) -> dict[str, int]:
        return dict(vars(self))

    def fresh(self, partitions: int | None, target_file_bytes: int) -> Shape:
        """The table as if it had just been rewritten: no deletes, and as many files as its bytes ask for.

        partitions: None where nobody knows how many there are. Each may have one file that is not full, so no
        file is promised to go that may have to stay; none at all where partitions or bytes are not known.
        """
        files, rows = self.data_files, max(self.rows - self.positions, 0)
        size = self.data_bytes * rows // self.rows if self.rows else self.data_bytes
        if partitions is not None and self.data_bytes:
            full = max(math.ceil(size / target_file_bytes), 1)
            files = min(files, full + max(partitions, 1) - 1)
        return Shape(files, rows, data_bytes=size)


_DICTIONARY_ROWS = 131_072
"""Of a file, as many keys of 8 bytes as Parquet keeps in a dictionary: Spark reads it for a point read."""
_ROW_BYTES = 14
"""Of the middle one of the tables that the model is fitted to: so many a row is taken to have where a writer
does not tell."""
TERMS: Mapping[str, Callable[[Shape], float]] = {
    "read": lambda _: 1.0,
    "read, if there are deletes": lambda s: float(s.delete_files > 0),
    "data file": lambda s: s.data_files,
    "row": lambda s: s.rows,
    "byte of data": lambda s: s.data_bytes or _ROW_BYTES * s.rows,
    "row, if there are equality deletes": lambda s: s.rows * (s.equality_delete_files > 0),
    "row and equality delete": lambda s: float(s.rows) * s.equality_deletes,
    "row, equality delete and further key column": lambda s: (
        float(s.rows) * s.equality_deletes * max(s.key_columns - 1, 0)
    ),
    "data file and equality delete file": lambda s: s.data_files * s.equality_delete_files,
    "vector": lambda s: s.vectors,
    "row of a data file with a vector": lambda s: s.rows * min(s.vectors / max(s.data_files, 1), 1.0),
    "row in a dictionary": lambda s: min(s.rows, _DICTIONARY_ROWS * s.data_files),
}
"""What each coefficient is multiplied by. Data files with a vector are taken to be as large as others."""

Coefficients = dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]]
"""Seconds of processor time for one of each term; one that is left out could not be measured."""


def seconds_of(coefficients: Mapping[str, float], shape: Shape) -> float:
    """Of processor time."""
    return sum(each * TERMS[name](shape) for name, each in coefficients.items())


class ModelError(ValueError):
    """The file of the model is not one."""


class CostModel(BaseModel):
    """The coefficients of each read of each reader, and what they were measured with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    measured_on: date
    machine: Annotated[str, Field(min_length=1)]
    """The processor, its cores, memory and disk, and the versions of all that took part."""
    coefficients: dict[Reader, dict[Read, Coefficients]]

    @model_validator(mode="after")
    def _check_as_a_whole(self) -> Self:
        for reader in Reader:
            for read in Read:
                found = self.coefficients.get(reader, {}).get(read, {})
                if unknown := found.keys() - TERMS.keys():
                    raise ValueError(f"{reader}, {read}: no such terms: {', '.join(sorted(unknown))}")
                costs = [seconds_of(found, Shape(files, rows)) for files, rows in ((0, 0), (1, 0), (1, 1))]
                if not costs[0] < costs[1] < costs[2]:
                    raise ValueError(f"{reader}, {read}: what a row or a data file costs is missing")
        return self

    def seconds(self, shape: Shape, reader: Reader, read: Read) -> float:
        """Of processor time."""
        return self._seconds(shape, reader, read)

    @cached_property
    def _seconds(self) -> Callable[[Shape, Reader, Read], float]:
        # A look asks for most several times, and the next look for many of them again.
        return lru_cache(maxsize=10_000)(
            lambda shape, reader, read: seconds_of(self.coefficients[reader][read], shape)
        )


def small_files(files: int, data_bytes: int, target_file_bytes: int) -> int:
    """So many data files of so many bytes in all are small: those beyond what these would fill."""
    return max(files - data_bytes // target_file_bytes, 0)


def read_model(text: str) -> CostModel:
    """Raises ModelError."""
    try:
        return CostModel.model_validate_json(text)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ModelError(f"The model of what reads cost is not valid: {wrong}") from error


@lru_cache(maxsize=1)
def model() -> CostModel:
    """The model that comes with the service. Raises ModelError."""
    return read_model(MODEL.read_text())


def shape_of(stored: Mapping[str, Any]) -> Shape:
    """What `Shape.as_json` has written."""
    return Shape(**stored)
