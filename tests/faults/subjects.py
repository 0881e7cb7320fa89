"""Tables that jobs of a cluster's workers are run on, and what must hold of each after any job."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.factories import TableBuilder, equality_delete_files, visible_rows
from tests.faults.cluster import Cluster
from tests.faults.control_plane import LEASE_SECONDS
from tests.faults.injection import Fault
from tests.faults.recovery import TALLY
from tests.faults.tables import (
    assert_no_content_is_unnamed,
    assert_nothing_is_left,
    commits_by_job,
    local,
    strays,
)
from tests.integration.icestream import Json
from tests.patience import wait_until

BATCH = 2_000
STAGING = "ingest"
COMMITS = {"upsert": 1, "rewrite_data_files": 2, "rewrite_manifests": 1, "rewrite_position_delete_files": 1}
"""Of a job of each kind; the second converts first."""
PARAMETERS: dict[str, Json] = {
    "expire_snapshots": {"older_than_seconds": 0, "retain_last": 1},
    "rewrite_position_delete_files": {"min_input_files": 2},
}
MAINTENANCE = (
    "rewrite_data_files",
    "rewrite_position_delete_files",
    "rewrite_manifests",
    "expire_snapshots",
    "remove_orphan_files",
)


class Subject:
    """A table with an index, and what must be visible in it."""

    def __init__(
        self,
        cluster: Cluster,
        spark: SparkSession,
        identifier: str,
        format_version: Any,
        policy: str = "impatient",
        *,
        batch: int = BATCH,
        store: Mapping[str, str] | None = None,
    ) -> None:
        """batch: rows that each `write` adds. store: properties of the table's, if it is not a local one."""
        self.cluster, self.spark = cluster, spark
        self._batch, self._store = batch, store
        self.table = TableBuilder.create(
            spark, identifier, "id bigint, v bigint", format_version=format_version
        )
        self.table.writer = "iceberg" if store else "arrow"
        self.table_id = cluster.enroll(identifier, key_sets=[["id"]], policy=policy)
        self.rows: Counter[tuple[int, int]] = Counter()
        self._next = 0
        self._dry_run_id = ""
        self.write()

    def write(self, files: int = 3) -> None:
        """Some data files, and deletes of one row in four of these and of older ones."""
        ids = range(self._next, self._next + self._batch)
        self._next += self._batch
        self.table.append(pa.table({"id": ids, "v": ids}), files=files)
        gone = [i for i in range(self._next) if (i + self._next // self._batch) % 4 == 0]
        self.table.delete_keys(pa.table({"id": gone}))
        self.rows.update((i, i) for i in ids)
        self._forget(gone)

    def delete_positions(self) -> None:
        """Of another writer's, in a data file of its own: each commit leaves one more file of these."""
        ids = range(self._next, self._next + 8)
        self._next += 8
        (path,) = self.table.append(pa.table({"id": ids, "v": ids}))
        for position in range(4):
            self.table.delete_positions({path: [position]})
        self.rows.update((i, i) for i in ids[4:])

    def leave_orphans(self) -> None:
        """Files that nobody needs, old enough for a removal, and a dry run that has listed them."""
        for number in range(6):
            orphan = local(self.table.metadata.location) / "data" / f"left-{number}.parquet"
            orphan.write_bytes(b"left")
            os.utime(orphan, (1e9, 1e9))
        dry_run = self.cluster.wait_for_job(
            self.cluster.submit(self.table_id, "remove_orphan_files", dry_run=True)
        )
        assert dry_run["result"]["orphans"]["orphan_files"] == 6, dry_run
        self._dry_run_id = dry_run["id"]

    def submit(self, kind: str) -> str:
        """Asks for a job that does what `prepare` has left for it; returns its id."""
        parameters = PARAMETERS.get(kind, {})
        if kind == "remove_orphan_files":
            parameters = {"dry_run_job_id": self._dry_run_id}
        return self.cluster.submit(self.table_id, kind, parameters=parameters)

    def upsert(self) -> str:
        """Asks for a job that replaces some rows and adds others; returns its id."""
        ids = [*sorted(i for i, _ in self.rows)[:5], *range(self._next, self._next + 5)]
        self._next += 5
        rows = [{"id": i, "v": -i - 1} for i in ids]
        self._forget(ids)
        self.rows.update((row["id"], row["v"]) for row in rows)
        job_id: str = self.cluster.post(f"/tables/{self.table_id}/rows/upsert", {"rows": rows})["id"]
        return job_id

    def stage(self) -> None:
        """Commits upserts and deletes of some rows to a staging branch, which the enrolment gets with it."""
        if STAGING not in self.table.metadata.refs:
            self.table.java.manageSnapshots().createBranch(STAGING).commit()
            body, path = {"publish": {"from": STAGING}}, f"/tables/{self.table_id}"
            self.cluster.http.patch(path, json=body, headers={"If-Match": "*"}).raise_for_status()
        for _ in range(2):
            ids = [*sorted(i for i, _ in self.rows)[:5], *range(self._next, self._next + 5)]
            self._next += 5
            new = pa.table({"id": ids[1:], "v": [-i - 1 for i in ids[1:]]})
            deletes = self.table.equality_deletes(pa.table({"id": ids}))
            self.table.commit(*self.table.data_files(new), *deletes, branch=STAGING)
            self._forget(ids)
            self.rows.update((i, -i - 1) for i in ids[1:])

    def erase(self) -> str:
        """Asks for the erasure of some rows that are visible, and of others; returns the id of its job."""
        ids = [*sorted(i for i, _ in self.rows)[:5], self._next]
        self._forget(ids)
        body = {"keys": [{"id": i} for i in ids], "key_columns": ["id"], "tables": [self.table_id]}
        (of_table,) = self.cluster.post("/erasures", body)["tables"]
        job_id: str = of_table["job_id"]
        return job_id

    def _forget(self, ids: Iterable[int]) -> None:
        """As they were written at first, or by an upsert."""
        for i in ids:
            self.rows.pop((i, i), None)
            self.rows.pop((i, -i - 1), None)

    def check_rows(self) -> None:
        assert visible_rows(self.spark, self.table.identifier) == self.rows

    def check_end(self, kind: str, job: Json, *, commits: int = 1) -> None:
        """What holds after any job, however many attempts it took."""
        assert job["status"] == "succeeded", job
        TALLY.add(job["attempts"], LEASE_SECONDS)
        self.check_rows()
        assert commits_by_job(self.table)[job["id"]] == {**COMMITS, "convert": commits}.get(kind, 0)
        assert [attempt["status"] for attempt in job["attempts"]].count("succeeded") == 1
        assert job["attempts"][-1]["status"] == "succeeded"
        assert all(attempt["ended_at"] for attempt in job["attempts"])
        assert self.cluster.get("/jobs", status="running")["items"] == []
        assert not [one for one in self.cluster.get("/workers")["items"] if one["job_id"]]
        events = self.cluster.get(f"/jobs/{job['id']}/events", limit=500)["items"]
        kinds = Counter(event["kind"] for event in events)
        assert kinds["job.running"] == len(job["attempts"])
        if kind in ("convert", "rewrite_data_files"):
            assert_nothing_is_left(self.table, self._store)
        if kind in MAINTENANCE:
            assert_no_content_is_unnamed(self.table)
        if kind == "expire_snapshots":
            assert len(self.table.metadata.snapshots) == 1
        if kind in ("index", "rebuild"):
            (key_set,) = self.cluster.get(f"/tables/{self.table_id}/health")["key_sets"]
            assert key_set["coverage"] == 1.0


def prepare(subject: Subject, kind: str) -> None:
    """Work for a job of this kind, with an index to look up in."""
    subject.cluster.inject()
    if kind == "rewrite_position_delete_files":
        subject.delete_positions()
        return
    if kind == "remove_orphan_files":
        subject.leave_orphans()
        return
    subject.write()
    if kind != "index":
        subject.cluster.run(subject.table_id, "index")
    if kind == "expire_snapshots":
        subject.cluster.run(subject.table_id, "convert")  # whose deletes nobody needs once the past is gone
    if kind == "compact":
        subject.write()
        subject.cluster.run(subject.table_id, "index")


def version_for(kind: str, number: int) -> int:
    """Of the table that the case of this number is tried on: both formats take their turn."""
    return 2 if kind == "rewrite_position_delete_files" else 2 + number % 2  # V3 has vectors instead


def check_drain(cluster: Cluster, subject: Subject, kind: str, fault: Fault) -> None:
    fired = cluster.inject(fault)
    job_id = cluster.submit(subject.table_id, kind)
    cluster.wait_until_fired(fired, fault)
    worker = cluster.worker_of(cluster.get(f"/jobs/{job_id}")["attempts"][0])
    pid = worker.pid
    worker.send(signal.SIGTERM)
    # After STOP_SECONDS, or on its own, it would end without handing anything back.
    wait_until(lambda: worker.pid != pid, "the worker to end")
    job = cluster.wait_for_job(job_id)
    subject.check_end(kind, job)
    assert [attempt["status"] for attempt in job["attempts"]] == ["released", "succeeded"]


Subjects = Callable[..., Subject]
"""By format version, and use."""


def check_that_the_index_is_whole_and_its_place_holds_nothing_else(
    cluster: Cluster, subjects: Subjects
) -> None:
    """After whatever a file of tests has done to the tables of both format versions."""
    cluster.inject()
    for format_version in (2, 3):
        subject = subjects(format_version)
        cluster.run(subject.table_id, "index")
        cluster.run(subject.table_id, "convert")
        assert equality_delete_files(subject.spark, subject.table.identifier) == []
        subject.check_rows()
        assert cluster.run(subject.table_id, "verify")["key_sets"][0]["differences"] == 0

        for _ in range(3):
            cluster.run(subject.table_id, "compact")
        assert strays(subject.table, cluster.index_place.as_uri()) == set()
        assert_no_content_is_unnamed(subject.table)
        subject.check_rows()
