"""What readers pay for deletes and small files: the model as data, and what is told of a table."""

import json
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.catalogs.measure import EqualityDelete, Measurement, Since, Volume
from service.db.database import utc_now
from service.index_health import reader_cost
from service.index_health.models import ReadCost
from service.index_health.reader_cost import store_reader_cost, store_savings, view_reader_cost
from service.reader_cost import HEADLINE, MODEL, ModelError, Read, Reader, Shape, model, read_model, shape_of
from service.records.health import TableHealth
from service.records.jobs import Job, JobKind
from service.scheduling import worth
from tests.service.conftest import Running, alike_on_both
from tests.service.iceberg_tables import ARROW, IcebergCatalog

# Sums of a few columns.
database_kind = alike_on_both

_NUMBER = st.integers(0, 10**6)
SHAPES = st.builds(
    Shape,
    data_files=_NUMBER,
    rows=_NUMBER,
    equality_delete_files=_NUMBER,
    equality_deletes=_NUMBER,
    vectors=_NUMBER,
    positions=_NUMBER,
    data_bytes=_NUMBER,
    delete_bytes=_NUMBER,
    key_columns=_NUMBER,
)
KINDS = st.tuples(st.sampled_from(Reader), st.sampled_from(Read))
SPARK_POINT = ("spark", "point")
NOW = utc_now()
WORN = Shape(400, 1_000_000, 60, 6_000, 300, 3_000, 10**8, 10**6)


@given(SHAPES, KINDS, st.sampled_from(list(WORN.as_json())), st.integers(1, 1000))
def test_nothing_more_to_read_makes_a_read_cheaper(
    shape: Shape, kind: tuple[Reader, Read], field: str, more: int
) -> None:
    grown = replace(shape, **{field: getattr(shape, field) + more})
    if field == "data_files":  # those that have vectors are no smaller for that
        grown = replace(grown, rows=-(-shape.rows * grown.data_files // max(shape.data_files, 1)))
    assert model().seconds(grown, *kind) >= model().seconds(shape, *kind) > 0


@given(SHAPES, KINDS, st.one_of(st.none(), _NUMBER), st.integers(1, 10**6))
def test_no_table_reads_dearer_for_having_been_rewritten(
    shape: Shape, kind: tuple[Reader, Read], partitions: int | None, target_file_bytes: int
) -> None:
    fresh = shape.fresh(partitions, target_file_bytes)
    assert model().seconds(fresh, *kind) <= model().seconds(shape, *kind)
    assert fresh.fresh(partitions, target_file_bytes) == fresh


@pytest.mark.parametrize(
    ("partitions", "files"),
    [(None, 400), (1, 10), (5, 14), (1_000, 400)],
    ids=["unknown", "none", "5", "many"],
)
def test_as_many_files_are_left_as_bytes_and_partitions_ask_for(partitions: int | None, files: int) -> None:
    assert WORN.fresh(partitions, 10**7) == Shape(files, 997_000, data_bytes=99_700_000)


def test_no_file_is_promised_to_go_where_nobody_knows_how_large_they_are() -> None:
    assert replace(WORN, data_bytes=0).fresh(1, 10**7).data_files == 400


def test_the_model_says_what_deletes_and_files_cost() -> None:
    for reader in Reader:
        for read in Read:
            fresh = model().seconds(WORN.fresh(1, 10**9), reader, read)
            assert model().seconds(WORN, reader, read) > 1.5 * fresh


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"coefficients": {"spark": {"full": {"row": 1, "data file": 1, "moon": 1}}}}, "no such terms: moon"),
        ({"coefficients": {"spark": {"full": {"row": -1, "data file": 1}}}}, "greater than 0"),
        ({"coefficients": {"spark": {"full": {"row": float("inf"), "data file": 1}}}}, "finite"),
        ({"coefficients": {"spark": {"full": {"row": 1}}}}, "spark, full: what a row or a data file"),
        ({"coefficients": {}}, "spark, full: what a row or a data file"),
        ({"measured_on": "lately"}, "measured_on"),
        ({"engine": "x"}, "engine"),
    ],
)
def test_a_model_that_is_not_whole_is_refused(wrong: dict[str, Any], told: str) -> None:
    given = json.loads(MODEL.read_text())
    for reader, reads in wrong.pop("coefficients", {"": {}}).items() or [("spark", {"full": {}})]:
        if reader:
            given["coefficients"][reader] |= reads
    with pytest.raises(ModelError, match=told):
        read_model(json.dumps(given | wrong))


