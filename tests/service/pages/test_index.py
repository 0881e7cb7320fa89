"""What the page of a table's indexes draws, and says in words."""

import html
import json
import re
from typing import Any

from service.db.database import utc_now
from service.index_health.models import IndexedKeySet, PendingAge
from service.records.reports import PartitionReport, SortedRunReport
from service.ui.indexes import ROWS_SHOWN, ages_of, section_of
from tests.browser.running_service import convert_result, index_report
from tests.service.conftest import Running
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.pages.person import Person
from tests.service.pages.test_jobs import claim, request_job


def drawn(page: str) -> dict[str, list[Any]]:
    """Rows of each chart, by its name."""
    found = re.findall(r"""aria-label="([^"]*)" data-bars='([^']*)'""", page)
    plain = ((title, html.unescape(data).replace("\\u00a0", " ")) for title, data in found)
    return {title: json.loads(data)["rows"] for title, data in plain}


def test_runs_partitions_ages_and_costs_are_drawn_as_they_were_told(
    service: Running, admin: Person, iceberg: IcebergCatalog
) -> None:
    iceberg.create("a.indexed")
    table = service.enroll("a.indexed", policy="manual")["id"]
    worker = service.start_worker()
    assert "No index yet" in admin.open(f"/tables/{table}/index").html
    health = index_report(dead_ratio=0.25, coverage=0.5)
    service.finish(claim(service, worker, request_job(service, table, kind="index")), health=health)
    told = convert_result()
    service.finish(
        claim(service, worker, request_job(service, table, kind="convert")), result=told, health=health
    )
    shown = drawn(admin.open(f"/tables/{table}/index").html)
    assert [(name, bars) for name, _, _, *bars in shown["Sorted runs of id"]] == [
        ("Level 9", [[[40_350_000.0, "accent"], [13_450_000.0, "bad"]]]),
        ("Level 0", [[[6_000_000.0, "accent"], [0.0, "bad"]]]),
    ]
    assert shown["Sorted runs of id"][0][2] == "53.8 MB in 4 files, 17,480,000 entries, 25% of them dead"
    (partition,) = shown["Coverage of partitions by id"]
    assert partition[3] == [[48.0, "accent"], [48.0, "warn"]]
    lookups = admin.page.html.partition('id="lookups"')[2].partition("</table>")[0]
    assert "looking them up reads 12 MB" in lookups
    assert "<td title=" not in lookups, "a sentence may be marked up"
    # Only the key with an index left a choice.
    (lookup,) = shown["What lookups and scans took"]
    assert (lookup[0], lookup[1] > 0) == ("id", True)
    assert lookup[3:] == [
        [[0.9, "accent-faint"]],
        [[1.2, "accent"]],
        [[3.6, "warn-faint"]],
        [[0.0, "warn"]],
    ]


def test_of_an_index_in_pieces_the_largest_runs_and_the_least_covered_partitions_are_drawn() -> None:
    run = SortedRunReport(level=0, files=1, entries=9, bytes=9, dead_ratio=0)
    lacking = PartitionReport(partition="day=1", data_files=9, covered_data_files=0)
    covered = PartitionReport(partition="day=2", data_files=9, covered_data_files=9)
    index = IndexedKeySet(
        equality_field_ids=[7],
        columns=[],
        coverage=0.5,
        sorted_runs=100,
        runs=[run] * 100,
        partitions=[lacking] * ROWS_SHOWN + [covered] * 50,
        pending=[],
    )
    section = section_of(index)
    assert (len(section.runs.rows), len(section.index.runs)) == (ROWS_SHOWN, ROWS_SHOWN)
    assert [row.name for row in section.partitions.rows] == ["day=1"] * ROWS_SHOWN
    assert section.name == "field 7"


def test_a_key_of_many_long_columns_is_named_by_the_first_of_them() -> None:
    index = IndexedKeySet(
        equality_field_ids=list(range(1000)),
        columns=["c" * 10_000] * 1000,
        coverage=None,
        sorted_runs=0,
        runs=[],
        partitions=[],
        pending=[],
    )
    section = section_of(index)
    assert section.name.endswith("c… and 992 more")
    assert len(section.name) < 600
    assert section_of(index.model_copy(update={"columns": ["id", "region"]})).name == "id, region"


def test_ages_are_drawn_up_to_the_oldest_in_steps_that_stay() -> None:
    assert ages_of([]) == []

    def pending(age: float, deletes: int) -> PendingAge:
        return PendingAge(oldest_at=utc_now(), age_seconds=age, files=1, deletes=deletes)

    rows = ages_of([pending(59, 5), pending(60, 7), pending(70, 1), pending(10**7, 2)])
    assert [(row.name, row.bars[0][0][0]) for row in rows if row.bars[0][0][0]] == [
        ("under 1 min", 5),
        ("under 10 min", 8),
        ("older", 2),
    ]
    assert rows[1].words.replace("\N{NO-BREAK SPACE}", " ") == "8 deletes in 2 files"
    assert len(rows) == 7
