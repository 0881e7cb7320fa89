"""Tables of people, some of whom are erased, and what is left of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from tests import erased
from tests.factories import TableBuilder
from tests.jobs import Jobs
from tests.readers import java_rows

NewTable = Callable[..., TableBuilder]
ALL_GONE = {"gone": 1, "invisible": 0, "held": 0, "unknown": 0}
PLAIN = {"write.parquet.compression-codec": "uncompressed", "write.avro.compression-codec": "uncompressed"}


def key(number: int) -> str:
    return f"person-{number:06d}"


def row(number: int, region: str = "eu") -> dict[str, Any]:
    return {"id": key(number), "region": region, "value": number}


class Erase:
    """Runs a job that erases rows of a key, and returns its report."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self.result: dict[str, Any] = {}
        """Of the last one."""

    def __call__(self, *numbers: int, expire_snapshots: bool = True, **how: Any) -> dict[str, Any]:
        parameters = {"key_columns": ["id"], "erasure_id": "e", "expire_snapshots": expire_snapshots}
        rows = [{"id": key(number)} for number in numbers]
        self.result = self.jobs.run("erase", rows=rows, parameters=parameters, **how).result
        report: dict[str, Any] = self.result["erasure"]
        assert sum(report["counts"].values()) == report["keys"] == len(numbers)
        return report


def numbers_of(table: TableBuilder, *, branch: str | None = None) -> list[int]:
    """The visible rows, by their numbers, as Iceberg's reader in Java shows them."""
    snapshot_id = None if branch is None else table.metadata.refs[branch].snapshot_id
    rows = java_rows(table, "id", snapshot_id=snapshot_id).elements()
    return sorted(int(str(one[0]).removeprefix("person-")) for one in rows)


def files_with(numbers: Collection[int], *places: Path) -> list[str]:
    """Of an independent look."""
    return erased.files_with([key(number) for number in numbers], *places)


def place_of(table: TableBuilder) -> Path:
    return Path(table.metadata.location.removeprefix("file:").replace("//", "/"))


def parquet_files(table: TableBuilder) -> list[Path]:
    return list((place_of(table) / "data").rglob("*.parquet"))


def holders(report: Mapping[str, Any]) -> list[tuple[str, str | None, list[int]]]:
    return sorted((one["holder"], one["name"], one["keys"]) for one in report["held"])
