"""What is known of engines that read Iceberg tables: where from, and what it says of a table."""

from datetime import date
from itertools import groupby
from pathlib import Path

import pytest

from icestream.readers import _entries, _version, engines, reader

ROOT = Path(__file__).parents[1]
SIGHTS = ("equality_deletes", "position_deletes", "deletion_vectors")


def test_each_entry_says_something_and_where_it_is_from() -> None:
    known = {"engine", "since", "source", "looked_at", "note", *SIGHTS}
    for one in _entries():
        assert one.keys() <= known, one
        assert {one[name] for name in SIGHTS if name in one} - {"reads", "refuses"} == set(), one
        assert any(name in one for name in SIGHTS), one
        assert isinstance(one["looked_at"], date)
        assert one["source"].startswith("https://") or (ROOT / one["source"]).is_file(), one


def test_entries_of_an_engine_stand_together_and_in_order() -> None:
    of_engines = [(engine, list(of)) for engine, of in groupby(_entries(), lambda one: one["engine"])]
    assert [engine for engine, _ in of_engines] == engines()
    for _, entries in of_engines:
        since = [_version(one.get("since", "0")) for one in entries]
        assert since == sorted(set(since))


@pytest.mark.parametrize(
    ("name", "version", "before", "after"),
    [
        ("athena", 2, "unknown", "reads"),
        ("athena", 3, "refuses", "refuses"),
        ("trino-426", 2, "unknown", "unknown"),
        ("trino-475", 2, "reads", "reads"),
        ("trino-475", 3, "refuses", "refuses"),
        ("trino-479.1", 3, "refuses", "refuses"),
        ("trino-480", 3, "reads", "reads"),
        ("trino-480.0", 3, "reads", "reads"),
        ("trino-1000", 3, "reads", "reads"),
        ("trino", 2, "reads", "reads"),
        ("trino", 3, "unknown", "unknown"),
        ("databricks-18", 3, "unknown", "reads"),
        ("dremio-25", 2, "refuses", "reads"),
        ("flink-2.1", 3, "reads", "reads"),
        ("pyiceberg", 2, "refuses", "reads"),
        ("spark-3.5", 3, "reads", "reads"),
        ("clickhouse-24.8", 2, "unknown", "unknown"),
        ("clickhouse-25.10", 2, "reads", "reads"),
        ("clickhouse-25.10", 3, "refuses", "refuses"),
        ("clickhouse-26.9", 3, "unknown", "unknown"),
        ("starrocks-4", 3, "unknown", "unknown"),
    ],
)
def test_a_reader_is_known_by_its_version(name: str, version: int, before: str, after: str) -> None:
    found = reader(name)
    assert (found.before(version), found.after(version)) == (before, after)


def test_a_table_where_equality_deletes_stay_is_what_it_was_to_whoever_refuses_these() -> None:
    assert reader("pyiceberg").after(2, some_stay=True) == "refuses"
    assert reader("athena").after(2, some_stay=True) == "unknown"
    assert reader("trino-480").after(3, some_stay=True) == "reads"


@pytest.mark.parametrize(
    "name", ["", "trino-", "trino-x", "Trino", "trino-4.", "trino-1.2.3.4.5", "trino-\uff14", "trino\n"]
)
def test_what_is_no_name_of_a_reader_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(ValueError, match="trino-475; known are athena, bigquery"):
        reader(name)
