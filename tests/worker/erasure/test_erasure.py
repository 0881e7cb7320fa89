"""Rows that are erased: gone from the branch, its files, its index and its past, or told what holds them."""

from __future__ import annotations

import json
import random
import traceback
from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.deaths import killed_at_call_of, killed_at_commit_of
from tests.factories import TableBuilder, equality_delete_files, live_delete_files
from tests.jobs import Jobs
from tests.thorough import V2_FIRST, first_always, of_many, thorough_unless
from tests.worker.erasure.tables import (
    ALL_GONE,
    Erase,
    NewTable,
    files_with,
    holders,
    key,
    numbers_of,
    parquet_files,
    place_of,
    row,
)
from worker.contract.control_plane import AttemptId
from worker.erasure import expiry, manifests, rewrite
from worker.erasure.search import Search
from worker.io.storage import Storage
from worker.jobs import erased_indexes, erasure
from worker.process.errors import UnexpectedError
from worker.table import row_delta

pytestmark = pytest.mark.integration


@V2_FIRST
@first_always("partitioned_by", [("region",), ()])
def test_no_file_of_the_table_or_its_index_has_an_erased_key(
    new_table: NewTable, jobs: Jobs, erase: Erase, format_version: int, partitioned_by: Sequence[str]
) -> None:
    table = new_table(format_version=format_version, partitioned_by=partitioned_by)
    rows = [row(n, region) for region in ("eu", "us") for n in range(100)]
    table.append(rows, files=2)
    table.append([row(200), row(201)])
    untouched = table.append([row(300), row(301)])
    jobs.run("index", key_sets=[["id"]])
    # The first and the last of a file are bounds in manifests; 99 has no row any more.
    jobs.run("delete", rows=[{"id": key(99)}], parameters={"key_columns": ["id"]})
    gone = [0, 7, 99, 200, 201, 900]
    assert len(files_with(gone, place_of(table), jobs.index)) > 5

    report = erase(*gone)

    assert files_with(gone, place_of(table), jobs.index) == []
    assert report["counts"] == {"gone": 6, "invisible": 0, "held": 0, "unknown": 0}
    assert (report["rows_deleted"], report["held"]) == (6, [])
    assert report["snapshot_id_looked_at"] == table.snapshot_id
    left = [n for n in range(100) if n not in gone]
    assert numbers_of(table) == sorted(left * 2 + [300, 301])
    assert set(untouched) <= set(table.data_file_paths)
    assert report["data_files_rewritten"] == len(files_with(left, *_data(table))) + 1, "one has no successor"
    assert report["snapshots_expired_count"] == len(report["snapshots_expired"]) > 3
    (explained,) = jobs.run("delete", rows=[{"id": key(5)}], parameters={"key_columns": ["id"]}).result[
        "key_sets"
    ]
    assert (explained["source"], explained["data_files_scanned"]) == ("index", 0)


def _data(table: TableBuilder) -> list[Path]:
    return [place_of(table) / "data"]


@V2_FIRST
def test_rows_that_are_left_keep_their_order_and_their_ids(
    new_table: NewTable, erase: Erase, format_version: int
) -> None:
    table = new_table(format_version=format_version)
    table.append([row(n) for n in (5, 3, 9, 1, 7)])
    table.append([row(n) for n in (2, 4)])
    columns = "id, value" + (", _row_id, _last_updated_sequence_number" if format_version == 3 else "")
    before = table.spark.sql(f"SELECT {columns} FROM {table.identifier}").collect()

    erase(3, 2)

    after = table.spark.sql(f"SELECT {columns} FROM {table.identifier}").collect()
    assert sorted(after) == sorted(one for one in before if one["id"] not in (key(3), key(2)))
    (longest,) = [pq.read_table(one) for one in parquet_files(table) if pq.read_metadata(one).num_rows == 4]
    assert longest.column("value").to_pylist() == [5, 9, 1, 7]