def measurement(shape: Shape, *, is_partitioned: bool) -> Measurement:
    keys = tuple(range(shape.key_columns))
    deletes = EqualityDelete("d", shape.equality_deletes, shape.delete_bytes, keys, utc_now())
    everything = Volume(shape.data_files, shape.rows, shape.data_bytes + shape.delete_bytes)
    return Measurement(
        1,
        (deletes,) * shape.equality_delete_files,
        shape.data_files,
        {None: everything},
        has_identifier_fields=True,
        is_partitioned=is_partitioned,
        position_deletes=Volume(shape.vectors, shape.positions),
        target_file_bytes=10**6,
    )


def test_a_partitioned_table_has_no_file_too_many_until_a_job_tells_of_its_partitions() -> None:
    shape = Shape(40, 1000, 1, 5, 3, 7, 4 * 10**6, 100, 2)
    health = TableHealth(table_id="t")
    store_reader_cost(health, measurement(shape, is_partitioned=True), NOW)
    assert health.reader_shapes["now"] == shape.as_json()
    before = view_reader_cost(health)
    health.partitions = 7
    after = view_reader_cost(health)
    assert before is not None
    assert after is not None
    assert (before.fresh_data_files, after.fresh_data_files) == (40, 10)
    assert after.reads[0].enrolled_overhead_seconds > before.reads[0].enrolled_overhead_seconds > 0


def test_partitions_that_a_table_gets_later_are_not_known_until_a_job_counts_them() -> None:
    shape = Shape(40, 1000, data_bytes=4 * 10**6)
    health = TableHealth(table_id="t")
    fresh_files = []
    for is_partitioned in (False, True):
        store_reader_cost(health, measurement(shape, is_partitioned=is_partitioned), NOW)
        cost = view_reader_cost(health)
        assert cost is not None
        fresh_files.append(cost.fresh_data_files)
    assert fresh_files == [4, 40]


def test_a_table_is_as_fresh_as_a_rewriting_by_its_policy_would_leave_it() -> None:
    shape = Shape(40, 1000, data_bytes=4 * 10**6)
    files = []
    for target_file_bytes in (0, 4 * 10**5):
        health = TableHealth(table_id="t")
        store_reader_cost(health, measurement(shape, is_partitioned=False), NOW, target_file_bytes)
        told = view_reader_cost(health)
        assert told is not None
        files.append(told.fresh_data_files)
    assert files == [4, 10]


def cost_of(service: Running, table: dict[str, Any]) -> dict[str, Any]:
    service.poll(table["id"])
    found = service.admin.get(f"/tables/{table['id']}/health").json()["reader_cost"]
    assert isinstance(found, dict)
    return found


def full_read(cost: dict[str, Any]) -> dict[str, Any]:
    first: dict[str, Any] = cost["reads"][0]
    assert (first["reader"], first["read"]) == ("spark", "full")
    return first


