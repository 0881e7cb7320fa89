"""Which old snapshots an expiry by age leaves alone, and why."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from worker.erasure.holds import kept_by_age
from worker.table.avro_files import CorruptMetadataError

NOW = datetime(2030, 1, 31, tzinfo=UTC)
Made = tuple[int, int | None, float, Mapping[str, str]]
FLINK = {"flink.job-id": "j", "flink.operator-id": "o"}


def table(
    snapshots: Sequence[Made],
    refs: Mapping[str, Mapping[str, Any]],
    properties: Mapping[str, str] | None = None,
    format_version: int = 2,
) -> TableMetadata:
    """snapshots: each with its id, its parent's, its age in days, and its properties."""
    return TableMetadataUtil.parse_obj(
        {
            "format-version": format_version,
            "next-row-id": 0,
            "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
            "location": "file:/lake/t",
            "last-sequence-number": 9,
            "last-updated-ms": 0,
            "last-column-id": 1,
            "schemas": [{"type": "struct", "schema-id": 0, "fields": []}],
            "current-schema-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "default-spec-id": 0,
            "last-partition-id": 999,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "properties": dict(properties or {}),
            "current-snapshot-id": refs["main"]["snapshot-id"],
            "refs": refs,
            "snapshots": [
                {
                    "snapshot-id": number,
                    "parent-snapshot-id": parent,
                    "sequence-number": number,
                    "timestamp-ms": int((NOW - timedelta(days=age)).timestamp() * 1000),
                    "manifest-list": f"file:/lake/t/metadata/{number}.avro",
                    "summary": {"operation": "append", **told},
                    "schema-id": 0,
                }
                for number, parent, age, told in snapshots
            ],
        }
    )


def branch(snapshot_id: int, **more: int) -> dict[str, Any]:
    return {"snapshot-id": snapshot_id, "type": "branch", **more}


def line(
    *numbers: int, told: Mapping[int, Mapping[str, str]] | None = None, parent: int | None = None
) -> Any:
    """Snapshots one after the other, each as many days old as it is before the 30th."""
    found = []
    for number in numbers:
        found.append((number, parent, 30 - number, (told or {}).get(number, {})))
        parent = number
    return found


def expiring(metadata: TableMetadata, *, days: float = 5, retain_last: int = 1) -> list[int]:
    kept = kept_by_age(metadata, "main", NOW - timedelta(days=days), retain_last, NOW)
    return [number for number, hold in kept.items() if hold is None]


def holders(metadata: TableMetadata, days: float = 5) -> dict[int, str]:
    kept = kept_by_age(metadata, "main", NOW - timedelta(days=days), 1, NOW)
    return {number: hold.holder for number, hold in kept.items() if hold is not None}


def test_what_is_old_expires_but_for_the_last_snapshots_of_each_branch() -> None:
    metadata = table(line(1, 2, 3, 4), {"main": branch(4)})
    assert expiring(metadata) == [1, 2, 3]
    assert expiring(metadata, retain_last=3) == [1]
    assert expiring(metadata, days=26.5) == [1, 2, 3]
    assert expiring(metadata, days=27.5) == [1, 2]
    assert expiring(metadata, days=29) == []


def test_a_snapshot_of_a_time_that_is_no_time_is_not_old() -> None:
    micros: Made = (1, None, -(10.0**6), {})
    assert expiring(table([micros, *line(2, 3, parent=1)], {"main": branch(3)}), days=0) == [2]


def test_a_tag_and_the_head_of_a_branch_stay() -> None:
    refs = {"main": branch(4), "old": branch(2), "v1": {"snapshot-id": 1, "type": "tag", "max-ref-age-ms": 1}}
    assert holders(table(line(1, 2, 3, 4), refs)) == {1: "tag", 2: "branch", 4: "branch"}


@pytest.mark.parametrize(
    ("properties", "ref", "left"),
    [
        ({"gc.enabled": "false"}, {}, []),
        ({"history.expire.max-snapshot-age-ms": "many"}, {}, []),
        ({"history.expire.max-snapshot-age-ms": str(28 * 86_400_000)}, {}, [1, 2]),
        ({"history.expire.min-snapshots-to-keep": "3"}, {}, [1]),
        ({}, {"min-snapshots-to-keep": 2}, [1, 2]),
        ({}, {"max-snapshot-age-ms": 27 * 86_400_000 + 1}, [1, 2]),
        ({}, {"max-snapshot-age-ms": 1}, [1, 2, 3]),
    ],
)
def test_what_the_table_or_its_branch_retains_stays(
    properties: Mapping[str, str], ref: Mapping[str, int], left: Sequence[int]
) -> None:
    assert expiring(table(line(1, 2, 3, 4), {"main": branch(4, **ref)}, properties)) == left