def test_uuids_in_files_that_do_not_call_them_that_stay_what_they_are(
    new_table: NewTable, erase: Erase
) -> None:
    """As Arrow writes them; also below structs, lists and maps."""
    table = new_table()
    jvm: Any = table.spark.sparkContext._jvm
    types = jvm.org.apache.iceberg.types.Types
    uuid, field = types.UUIDType.get(), types.NestedField
    table.java.updateSchema().addColumn("u", uuid).addColumn(
        "s", types.StructType.of(jvm.java.util.List.of(field.optional(100, "u", uuid)))
    ).addColumn("l", types.ListType.ofOptional(101, uuid)).addColumn(
        "m", types.MapType.ofOptional(102, 103, types.StringType.get(), uuid)
    ).commit()
    one = UUID(int=2**127 + 1)
    fixed = pa.binary(16)
    columns = {
        "u": (fixed, one.bytes),
        "s": (pa.struct([("u", fixed)]), {"u": one.bytes}),
        "l": (pa.list_(fixed), [one.bytes, None]),
        "m": (pa.map_(pa.string(), fixed), [("a", one.bytes)]),
    }
    rows = pa.Table.from_pylist([row(n) for n in range(3)])
    for name, (kind, value) in columns.items():
        rows = rows.append_column(name, pa.array([value, value, None], kind))
    (old,) = table.append(rows)
    assert pq.read_schema(old.removeprefix("file:")).field("u").type == pa.binary(16)

    assert erase(0)["counts"] == ALL_GONE

    (new,) = parquet_files(table)
    assert pq.ParquetFile(new).schema.column(3).logical_type.type == "UUID"
    told = "value, u, s.u AS su, l[0] AS l0, m['a'] AS ma"
    found = table.spark.sql(f"SELECT {told} FROM {table.identifier} ORDER BY id").collect()
    assert [tuple(one) for one in found] == [(1, *[str(one)] * 4), (2, *[None] * 4)]


@V2_FIRST
@first_always(("is_oldest", "attempt"), [(True, 2), (False, 1)])
def test_deletes_that_wait_hit_what_they_hit_before_and_nothing_else(
    new_table: NewTable, jobs: Jobs, erase: Erase, format_version: int, is_oldest: bool, attempt: int
) -> None:
    """A successor that seemed newer than a pending equality delete would bring its rows back; one that seemed
    older would lose those that were written since (apache/iceberg#10962)."""
    table = new_table(format_version=format_version)
    if not is_oldest:
        table.append([row(8)])
    table.append([row(n) for n in range(6)])
    table.delete_keys([{"id": key(5)}])
    (named,) = table.delete_keys([{"id": key(3)}])
    table.append([row(5), row(6), row(7)])

    report = erase(3, 4, 6, attempt=attempt)

    assert "before it was lost" not in " ".join(jobs.reporter.decisions)
    assert report["counts"] == {"gone": 3, "invisible": 0, "held": 0, "unknown": 0}, report
    left = [0, 1, 2, 5, 7] + [8] * (not is_oldest)
    assert numbers_of(table) == left
    assert files_with([3, 4, 6], place_of(table), jobs.index) == []
    assert not Path(named.removeprefix("file:")).exists(), "it named an erased key"
    # Iceberg would drop one that is older than all data files but the successor.
    assert len(equality_delete_files(table.spark, table.identifier)) == (0 if is_oldest else 1)
    converted = [erase.result[f"equality_delete{name}"] for name in ("_files_removed", "s_resolved")]
    assert converted == [2, 2] if is_oldest else [1, 1]
    jobs.run("convert")
    assert numbers_of(table) == left


_NARROW, _WIDE = "id", "xxhash64(id)"
_DELTA = {"write.parquet.page-version": "v2"}


