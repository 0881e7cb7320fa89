"""A table of the benchmark, made small: what a far store is asked for, and how often one after the other."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.benchmarks import lookups
from tests.benchmarks.lookups import Table, measure_far


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    monkeypatch.setattr(lookups, "FILE_ROWS", 20_000)
    made = Table(tmp_path / "table", 60_000)
    made.load(lambda _: None)
    yield made
    made.catalog.close()


def test_a_key_in_a_far_store_costs_few_waits_and_then_none(table: Table) -> None:
    # What is asked for at once is told by the time: longer than threads wait for a busy processor.
    lines = {str(line[0]): line for line in measure_far(table, 0.05, 3)}

    def most(line: str, column: int) -> int:
        return int(str(lines[line][column]).replace(",", "").rpartition("-")[2].rstrip(")"))

    assert most("one key", 3) <= 1
    assert most("one key and its row", 3) <= 4
    assert most("1,000 keys", 3) <= 2
    assert most("one key, after these", 2) == 0