def test_the_last_snapshot_of_a_writer_stays_for_a_week_and_all_since() -> None:
    recent, long_ago = table(line(24, 26, 28, told={24: FLINK}), {"main": branch(28)}), line(20, 26, 28)
    assert expiring(recent, days=1) == []
    assert holders(recent, days=1) == {24: "writer", 26: "writer", 28: "branch"}
    assert expiring(table(line(20, 26, 28, told={20: FLINK}), {"main": branch(28)}), days=1) == [20, 26]
    assert expiring(table(long_ago, {"main": branch(28)}), days=1) == [20, 26]


def test_what_a_staging_branch_has_stays_until_it_is_published() -> None:
    staged = line(5, 6, 7, parent=1)
    refs = {"main": branch(3), "ingest": branch(7)}
    never = table([*line(1, 2, 3), *staged], refs)
    assert expiring(never) == [1, 2]
    assert {holders(never)[number] for number in (5, 6, 7)} == {"branch"}
    kept = kept_by_age(never, "main", NOW, 1, NOW, "ingest")
    assert [number for number, hold in kept.items() if hold is None] == [], (
        "it is enrolled: so is its beginning"
    )

    told = {"icestream.published-branch": "ingest", "icestream.published-snapshot-id": "6"}
    published = table([*line(1, 2, 3, 4, told={3: told}), *staged], refs | {"main": branch(4)})
    assert expiring(published) == [1, 2, 5, 6]
    assert holders(published) == {3: "writer", 4: "branch", 7: "branch"}

    gone = table([*line(1, 2, 3, 4, told={3: told}), *staged], {"main": branch(4)})
    assert expiring(gone) == [1, 2, 3, 5, 6, 7]


@pytest.mark.parametrize("deletes", ["added-equality-deletes", "added-dvs"])
def test_the_history_of_a_branch_that_flink_writes_deletes_to_stays_whole(deletes: str) -> None:
    """Format version 3: Iceberg refuses its next vector otherwise."""
    told = {2: {"icestream.published-branch": "ingest", "icestream.published-snapshot-id": "6"}}
    refs = {"main": branch(3), "ingest": branch(7)}

    def held(flink: Mapping[str, str], version: int = 3, first: int | None = None, **how: Any) -> list[int]:
        snapshots = [
            *line(1, 2, 3, told=told, parent=first),
            *line(5, 6, 7, parent=1, told={5: flink, 7: FLINK}),
        ]
        made = table(snapshots, refs, format_version=version)
        return [n for n in (1, 5, 6) if n not in expiring(made, **how)]

    assert held(FLINK | {deletes: "1"}) == [1, 5, 6], "a staging branch, whenever it was written to last"
    assert held(FLINK | {deletes: "1"}, version=2) == []
    assert held(FLINK) == [], "a job that only appends"
    assert held({deletes: "1"}) == [], "as Spark writes, which knows where it started"
    assert held(FLINK | {deletes: "1"}, first=0) == [], "nothing helps that writer any more"
    writer = {24: FLINK | {deletes: "1"}, 27: FLINK}
    on_main = table(line(22, 24, 26, 27, 28, told=writer), {"main": branch(28)}, format_version=3)
    assert holders(on_main, days=1) == {22: "writer", 24: "writer", 26: "writer", 27: "writer", 28: "branch"}
    silent = {10: FLINK | {deletes: "1"}}
    gone = table(line(9, 10, 28, told=silent), {"main": branch(28)}, format_version=3)
    assert expiring(gone, days=1) == [9, 10]


def test_what_was_written_to_be_looked_at_first_stays_for_a_week() -> None:
    def staged(at: int) -> TableMetadata:
        return table([*line(20, 26), *line(at, parent=20, told={at: {"wap.id": "w"}})], {"main": branch(26)})

    assert expiring(staged(25), days=1) == []
    assert expiring(staged(22), days=1) == [20, 22]


def test_many_branches_that_have_the_same_past_take_no_memory_of_their_own() -> None:
    """Whoever writes a table may say that each of thousands keeps all of thousands of snapshots."""
    told = {"icestream.published-branch": "b1", "icestream.published-snapshot-id": "0", **FLINK}
    keeps = {"history.expire.min-snapshots-to-keep": "1000000"}

    def taken(branches: int) -> int:
        refs = {"main": branch(300)} | {f"b{number}": branch(300) for number in range(branches)}
        metadata = table(line(*range(1, 301), told={7: told}), refs, keeps)
        tracemalloc.start()
        try:
            assert expiring(metadata) == []
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert taken(60) < 1.5 * taken(2)


@pytest.mark.parametrize(
    "made",
    [
        [*line(2, 3, parent=3), *line(1)],
        [*line(1, 2, parent=2), *line(3)],
        line(3, parent=3),
    ],
    ids=["of a branch", "of none", "of one"],
)
def test_parents_that_lead_in_a_circle_are_refused(made: Sequence[Made]) -> None:
    with pytest.raises(CorruptMetadataError, match="in a circle"):
        expiring(table(made, {"main": branch(3)}))
