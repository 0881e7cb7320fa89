"""What the page of benchmarks was made to show, it shows: who writes a part of it anew sees what was lost."""

import re

import pytest

from tests.benchmarks.page import Part, read_part


def cells_of(part: str, *begin: str) -> list[list[str]]:
    """The cells of each row of tables that begins so."""
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in part.splitlines() if row[:1] == "|"]
    return [row for row in rows if row[: len(begin)] == list(begin)]


def seconds_in(cell: str) -> float:
    """Of the first time that is told."""
    found = re.match(r"([\d.]+) (ms|s)\b", cell)
    assert found is not None, cell
    return float(found[1]) / (1000 if found[2] == "ms" else 1)


def test_a_thousand_tables_hold_ten_checkpoints_a_second() -> None:
    part = read_part(Part.FLEET).partition("### 1,000 tables\n")[2]
    held = re.search(r"rate that was held: (\d+) a second", part)
    assert held is not None
    assert int(held[1]) >= 10
    ((_, written, checkpoints, _, p99, growth, _, _, *cpu, _, _),) = cells_of(part, "10")
    assert int(checkpoints.replace(",", "")) >= 120 * 10 * 0.95
    assert float(written) >= 9.5
    assert seconds_in(p99) <= 60
    assert float(growth) <= 0.03
    assert len(cpu) == 4  # of all that there is on the machine
    assert sum(map(seconds_in, cpu)) <= 0.15


@pytest.mark.parametrize(("keys", "warm", "cold"), [("1", 0.1, 0.5), ("1,000", 0.6, 1.5)])
def test_a_lookup_in_a_store_far_away_waits_for_few_answers(keys: str, warm: float, cold: float) -> None:
    ((*_, usual, _, _, first),) = cells_of(read_part(Part.OBJECT_STORES), keys)
    assert seconds_in(usual) <= warm
    assert seconds_in(first) <= cold


@pytest.mark.parametrize(
    ("job", "most"), [("convert", 1.5), ("convert, cold", 4), ("convert, new process", 4)]
)
def test_a_conversion_in_a_store_far_away_waits_for_few_answers(job: str, most: float) -> None:
    rows = [
        row for version in ("V2", "V3") for row in cells_of(read_part(Part.OBJECT_STORES), f"{version} {job}")
    ]
    assert len(rows) >= 2
    for *_, took, _ in rows:
        assert seconds_in(took) <= most


def test_ten_thousand_tables_cost_little_and_are_known_at_once() -> None:
    part = read_part(Part.POLLING)

    def told(what: str) -> str:
        ((_, figure),) = cells_of(part, what)
        return figure

    idle = told("CPU of the service while it is left alone, of one core")
    assert float(idle.removesuffix("%")) <= 5
    claimed = told("claimed after it by a worker that waits: median / p95 / longest").split(" / ")
    assert seconds_in(claimed[1]) <= 1
    assert seconds_in(told("first look at all tables after a start that knows them")) <= 10
