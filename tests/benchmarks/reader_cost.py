"""Fits the model of service/reader_cost.py, of what reads of tables cost Spark and DuckDB, to tables that
were drawn at random. How right it is about each of them, a model says that is fitted to all others: about
whole reads, and about what deletes and small files add to those of the same rows in a table just written.

`make bench-readers` measures (reader_tables.py), keeps what it measured beside this file, and writes the
model and two sections of docs/benchmarks.md from that; with `ARGS=--fit`, from what was kept before.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from service.reader_cost import MODEL, TERMS, Coefficients, CostModel, Read, Reader, Shape, seconds_of
from tests.benchmarks.page import Part, write_part
from tests.benchmarks.reader_tables import (
    COLUMNS,
    DRAWINGS,
    DUCKDB_SECONDS,
    MEASUREMENTS,
    MOST_DELETE_FILES,
    MOST_FILES,
    READS,
    REGIONS,
    ROUNDS,
    Kind,
    Measured,
    Measurements,
    kept,
    measured_now,
)
from tests.benchmarks.report import table

_COMPARED = ("row and equality delete", "row, equality delete and further key column")
ONLY_IN = {
    "row in a dictionary": [(Reader.SPARK, Read.POINT)],
    **{term: [(Reader.DUCKDB, read) for read in Read] for term in _COMPARED},
}
"""Terms of some kinds of reads: in others, they would stand for something else. DuckDB compares each row with
each delete; Spark puts these into a set, and 20,000 take it little longer than 400."""
NOTICED, MUCH = 1.1, 1.5
"""Times what a read of the fresh table takes: below the first is what rounds of a read differ by."""
Floats = npt.NDArray[np.float64]


def fit(kind: Kind, measured: Sequence[Measured]) -> Coefficients:
    """Coefficients with the least squares of relative errors; a term that would be below 0 is left out."""
    names = [name for name in TERMS if kind in ONLY_IN.get(name, [kind])]
    reads = [read for one in measured for read in _reads(kind, one)]
    terms: Floats = np.array([[TERMS[name](shape) / seconds for name in names] for shape, seconds in reads])
    norms = np.sqrt((terms**2).sum(axis=0))
    names = [name for name, norm in zip(names, norms, strict=True) if norm]
    terms, norms = terms[:, norms > 0] / norms[norms > 0], norms[norms > 0]
    while True:
        found = np.linalg.lstsq(terms, np.ones(len(reads)))[0]
        at = int(found.argmin())
        if found[at] >= 0:
            return {name: float(one) for name, one in zip(names, found / norms, strict=True) if one > 0}
        terms, norms = np.delete(terms, at, axis=1), np.delete(norms, at)
        del names[at]


def _reads(kind: Kind, one: Measured) -> list[tuple[Shape, float]]:
    """Of a table and of the fresh one, with their seconds."""
    if kind not in one.seconds:
        return []
    return [(one.shape, one.seconds[kind]), (one.fresh, one.fresh_seconds[kind])]


Fits = dict[Kind, Coefficients]


def fits(measured: Sequence[Measured]) -> Fits:
    return {kind: fit(kind, measured) for kind in READS}


def model_of(measurements: Measurements) -> CostModel:
    """The model with the coefficients of each kind of read."""
    found = fits(measurements.tables)
    return CostModel.model_validate(
        {
            "measured_on": measurements.measured_on,
            "machine": measurements.machine,
            "coefficients": {reader: {read: found[reader, read] for read in Read} for reader in Reader},
        }
    )


LeftOut = tuple[Measured, Fits]
"""A table, and what was fitted to all others."""


def left_out(tables: Sequence[Measured]) -> list[LeftOut]:
    return [(one, fits([*tables[:at], *tables[at + 1 :]])) for at, one in enumerate(tables)]


def factors(kind: Kind, tables: Iterable[LeftOut]) -> list[float]:
    """By how much each model is off for reads of its table and of the fresh one: 1 is right, 2 twice or half
    of what was measured."""
    ratios = [
        seconds_of(found[kind], shape) / seconds
        for one, found in tables
        for shape, seconds in _reads(kind, one)
    ]
    return [max(ratio, 1 / ratio) for ratio in ratios]


@dataclass(frozen=True)
class Compared:
    """A read of a table: how many times what one of the fresh table takes."""

    measured: float
    told: float
    """By the model."""

    @property
    def off_by(self) -> float:
        """By which factor the model is off about what is beyond 1: the overhead."""
        ratio = (self.told - 1) / (self.measured - 1)
        return max(ratio, 1 / ratio) if ratio > 0 else math.inf


def compared(kind: Kind, tables: Iterable[LeftOut], least: float) -> list[Compared]:
    """least: tables whose reads take fewer times what those of fresh ones do are left out."""
    found = [_compared(kind, one, found) for one, found in tables if kind in one.seconds]
    return [one for one in found if one.measured > least]


def _compared(kind: Kind, one: Measured, found: Fits) -> Compared:
    return Compared(
        one.seconds[kind] / one.fresh_seconds[kind],
        seconds_of(found[kind], one.shape) / seconds_of(found[kind], one.fresh),
    )


def cost_report(model: CostModel, measurements: Measurements) -> str:
    """In Markdown, its first line the title."""
    accuracy, tables = [], left_out(measurements.tables)
    for kind, name in READS.items():
        off = factors(kind, tables)
        accuracy.append((name, _within(off, 2), f"{statistics.median(off):.2f}", f"{max(off):.2f}"))
    coefficients = {kind: model.coefficients[kind[0]][kind[1]] for kind in READS}
    least, most = min(each.least_rows for each in DRAWINGS), max(each.most_rows for each in DRAWINGS)
    most_deletes = max(each.most_deletes for each in DRAWINGS)
    terms = [
        (term, *(_milliseconds(each.get(term, 0.0)) for each in coefficients.values()))
        for term in TERMS
        if any(term in each for each in coefficients.values())
    ]
    return "\n\n".join(
        [
            "# What a read costs",
            f"`make bench-readers` on {measurements.machine}",
            f"A model of the processor time that a read takes, fitted to {len(tables)} tables of random"
            f" sizes: 1 to {MOST_FILES} data files, {least:,} to {most:,} rows, 3 to"
            f" {len(COLUMNS)} columns, up to {MOST_DELETE_FILES} equality delete files, most of them of some"
            f" ten deletes and others of up to {most_deletes:,}, and deletes by position in up to"
            f" {MOST_FILES} data files. A half has {len(REGIONS)} partitions, and then keys of two columns; a"
            " third is of format version 2, with a position delete file for each data file with deletes, the"
            " others have deletion vectors. Beside each lies one just written with the rows that are left,"
            " and both are read in turn. A full read aggregates all columns, a point read looks for one key;"
            " keys lie in random order, files on the local disk, the reader is warm. The least of"
            f" {ROUNDS} rounds counts. By how much a model that is fitted to all other tables is off about"
            " each of them and the one just written: 1.00 is right, 2.00 twice or half of what was measured.",
            f"The machine did other things meanwhile: its load was {measurements.load:.1f} on"
            f" {os.cpu_count()} cores, the median over tables. Hence processor time and not the clock; with"
            " neighbours on the cores that is longer, too. Spark's counts what its JVM compiles and collects"
            " meanwhile, which short reads feel most. DuckDB compares every row with every equality delete:"
            f" reads that took {DUCKDB_SECONDS:.0f} s are left out.",
            table("read | within a factor of 2 | median | worst", accuracy),
            "The coefficients (`service/reader_cost.json`), each for one of what stands before it; what was"
            " measured is kept in `tests/benchmarks/reader_cost_measurements.json`, and"
            " `make bench-readers ARGS=--fit` makes the coefficients from that anew:",
            table(f"each | {' | '.join(READS.values())}", terms),
        ]
    )


def overhead_report(measurements: Measurements) -> str:
    """In Markdown, its first line the title."""
    rows, tables = list[Sequence[object]](), left_out(measurements.tables)
    for kind, name in READS.items():
        for least in (NOTICED, MUCH):
            off = [one.off_by for one in compared(kind, tables, least)]
            worst = max(off)
            numbers = (f"{statistics.median(off):.2f}", f"{worst:.2f}" if worst < 100 else "none told")
            rows.append((name, f"{least:g}", _within(off, 2), _within(off, 3), *numbers))
    ratios = [
        (
            _words(one),
            *(
                f"{each.measured:.2f} / {each.told:.2f}" if each is not None else ""
                for each in (_compared(kind, one, found) if kind in one.seconds else None for kind in READS)
            ),
        )
        for one, found in tables
    ]
    return "\n\n".join(
        [
            "# What deletes and small files cost a read",
            "The model above says what a read costs; what is shown, saved, ranked and weighed is the"
            " overhead, how much more that is than of the same rows in a table just written. By how much a"
            " model that is fitted to all other tables is off about it, as how many times a read takes what"
            " one of the fresh table does: 1.00 is right, 2.00 twice or half of what was measured beyond 1.",
            table(
                "read | times a fresh one, more than | within a factor of 2 | of 3 | median | worst",
                rows,
            ),
            "Each table, and how many times what a read of the fresh one takes: measured / by the model.",
            table(f"data files, rows, deletes, partitions, columns | {' | '.join(READS.values())}", ratios),
        ]
    )


def _within(off: Sequence[float], most: float) -> str:
    return f"{sum(one <= most for one in off)} of {len(off)}"


def _milliseconds(seconds: float) -> str:
    if not seconds:
        return ""
    return f"{seconds * 1000:,.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.2g} ms"


def _words(measured: Measured) -> str:
    shape, wanted = measured.shape, measured.drawn
    kind = "vectors" if wanted.format_version == 3 else "position delete files"
    deletes = (
        [f"{shape.equality_deletes:,} in {shape.equality_delete_files}"] if shape.equality_deletes else []
    )
    if shape.vectors:
        deletes.append(f"{shape.positions:,} in {shape.vectors} {kind}")
    told = (f"{shape.data_files}", f"{shape.rows:,}", " and ".join(deletes) or "none")
    return "; ".join([*told, f"{wanted.partitions}", f"{wanted.columns}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true", help="measure nothing: fit to what was kept")
    if not parser.parse_args().fit:
        MEASUREMENTS.write_text(measured_now().as_json())
    measurements = kept()
    model = model_of(measurements)
    MODEL.write_text(json.dumps(model.model_dump(mode="json"), indent=1) + "\n")
    write_part(Part.READER_COST, cost_report(model, measurements))
    write_part(Part.READER_OVERHEAD, overhead_report(measurements))


if __name__ == "__main__":
    main()