def test_a_table_tells_what_its_readers_pay_and_what_was_saved(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    for number in range(3):
        iceberg.append("db.t", [10 + number])
    iceberg.delete_keys("db.t", [10])
    table = service.enroll()
    assert service.admin.get(f"/tables/{table['id']}/health").json()["reader_cost"] is None
    at_first = cost_of(service, table)
    assert (at_first["data_files"], at_first["delete_files"], at_first["fresh_data_files"]) == (4, 1, 1)
    assert at_first["delete_bytes"] > 0
    assert at_first["data_bytes"] > 0
    read = full_read(at_first)
    assert read["seconds"] > read["fresh_seconds"] > 0
    assert read["overhead_ratio"] == pytest.approx(read["seconds"] / read["fresh_seconds"])
    assert read["enrolled_overhead_seconds"] == pytest.approx(read["overhead_seconds"])
    assert read["before_seconds"] is None
    assert (at_first["avoided_seconds"], at_first["saved_seconds"]) == (0, 0)

    iceberg.delete_keys("db.t", [11])
    iceberg.delete_positions("db.t", 2)
    told = cost_of(service, table)
    assert told["delete_files"] == 3
    worse = full_read(told)
    assert worse["before_seconds"] is None
    assert worse["overhead_seconds"] > worse["enrolled_overhead_seconds"]

    service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "convert"}).raise_for_status()
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    service.finish(assignment)
    loaded = iceberg.catalog.load_table("db.t")
    loaded.delete("id = 12", snapshot_properties={"icestream.job-id": assignment["job"]["id"]})
    told = cost_of(service, table)
    better = full_read(told)
    assert better["seconds"] < worse["seconds"]
    assert better["before_seconds"] == pytest.approx(worse["seconds"])
    avoided = worse["overhead_seconds"] - better["overhead_seconds"]
    assert (told["avoided_seconds"], told["saved_seconds"]) == (pytest.approx(avoided), 0)
    loaded.append(pa.table({"id": [20], "region": ["eu"]}, schema=ARROW))
    told = cost_of(service, table)
    assert told["avoided_seconds"] == pytest.approx(avoided), "by the writer nothing is saved"
    assert told["saved_seconds"] > 0
    overview = service.admin.get("/overview").json()
    figures = service.client_with({}).get(f"{service.url}/metrics").text
    assert overview["read_avoided_seconds"] == pytest.approx(avoided)
    assert overview["read_saved_seconds"] == told["saved_seconds"]
    saved = f"icestream_read_saved_seconds_total {told['saved_seconds']}"
    assert saved in figures
    assert f"icestream_read_avoided_seconds {overview['read_avoided_seconds']}" in figures
    service.admin.delete(f"/tables/{table['id']}").raise_for_status()
    assert service.admin.get("/overview").json()["read_saved_seconds"] == 0
    assert saved in service.client_with({}).get(f"{service.url}/metrics").text, "a counter never falls"


NOBODY, JOBS = Since(by_jobs=False, by_others={}), Since(by_jobs=True, by_others={})
COMPACTION: Since = replace(JOBS, by_others=dict.fromkeys([JobKind.REWRITE_DATA_FILES]))  # type: ignore[arg-type]


class Looks:
    """At a table, of which the policy says that it is read twice an hour."""

    def __init__(self) -> None:
        self.health, self.now = TableHealth(table_id="t"), utc_now()

    def __call__(self, shape: Shape, since: Since, hours: float) -> tuple[float, float]:
        """What each read is spared from now on, and all reads were so far."""
        self.now += timedelta(hours=hours)
        before = self.health.reader_shapes.get("now")
        store_reader_cost(self.health, measurement(shape, is_partitioned=False), self.now)
        seen = shape_of(before) if before is not None else None
        store_savings(self.health, seen, since, 48, self.now)
        return self.health.read_avoided_seconds, self.health.read_saved_seconds


def cost(shape: Shape) -> float:
    return model().seconds(shape, *HEADLINE)


