"""The benchmark of pages runs, on both databases; how fast is for people to look at."""

import re
from pathlib import Path

import pytest

from tests.benchmarks.page import Part, read_part
from tests.benchmarks.pages import main

MEDIAN_MS, LONGEST_MS, LARGEST_KB = 100, 300, 150
"""Of an answer, of the slowest one but one in a hundred, and of a page before compression, without script and
style."""
WATCHED_MS = 1.0
"""Of the service's processor time, for each second and viewer."""


def test_no_page_of_a_large_installation_is_late_or_long() -> None:
    row = r"^\| (.+) \| (\w+) \| ([\d,]+) ms \| ([\d,]+) ms \| [\d,]+ ms \| (\d+) kB \|$"
    rows = re.findall(row, read_part(Part.PAGES), re.M)
    assert len(rows) > 40
    assert {database for _, database, *_ in rows} == {"SQLite", "PostgreSQL"}
    for page, database, median, longest, length in rows:
        if page == "metrics":  # no page, and asked for by one program each 15 s
            continue
        assert database != "SQLite" or int(median) <= MEDIAN_MS, page
        assert int(longest.replace(",", "")) <= LONGEST_MS, page
        assert int(length) <= LARGEST_KB, page


def test_a_page_that_is_left_open_costs_next_to_nothing() -> None:
    row = r"^\| (.+) \| (?:SQLite|PostgreSQL) \| (-?\d+\.\d\d) ms \| (-?\d+\.\d\d) ms \| (?:\d+ s|never) \|$"
    rows = re.findall(row, read_part(Part.PAGES), re.M)
    assert len(rows) == 6
    for page, idle, busy in rows:
        assert max(float(idle), float(busy)) <= WATCHED_MS, page


# Of a command that people run now and then.
@pytest.mark.integration
@pytest.mark.exhaustive
def test_a_short_run_measures_every_page(tmp_path: Path) -> None:
    path = tmp_path / "pages.md"
    main(tables=20, jobs=200, times=2, seconds=1, report=path)
    times = r"^\| (.+) \| (SQLite|PostgreSQL) \| (?:[\d,]+ ms \| ){3}\d+ kB \|$"
    watched = r"^\| (.+) \| (SQLite|PostgreSQL) \| (?:-?\d+\.\d\d ms \| ){2}(?:\d+ s|never) \|$"
    for row, names in (
        (times, {"timeline", "X-ray of an index", "job"}),
        (watched, {"overview", "table", "job that runs"}),
    ):
        rows = re.findall(row, path.read_text(), re.M)
        pages = [page for page, database in rows if database == "SQLite"]
        assert names <= set(pages)
        assert [page for page, database in rows if database == "PostgreSQL"] == pages