@pytest.mark.parametrize(
    ("format_version", "value", "properties", "id_bytes"),
    thorough_unless(
        lambda case: case == (3, _WIDE, _DELTA, 0),
        [(2, _NARROW, {}, 0), (3, _NARROW, {}, 1.3), (3, _WIDE, {}, 1.3), (3, _WIDE, _DELTA, 0)],
    ),
)
def test_of_the_touched_files_little_more_is_written_than_there_was(
    new_table: NewTable,
    erase: Erase,
    format_version: int,
    value: str,
    properties: dict[str, str],
    id_bytes: float,
) -> None:
    """Iceberg wrote the old file, too. id_bytes: what the id of a row takes in format version 3, at most."""
    table, rows = new_table(format_version=format_version, properties=properties), 100_000
    columns = ("concat('person-', lpad(id, 6, '0')) AS id", "'eu' AS region", f"{value} AS value")
    table.spark.range(0, rows, 1, 1).selectExpr(*columns).writeTo(table.identifier).append()
    (touched,) = table.data_file_paths
    table.append([row(n) for n in range(rows, rows + 100)])
    size_bytes = Path(touched.removeprefix("file:")).stat().st_size

    report = erase(17, 99_000)

    assert (report["data_files_rewritten"], report["bytes_rewritten"]) == (1, size_bytes)
    assert report["bytes_written"] <= 1.03 * report["bytes_rewritten"] + id_bytes * rows


def test_a_row_that_is_written_meanwhile_is_told(new_table: NewTable, jobs: Jobs, erase: Erase) -> None:
    table = new_table()
    table.append([row(0), row(1)])
    table.append([row(5)])
    calls = count()

    def write() -> None:
        if next(calls) == 2:  # after the delete, and before the commit of data files
            table.append([row(0), row(2)])

    jobs.reporter.before_commit = write
    report = erase(0, 5)

    assert numbers_of(table) == [0, 1, 2]
    assert report["counts"] == {"gone": 1, "invisible": 0, "held": 1, "unknown": 0}
    assert {(one["holder"], *one["keys"]) for one in report["held"]} == {("writer", 0)}
    assert any("is visible" in one["reason"] for one in report["held"])
    assert files_with([5], place_of(table)) == []


@V2_FIRST
def test_who_changes_the_data_files_meanwhile_loses_nothing(
    new_table: NewTable, jobs: Jobs, erase: Erase, format_version: int
) -> None:
    table = new_table(format_version=format_version)
    table.append([row(n) for n in range(6)])
    calls = count()

    def write() -> None:
        if next(calls) == 1:
            table.spark.sql(f"DELETE FROM {table.identifier} WHERE value = 4")

    jobs.reporter.before_commit = write
    report = erase(1)
    assert numbers_of(table) == [0, 2, 3, 5]
    assert report["counts"] == ALL_GONE
    assert any("what is new" in one for one in jobs.reporter.decisions)
    assert files_with([1], place_of(table)) == []


_DEATHS = [
    (module, name, when)
    for module, name in [
        (row_delta, "java_row_delta"),
        (rewrite, "java_rewrite"),
        (manifests, "java_manifest_rewrite"),
        (erased_indexes, "index_key_set"),
        (expiry, "java_expiry"),
        (erasure, "delete_unneeded"),
        (erasure, "outcome"),
    ]
    for when in ("before", "after")
]


@pytest.mark.parametrize(
    ("module", "name", "when"),
    thorough_unless(lambda case: case[1:] in [("java_rewrite", "after"), ("java_expiry", "after")], _DEATHS),
)
def test_a_killed_attempt_is_gone_on_with(
    new_table: NewTable, jobs: Jobs, erase: Erase, module: Any, name: str, when: str
) -> None:
    table = new_table()
    table.append([row(n) for n in range(6)], files=2)
    table.append([row(7)])
    jobs.run("index", key_sets=[["id"]])
    killed = killed_at_commit_of if name.startswith("java_") else killed_at_call_of
    with killed(module, name, when) as death:
        erase(1, 7, job_id="killed")
    assert death.happened

    report = erase(1, 7, job_id="killed", attempt=2, ended_attempts=[jobs.reporter.left_by("killed")])

    assert report["counts"] == {"gone": 2, "invisible": 0, "held": 0, "unknown": 0}
    assert files_with([1, 7], place_of(table), jobs.index) == []
    assert numbers_of(table) == [0, 2, 3, 4, 5]
    assert (report["rows_deleted"], report["data_files_rewritten"]) == (2, 2)