def test_a_poll_works_out_once_what_reads_cost(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the reads that tables are compared by; all others are for whoever looks at the table."""
    service.register(iceberg)
    iceberg.append("db.t", [1])
    table = service.enroll()
    asked: Counter[tuple[Reader, Read]] = Counter()
    real = reader_cost._read_cost

    def read_cost(health: TableHealth, reader: Reader, read: Read) -> ReadCost:
        asked[reader, read] += 1
        return real(health, reader, read)

    monkeypatch.setattr(reader_cost, "_read_cost", read_cost)
    service.poll(table["id"])
    assert asked == {HEADLINE: 1, (HEADLINE[0], Read.POINT): 1}
    asked.clear()
    assert service.admin.get(f"/tables/{table['id']}/health").json()["reader_cost"]["reads"]
    assert asked.keys() == set(product(Reader, Read))


def test_what_jobs_take_from_readers_adds_up_over_time() -> None:
    fresh, look = Shape(4, 10**6, data_bytes=4 * 10**6), Looks()
    pending, merged = replace(fresh, equality_delete_files=1, equality_deletes=9), replace(fresh, vectors=1)
    assert look(fresh, JOBS, 0) == (0, 0), "before it was enrolled, nobody was spared anything by it"
    assert look(pending, NOBODY, 1) == (0, 0)
    each = cost(pending) - cost(merged)
    assert look(merged, JOBS, 1) == pytest.approx((each, 0))
    assert look(pending, NOBODY, 3) == pytest.approx((each, 6 * each)), "two reads an hour"
    assert look(merged, JOBS, 1) == pytest.approx((2 * each, 8 * each))
    assert look(pending, JOBS, 0)[0] == pytest.approx(2 * each), "a job that makes reads dearer saves none"
    assert look(replace(pending, rows=10**6 // 2), NOBODY, 0)[0] == pytest.approx(each), "half of it is gone"
    assert look(merged, COMPACTION, 1) == pytest.approx((0, 10 * each)), "others would have done that"


def test_what_a_writer_removes_beside_a_job_is_not_the_job_s() -> None:
    fresh, look = Shape(1, 10**6, data_bytes=10**6), Looks()
    worn = replace(fresh, rows=10**6 + 1000, positions=1000, vectors=1, data_bytes=10**6 + 1000)
    pending = replace(worn, equality_delete_files=1, equality_deletes=90)
    look(pending, JOBS, 0)
    each = look(fresh, JOBS, 0)[0]
    assert each == pytest.approx(cost(pending) - cost(fresh)), "rows that were deleted went with them"
    look(pending, NOBODY, 0)
    few = Shape(1, (10**6 - 90) // 100, data_bytes=10**4)
    assert look(few, JOBS, 0)[0] == pytest.approx(each * 0.02, rel=1e-3), "of what came before, and of this"


def test_after_a_rollback_nobody_knows_what_a_job_took_from_readers() -> None:
    fresh, look = Shape(1, 10**6, data_bytes=10**6), Looks()
    pending = replace(fresh, equality_delete_files=9, equality_deletes=90)
    look(pending, NOBODY, 0)
    each = look(fresh, JOBS, 0)[0]
    look(pending, NOBODY, 0)
    for since in (JOBS, COMPACTION):
        assert look(fresh, replace(since, is_whole=False), 0)[0] == each > 0


def test_no_figure_of_metadata_or_clock_is_believed_to_spare_readers_without_end() -> None:
    look, fresh = Looks(), Shape(1, 10**6, data_bytes=10**6)

    def worn(shape: Shape) -> Shape:
        return replace(shape, rows=shape.rows + 10**13, positions=10**13, vectors=1)

    look(worn(fresh), NOBODY, 0)
    once = look(fresh, JOBS, 0)[0]
    assert once == pytest.approx(100 * cost(fresh))
    assert look(fresh, NOBODY, 24 * 365)[1] == pytest.approx(48 * once), "a day at most"
    many = replace(fresh, rows=10**13, data_bytes=10**13)
    look(worn(many), NOBODY, 0)
    assert look(many, JOBS, 0)[0] == 86_400


def test_rewritings_that_take_some_deleted_rows_each_are_one_that_took_most() -> None:
    health = TableHealth(table_id="t")
    for hours, positions in enumerate((100, 60, 55, 40)):
        shape = replace(WORN, positions=positions)
        at = NOW + timedelta(hours=hours)
        store_reader_cost(health, measurement(shape, is_partitioned=False), at)
        assert health.rows_deleted_since == (NOW if positions > 50 else at)


def test_tables_are_compared_by_what_their_readers_pay_and_all_are_added_up(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    for name, files in (("db.t", 1), ("db.u", 6), ("db.v", 4)):
        if name != "db.t":
            iceberg.create(name)
        for number in range(files):
            iceberg.append(name, [10 + number])
        iceberg.delete_keys(name, [10])
        service.poll(service.enroll(name)["id"])
    listed = service.admin.get("/tables?sort=-read_overhead_seconds").json()["items"]
    assert [one["name"] for one in listed] == ["db.u", "db.v", "db.t"]
    overview = service.admin.get("/overview").json()
    figures = service.client_with({}).get(f"{service.url}/metrics").text
    healths = [service.admin.get(f"/tables/{one['id']}/health").json() for one in listed]
    costs = [health["reader_cost"] for health in healths]
    reads = [read for cost in costs for read in cost["reads"]]
    points = [read for read in reads if (read["reader"], read["read"]) == SPARK_POINT]
    totals = {
        "read_seconds": sum(one["read_seconds"] for one in listed),
        "read_overhead_seconds": sum(one["read_overhead_seconds"] for one in listed),
        "read_before_seconds": sum(one["read_seconds"] for one in listed),
        "point_read_seconds": sum(read["seconds"] for read in points),
        "point_read_overhead_seconds": sum(read["overhead_seconds"] for read in points),
        "delete_files": 3,
        "delete_bytes": sum(cost["delete_bytes"] for cost in costs),
        "snapshots": sum(health["snapshots"] for health in healths),
    }
    for name, total in totals.items():
        assert overview[name] == pytest.approx(total), name
        assert f"icestream_{name} {float(overview[name])}" in figures
    assert overview["read_seconds"] > overview["read_overhead_seconds"] > 0
    assert len(points) == 3
    assert min(totals.values()) > 0
    with service.database.write() as session:
        fullest = session.get_one(TableHealth, listed[0]["id"])
        fullest.small_data_files, fullest.small_delete_files, fullest.small_manifests = 40, 30, 20
        session.add(fullest)
    overview = service.admin.get("/overview").json()
    manifests = 20 + sum(health["small_manifests"] for health in healths[1:])
    small = {"data_file": 40, "delete_file": 30, "manifest": manifests}
    assert (overview["small_data_files"], overview["small_delete_files"]) == (40, 30)
    assert overview["small_manifests"] == manifests
    figures = service.client_with({}).get(f"{service.url}/metrics").text
    for kind, number in small.items():
        assert f'icestream_small_files{{kind="{kind}"}} {float(number)}' in figures


def test_what_maintenance_has_cost_is_added_up_beyond_history(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    iceberg.delete_keys("db.t", [1])
    table = service.enroll()
    assert cost_of(service, table)["maintenance_seconds"] == 0
    worker = service.start_worker()
    took = 0.0
    for dry_run in (True, False):
        body = {"kind": "convert", "dry_run": dry_run}
        job = service.admin.post(f"/tables/{table['id']}/jobs", json=body).json()
        while (assignment := service.claim(worker)) is not None:
            service.finish(assignment)
        if not dry_run:
            (attempt,) = service.admin.get(f"/jobs/{job['id']}").json()["attempts"]
            took += attempt["seconds"]
    told = cost_of(service, table)["maintenance_seconds"]
    assert told >= took > 0
    assert service.admin.get("/overview").json()["maintenance_seconds"] == pytest.approx(told)
    figures = service.client_with({}).get(f"{service.url}/metrics").text
    assert f"icestream_maintenance_seconds {told}" in figures


def test_a_policy_may_go_by_what_readers_pay_and_what_the_table_s_jobs_took(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.register(iceberg)
    table = service.enroll()
    convert = {"when": "worthwhile", "age_seconds": 86_400, "reads_per_day": 1}
    body = {"name": "thrifty", "settings": {"index": {"enabled": False}, "convert": convert}}
    service.admin.post("/policies", json=body).raise_for_status()
    attached = {"level": "table", "table_id": table["id"], "policy": "thrifty"}
    service.admin.put("/policy-attachments", json=attached).raise_for_status()
    iceberg.delete_keys("db.t", [1])
    service.poll(table["id"])
    body = {"kind": "convert"}
    service.admin.post(f"/tables/{table['id']}/jobs", json=body).raise_for_status()
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    with service.database.write() as session:
        job = session.get_one(Job, assignment["job"]["id"])
        assert job.started_at is not None
        job.started_at -= timedelta(seconds=120)
        session.add(job)
    service.finish(assignment, result={"commits": 1})
    for keys in range(30):
        iceberg.delete_keys("db.t", [keys])
    service.poll(table["id"])
    health = service.admin.get(f"/tables/{table['id']}/health").json()
    decision = health["decisions"]["convert"]
    assert (decision["action"], decision["code"]) == ("wait", "below-triggers"), "30 files are no reason"
    assert "a conversion costs 120 s and leaves up to 1 vector." in decision["sentence"]
    monkeypatch.setattr(worth, "LEAST_SECONDS", 0.0)  # this table is small
    body = {"settings": {"index": {"enabled": False}, "convert": convert | {"max_read_ratio": 1.01}}}
    found = service.admin.get("/policies/thrifty")
    headers = {"If-Match": found.headers["etag"]}
    service.admin.patch(f"/policies/{found.json()['id']}", json=body, headers=headers).raise_for_status()
    service.poll(table["id"])
    (job_told,) = service.admin.get("/jobs?status=queued").json()["items"]
    assert job_told["kind"] == "convert"
    assert "(policy: 1.01): it joins 31 delete files with 1 data file." in job_told["trigger"]
