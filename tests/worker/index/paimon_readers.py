"""Two readers of Paimon tables that know nothing of Icestream: pypaimon's own, and Paimon's in Java."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pypaimon import CatalogFactory

from tests import maven

Row = tuple[Any, ...]

JAVA_PROJECT = Path(__file__).parent / "paimon_reader"
STEP = 41  # of so many rows, one is sought by a filter


@dataclass(frozen=True)
class PaimonTable:
    """What a reader makes of a table. Binary values are in hex."""

    columns: dict[str, str]  # name -> Paimon's type
    primary_key: list[str]
    levels: list[int]  # of the live files, ascending
    rows: list[Row]  # ascending
    not_found: list[Row]  # rows that a filter on their values misses


def read_with_pypaimon(warehouse: Path, table: str) -> PaimonTable:
    opened = CatalogFactory.create({"warehouse": warehouse.as_uri()}).get_table(
        f"{_database(warehouse)}.{table}"
    )

    def read(predicate: Any = None) -> tuple[list[Row], list[int]]:
        builder = opened.new_read_builder()
        if predicate is not None:
            builder = builder.with_filter(predicate)
        splits = builder.new_scan().plan().splits()
        rows = [tuple(row.values()) for row in builder.new_read().to_arrow(splits).to_pylist()]
        return rows, [file.level for split in splits for file in split.files]

    rows, levels = read()
    predicates = opened.new_read_builder().new_predicate_builder()
    names = [field.name for field in opened.fields]
    not_found = []
    for row in rows[::STEP]:
        equal = [predicates.equal(name, value) for name, value in zip(names, row, strict=True)]
        if read(predicates.and_predicates(equal))[0] != [row]:
            not_found.append(row)
    return PaimonTable(
        {field.name: str(field.type) for field in opened.fields},
        opened.primary_keys,
        sorted(levels),
        sorted(map(_in_hex, rows)),
        [_in_hex(row) for row in not_found],
    )


def _in_hex(row: Row) -> Row:
    return tuple(value.hex() if isinstance(value, bytes) else value for value in row)


def _database(warehouse: Path) -> str:
    (database,) = (folder.name.removesuffix(".db") for folder in warehouse.glob("*.db"))
    return database


class JavaReader:
    """One JVM that reads many tables; leaving it ends the JVM."""

    def __init__(self, log: Path) -> None:
        command = ["java", "-Xmx256m", "-cp", maven.build(JAVA_PROJECT), "icestream.DumpTables", str(STEP)]
        self._log = log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, encoding="utf-8"
            )

    def read(self, warehouse: Path, table: str) -> PaimonTable:
        """Also fails when a file isn't sorted, or when files of one level above 0 overlap."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(warehouse.as_uri(), _database(warehouse), table, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, f"Paimon's Java reader is gone; its log ends:\n{self._log_end()}"
        answer = json.loads(line)
        assert "error" not in answer, f"Paimon's Java reader can't read {table}:\n{answer['error']}"
        columns = dict(answer["columns"])
        rows, not_found = (
            [tuple(map(_from_json, columns.values(), row)) for row in answer[name]]
            for name in ("rows", "not_found")
        )
        return PaimonTable(columns, answer["primary_key"], sorted(answer["levels"]), sorted(rows), not_found)

    def _log_end(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:  # closes its pipes and waits
            self._process.terminate()


def _from_json(paimon_type: str, value: Any) -> Any:
    return Decimal(value) if paimon_type.startswith("DECIMAL") else value