def test_an_erasure_goes_on_with_what_other_jobs_leave_to_it(
    new_table: NewTable, jobs: Jobs, erase: Erase
) -> None:
    """Which snapshots it has let expire is told until it has ended."""
    table = new_table()
    table.append([row(0), row(1)])
    with killed_at_commit_of(expiry, "java_expiry", "after"):
        erase(0, job_id="killed")
    left = jobs.reporter.left_by("killed")
    how: dict[str, Any] = {"rows": [{"id": key(7)}], "parameters": {"key_columns": ["id"]}}
    assert jobs.run("delete", ended_attempts=[left], **how).cleared == []
    assert erase(0, job_id="killed", attempt=2, ended_attempts=[left])["counts"] == ALL_GONE
    how["parameters"] = {**how["parameters"], "erasure_id": "e", "expire_snapshots": True}
    assert jobs.run("erase", ended_attempts=[left], **how).cleared == [AttemptId(job_id="killed", attempt=1)]


def test_nothing_that_is_kept_of_the_job_has_a_key(
    new_table: NewTable, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(partitioned_by=("id",))
    table.append([row(0), row(1)])
    table.java.manageSnapshots().createTag(f"of-{key(0)}", table.snapshot_id).commit()
    table.append([row(7), row(8)])
    (place_of(table) / "data" / f"export_{key(0)}.csv").write_text(key(0))

    def refuse(_: Storage, location: str) -> bool:
        raise PermissionError(f"{location} may not be deleted")

    monkeypatch.setattr(Storage, "delete", refuse)
    how: dict[str, Any] = {
        "rows": [{"id": key(0)}, {"id": key(7)}],
        "parameters": {"key_columns": ["id"], "erasure_id": "e", "expire_snapshots": True},
    }
    outcome = jobs.run("erase", **how)

    kept = json.dumps([outcome.result, outcome.health, jobs.reporter.decisions], default=str)
    assert "could not be deleted" in kept
    assert (key(0) in kept, key(7) in kept) == (False, False)
    names = {
        (one["holder"], str(one["name"]).rpartition("/")[2]) for one in outcome.result["erasure"]["held"]
    }
    assert {("tag", "of-..."), ("orphan_file", "export_....csv")} <= names

    def fail(*_: Any) -> None:
        raise ArithmeticError(f"{table.data_file_paths[0]} of {key(0)} is odd")

    monkeypatch.setattr(Search, "at_snapshots", fail)
    with pytest.raises(UnexpectedError, match=r"ArithmeticError: .* of \.\.\. is odd \(in fail") as failed:
        jobs.run("erase", **how)
    assert key(0) not in "".join(traceback.format_exception(failed.value))


@V2_FIRST
def test_manifests_of_deletes_forget_the_bounds_of_what_was_converted(
    new_table: NewTable, jobs: Jobs, erase: Erase, format_version: int
) -> None:
    """As a streaming writer leaves them: equality deletes beside deletes of positions, which stay."""
    table = new_table(format_version=format_version)
    (kept, other) = table.append([row(n) for n in range(8)], files=2)
    positions = table.position_deletes if format_version == 2 else table.deletion_vectors
    table.commit(*table.equality_deletes([{"id": key(6)}]), *positions({kept: [0]}))
    jobs.run("convert")
    table.append([row(9)])
    assert files_with([6], place_of(table) / "metadata")

    assert erase(6)["counts"] == ALL_GONE

    assert files_with([6], place_of(table)) == []
    assert numbers_of(table) == [1, 2, 3, 4, 5, 7, 9]
    assert {kept} == {one["referenced_data_file"] for one in live_delete_files(table.spark, table.identifier)}
    assert other not in table.data_file_paths
    jobs.run("delete", rows=[{"id": key(1)}], parameters={"key_columns": ["id"]})
    assert numbers_of(table) == [2, 3, 4, 5, 7, 9]


def test_a_vector_that_shares_a_file_with_one_that_goes_has_a_file_of_its_own(
    new_table: NewTable, erase: Erase
) -> None:
    """Iceberg's expiry deletes such a file (docs/decisions/04)."""
    table = new_table()
    one, other = table.append([row(n) for n in range(6)], files=2)
    table.commit(*table.deletion_vectors({one: [0], other: [0]}))
    (shared,) = {file["file_path"] for file in live_delete_files(table.spark, table.identifier)}

    assert erase(0)["counts"] == ALL_GONE

    (left,) = live_delete_files(table.spark, table.identifier)
    assert (left["referenced_data_file"], left["record_count"]) == (other, 1)
    assert left["file_path"] != shared
    assert numbers_of(table) == [1, 2, 4, 5]


def test_a_branch_is_erased_from_by_itself(new_table: NewTable, jobs: Jobs, erase: Erase) -> None:
    table = new_table()
    table.append([row(0), row(1)])
    table.java.manageSnapshots().createBranch("work", table.snapshot_id).commit()

    report = erase(0, branch="work")

    assert numbers_of(table, branch="work") == [1]
    assert numbers_of(table) == [0, 1]
    assert ("branch", "main", [0]) in holders(report)
    assert report["counts"]["held"] == 1


@of_many("seed", range(8))
def test_whatever_came_before_the_visible_rows_are_right_and_no_file_has_an_erased_key(
    new_table: NewTable, jobs: Jobs, erase: Erase, seed: int
) -> None:
    """Random histories of a table against a plain model: appends, deletes that wait or not, compactions."""
    chance = random.Random(seed)
    version = chance.choice([2, 3])
    table = new_table(format_version=version, partitioned_by=chance.choice([(), ("region",)]))
    model = Counter[int]()
    everybody = range(20)
    table.append([row(n) for n in everybody])
    model.update(everybody)
    if chance.random() < 0.7:
        jobs.run("index", key_sets=[["id"]])
    for step in range(8):
        some = chance.sample(everybody, 3)
        match chance.choice(["append", "upsert", "wait", "delete", "convert", "compact", "erase"]):
            case "append":
                table.append([row(n) for n in some], files=chance.choice([1, 2]))
                model.update(some)
            case "upsert":
                table.upsert([row(n) for n in some], key=["id", "region"])
                model |= Counter(some)
                model = Counter({n: 1 if n in some else count for n, count in model.items()})
            case "wait":
                table.delete_keys([{"id": key(n), "region": "eu"} for n in some])
                model = Counter({n: count for n, count in model.items() if n not in some})
            case "delete":
                jobs.run("delete", rows=[{"id": key(n)} for n in some], parameters={"key_columns": ["id"]})
                model = Counter({n: count for n, count in model.items() if n not in some})
            case "convert":
                jobs.run("convert")
            case "compact":
                table.compact()
            case "erase":
                assert erase(*some)["counts"]["gone"] == 3, (seed, step)
                model = Counter({n: count for n, count in model.items() if n not in some})
                assert files_with(some, place_of(table), jobs.index) == [], (seed, step)
        assert numbers_of(table) == sorted(model.elements()), (seed, step)
    gone = chance.sample(everybody, 8)
    assert erase(*gone)["counts"]["gone"] == 8
    assert numbers_of(table) == sorted(n for n in model.elements() if n not in gone)
    assert files_with(gone, place_of(table), jobs.index) == []
    jobs.run("convert")
    assert numbers_of(table) == sorted(n for n in model.elements() if n not in gone)
