"""Tables and indexes on S3, whose network breaks at any stage: no row changes, the next attempt ends it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileSelector, S3FileSystem
from pyiceberg.catalog.sql import SqlCatalog as BackingCatalog
from pyspark.sql import SparkSession

from tests.aws import Aws, sessions_only, table_bucket, vended
from tests.factories import TableBuilder, equality_delete_files, register_jdbc_catalog, visible_rows
from tests.faults.cluster import Cluster
from tests.faults.injection import Fault, release
from tests.faults.live_files import look
from tests.faults.proxy import CUT, HANG, PASS, Mode, Proxy, answer, lose, slow, truncate
from tests.faults.subjects import PARAMETERS, Subject, prepare, version_for
from tests.faults.tables import (
    Named,
    commits_by_job,
    orphans,
    strays,
    table_with_deletes,
    unnamed,
)
from tests.jobs import Jobs, RecordingReporter, SqlCatalog
from tests.patience import wait_until
from tests.rest_catalog import commit_by_java, running_rest_catalog
from tests.s3 import S3, s3_server
from tests.sigv4 import Signatures, signed_only
from tests.thorough import exhaustive_unless
from worker.deletes.existing import FILES_AT_ONCE
from worker.io.storage import Storage
from worker.process.errors import JobError
from worker.spark.tasks import LOCAL_ROWS, TaskRunner

pytestmark = pytest.mark.integration

ROWS = 300
WAREHOUSE = "s3://lake/warehouse"
INDEX_WAREHOUSE = "s3://lake/index"
_numbers = count(1)
OTHERS = {"s3.access-key-id": "another", "s3.secret-access-key": "for others"}


def s3_catalog(file: Path, server: S3) -> SqlCatalog:
    """A catalog in SQLite whose tables lie on S3."""
    properties = {
        "uri": f"sqlite:///{file}",
        "warehouse": WAREHOUSE,
        **server.properties(),
        # A test can't wait for as many repetitions as a job can.
        "s3.retry.num-retries": "1",
        "s3.retry.min-wait-ms": "100",
        "http-client.apache.socket-timeout-ms": "1000",
        "http-client.apache.connection-timeout-ms": "1000",
        "s3.connect-timeout": "1",
        "s3.request-timeout": "1",
    }
    return SqlCatalog("s3", properties)


@pytest.fixture(scope="session")
def server() -> Iterator[S3]:
    with s3_server() as server:
        server.create_bucket("lake")
        yield server


@pytest.fixture(scope="session")
def proxy(server: S3) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def catalog_file(spark: SparkSession, server: S3, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Spark knows the catalog as `s3`, by a network of its own that stays well."""
    file = tmp_path_factory.mktemp("s3") / "catalog.db"
    further = {
        "jdbc.busy_timeout": "60000",
        "io-impl": "org.apache.iceberg.io.ResolvingFileIO",
        "s3.endpoint": f"http://127.0.0.1:{server.port}",
        "s3.access-key-id": "key",
        "s3.secret-access-key": "secret",
        "s3.path-style-access": "true",
        "client.region": "us-east-1",
    }
    register_jdbc_catalog(spark, "s3", f"jdbc:sqlite:{file}", WAREHOUSE, further)
    return file


@pytest.fixture
def format_version() -> int:
    return 3


@pytest.fixture
def table(spark: SparkSession, catalog_file: Path, format_version: int) -> TableBuilder:
    return table_with_deletes(spark, f"s3.db.t{next(_numbers)}", format_version, ROWS, "iceberg")


EXPECTED = Counter((i, i) for i in range(ROWS) if i % 3)


class S3Jobs(Jobs):
    """Jobs whose network breaks when a stage begins."""

    def __init__(self, spark: SparkSession, catalog: SqlCatalog, identifier: str, proxy: Proxy) -> None:
        super().__init__(spark, catalog, identifier, Path.cwd())
        self.index_location = f"{INDEX_WAREHOUSE}/{identifier}"
        self.proxy = proxy
        self.broken: tuple[str, Mode] | None = None
        real = self.reporter.progress

        def progress(stage: str, done: int, total: int, unit: str, message: str | None = None) -> None:
            real(stage, done, total, unit, message)
            if self.broken is not None and stage == self.broken[0]:
                # Once: what the network does after that is for the mode to say.
                proxy.set(self.broken[1])
                self.broken = None

        self.reporter.progress = progress  # type: ignore[method-assign]


@pytest.fixture
def s3_jobs(spark: SparkSession, catalog_file: Path, proxy: Proxy, table: TableBuilder) -> S3Jobs:
    catalog = s3_catalog(catalog_file, S3(proxy.port))
    return S3Jobs(spark, catalog, table.identifier, proxy)


# Each takes as long as the clients of Arrow and of Java go on trying.
BREAKS = [
    ("index", "index", truncate(300)),
    ("index", "commit_index", CUT),
    ("convert", "plan", answer(503)),
    ("convert", "read", HANG),
    ("convert", "read", truncate(1000)),  # within a file's content
    ("convert", "lookup", truncate(1000)),
    ("convert", "deletes", CUT),
    ("convert", "commit", answer(503)),
    ("convert", "report", CUT),
    ("compact", "compact", CUT),
    ("rewrite_data_files", "rewrite", CUT),
    ("rewrite_data_files", "commit", answer(503)),
    ("rewrite_position_delete_files", "rewrite", CUT),
    ("rewrite_position_delete_files", "commit", answer(503)),
    ("rewrite_manifests", "rewrite", CUT),
    ("rewrite_manifests", "rewrite", answer(503)),
    ("expire_snapshots", "expire", CUT),
    ("expire_snapshots", "expire", answer(503)),
    ("expire_snapshots", "delete", CUT),
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "stage", "mode", "format_version"),
    exhaustive_unless(
        lambda case: case[:3] == ("convert", "read", HANG),
        [(*case, version_for(case[0], 1)) for case in BREAKS],
    ),
)
def test_a_network_that_breaks_costs_an_attempt_and_no_row(
    kind: str,
    stage: str,
    mode: Mode,
    format_version: int,
    s3_jobs: S3Jobs,
    table: TableBuilder,
    spark: SparkSession,
    server: S3,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if kind != "index":
        s3_jobs.run("index")
    if kind in ("compact", "rewrite_manifests"):
        table.append([{"id": ROWS, "v": ROWS}])
        s3_jobs.run("index")
        table.delete_keys([{"id": ROWS}])
    if kind in ("rewrite_data_files", "rewrite_position_delete_files", "expire_snapshots"):
        s3_jobs.run("convert")  # which leaves a third of the rows deleted
    if kind == "rewrite_position_delete_files":
        for _ in range(2):
            table.delete_positions({path: [0] for path in table.data_file_paths})  # once more
    run = partial(s3_jobs.run, kind, job_id="broken", parameters=PARAMETERS.get(kind))
    s3_jobs.broken = (stage, mode)
    try:
        with pytest.raises(JobError) as failed:
            run()
    finally:
        s3_jobs.proxy.set(PASS)
    assert s3_jobs.broken is None, "nothing broke"
    assert failed.value.retryable, failed.value
    assert failed.value.code != "internal_error"
    assert visible_rows(spark, table.identifier) == EXPECTED

    assert look(table).gone == set()
    left = s3_jobs.reporter.left_by("broken")
    done = run(attempt=2, ended_attempts=[left])
    s3_jobs.run("convert", ended_attempts=[] if done.cleared else [left])
    assert orphans(table, server.properties()) == set()
    assert visible_rows(spark, table.identifier) == EXPECTED
    assert equality_delete_files(spark, table.identifier) == []
    assert max(commits_by_job(table).values()) == 1
    verified = s3_jobs.run("verify").result
    assert all(key_set["differences"] == 0 for key_set in verified["key_sets"])

    # Iceberg can't take away what it has written of manifests while the store is out of reach.
    may_stay = {".avro"} if kind == "rewrite_manifests" and mode == CUT else set[str]()
    assert {Path(name).suffix for name in unnamed(table, server.properties())} <= may_stay
    if kind not in ("index", "compact", "rewrite_data_files"):  # which write into the index
        return
    if stage == "commit_index":
        assert strays(table, s3_jobs.index_location, server.properties())
    monkeypatch.setattr("worker.index.compaction.KEEP_SECONDS", 0)
    for kind in ("index", "compact", "compact"):
        s3_jobs.run(kind)
    assert strays(table, s3_jobs.index_location, server.properties()) == set()


@pytest.mark.thorough
def test_a_file_in_a_store_that_a_table_or_its_index_needs_is_missed_once_it_is_gone(
    s3_jobs: S3Jobs, table: TableBuilder, server: S3
) -> None:
    """By what looks for all of them at the end of each test of a fault."""
    s3_jobs.run("index")
    storage = Storage(server.properties())
    filesystem, place = storage.resolve(s3_jobs.index_location)
    of_index = filesystem.get_file_info(FileSelector(place, recursive=True))
    (manifest, *_) = [f"s3://{one.path}" for one in of_index if "/manifest/" in one.path]
    found = look(table)
    assert (found.gone, found.files > len(Named.by(table, server.properties()).locations)) == (set(), True)
    for location in (*table.data_file_paths, manifest):
        content = storage.read(location)
        storage.delete(location)
        assert any(Path(location).name in said for said in look(table).gone), location
        with storage.open_output(location) as file:
            file.write(content)


@pytest.mark.thorough
def test_orphan_files_of_an_object_store_are_listed_and_removed(
    s3_jobs: S3Jobs, table: TableBuilder, spark: SparkSession, server: S3
) -> None:
    """The table's own files, which are as old, stay."""
    orphan = f"{table.metadata.location}/data/left.parquet"
    with Storage(server.properties()).open_output(orphan) as file:
        file.write(b"left")
    how: dict[str, Any] = {"parameters": {"older_than_seconds": 0}}
    told = s3_jobs.run("remove_orphan_files", dry_run=True, **how).result["orphans"]
    assert (told["files"], told["orphan_files"]) == ([orphan], 1)
    how |= {"orphan_files": told["files"], "orphans_older_than": told["older_than"]}
    done = s3_jobs.run("remove_orphan_files", **how).result["orphans"]
    assert (done["files_deleted"], done["bytes_deleted"], done["files_failed"]) == (1, 4, 0)
    assert not Storage(server.properties()).exists(orphan)
    assert visible_rows(spark, table.identifier) == EXPECTED


@pytest.mark.parametrize("format_version", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_delete_files_of_a_dead_attempt_are_removed_from_the_store(
    s3_jobs: S3Jobs, table: TableBuilder, spark: SparkSession, server: S3
) -> None:
    """One is there although nobody was told, and the store is away before it could be removed."""
    s3_jobs.broken = ("deletes", lose(b"ETag", then=CUT))
    try:
        with pytest.raises(JobError):
            s3_jobs.run("convert", job_id="broken")
        assert s3_jobs.proxy.mode == CUT
    finally:
        s3_jobs.proxy.set(PASS)
    assert orphans(table, server.properties())
    left = s3_jobs.reporter.left_by("broken")
    assert s3_jobs.run("convert", job_id="broken", attempt=2, ended_attempts=[left]).cleared
    assert orphans(table, server.properties()) == set()
    assert commits_by_job(table) == {"broken": 1}
    assert visible_rows(spark, table.identifier) == EXPECTED
    assert equality_delete_files(spark, table.identifier) == []


def test_a_staging_branch_in_a_store_is_published(
    s3_jobs: S3Jobs, table: TableBuilder, spark: SparkSession, server: S3
) -> None:
    s3_jobs.run("convert")
    table.java.manageSnapshots().createBranch("ingest").commit()
    deletes = table.equality_deletes([{"id": 1}, {"id": 2}])
    table.commit(*table.data_files([{"id": 1, "v": 7}]), *deletes, branch="ingest")

    done = s3_jobs.run("publish", parameters={"from": "ingest"}).result

    assert (done["rows_added"], done["rows_deleted"]) == (1, 2)
    assert done["files_cleared"] > 0
    left = EXPECTED - Counter([(1, 1), (2, 2)]) + Counter([(1, 7)])
    assert visible_rows(spark, table.identifier) == left
    assert orphans(table, server.properties()) == set()


@pytest.mark.thorough
def test_rows_are_written_and_erased_in_a_store(
    s3_jobs: S3Jobs, table: TableBuilder, spark: SparkSession, server: S3
) -> None:
    by_id = {"key_columns": ["id"]}
    s3_jobs.run("upsert", rows=[{"id": i, "v": -i} for i in (1, 2, 1000)], parameters=by_id)
    s3_jobs.run("delete", rows=[{"id": 4}], parameters=by_id)
    erased = [1, 7, 1000, 5000]
    parameters = {**by_id, "erasure_id": "e", "expire_snapshots": True}
    erasure = s3_jobs.run("erase", rows=[{"id": i} for i in erased], parameters=parameters).result["erasure"]

    assert erasure["counts"]["gone"] == len(erased), erasure["held"]
    left = EXPECTED - Counter((i, i) for i in (1, 2, 4, 7)) + Counter([(2, -2)])
    assert visible_rows(spark, table.identifier) == left
    endpoint = {"endpoint_override": f"127.0.0.1:{server.port}", "scheme": "http", "region": "us-east-1"}
    store = S3FileSystem(access_key="key", secret_key="secret", **endpoint)
    selector = FileSelector(f"{table.metadata.location.removeprefix('s3://')}/data", recursive=True)
    files = [one.path for one in store.get_file_info(selector) if one.path.endswith(".parquet")]
    ids = pa.chunked_array(
        [chunk for path in files for chunk in pq.read_table(path, filesystem=store)["id"].chunks]
    )
    assert len(ids) > 0
    assert not set(erased) & set(ids.to_pylist()), "nor has any other file one"


@pytest.mark.exhaustive
def test_a_slow_store_or_one_truncated_read_only_takes_longer(
    s3_jobs: S3Jobs, table: TableBuilder, spark: SparkSession
) -> None:
    s3_jobs.proxy.set(slow(0.02))
    try:
        s3_jobs.run("index")
        s3_jobs.broken = ("read", truncate(1000, once=True))
        s3_jobs.run("convert")
        assert s3_jobs.proxy.mode == PASS, "nothing was truncated"
    finally:
        s3_jobs.proxy.set(PASS)
    assert visible_rows(spark, table.identifier) == EXPECTED
    assert equality_delete_files(spark, table.identifier) == []


@pytest.fixture(scope="module")
def cluster(proxy: Proxy, catalog_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Its catalog's tables lie on S3, and so do their indexes."""
    environment = {"ICESTREAM_INDEX_WAREHOUSE": INDEX_WAREHOUSE, "CATALOG_S3_SECRET": "secret"}
    allowed = [tmp_path_factory.getbasetemp().as_uri(), "s3://lake"]
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), allowed, workers=1, environment=environment)
    try:
        impatient = s3_catalog(catalog_file, S3(proxy.port))
        properties = {key: value for key, value in impatient.properties.items() if "timeout" not in key}
        properties["s3.secret-access-key"] = "env:CATALOG_S3_SECRET"
        cluster.register(SqlCatalog(impatient.name, properties))
        yield cluster
    finally:
        cluster.close()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        # Some are written, others wait for their turn.
        ("convert", Fault("delete-file", "after", "hold", times=FILES_AT_ONCE)),
        pytest.param("index", Fault("run", "after", "hold"), marks=pytest.mark.exhaustive),
    ],
    ids=["convert", "index"],
)
def test_a_job_whose_store_is_cut_off_is_done_by_an_attempt_after_that(
    kind: str, fault: Fault, cluster: Cluster, proxy: Proxy, spark: SparkSession, server: S3
) -> None:
    store = server.properties()
    subject = Subject(cluster, spark, f"s3.db.t{next(_numbers)}", 3, batch=60, store=store)
    prepare(subject, kind)
    subject.write(files=2 * FILES_AT_ONCE)
    fired = cluster.inject(fault)
    job_id = cluster.submit(subject.table_id, kind)
    cluster.wait_until_fired(fired, fault)
    proxy.set(CUT)
    try:
        release(fired)
        wait_until(lambda: cluster.get(f"/jobs/{job_id}")["attempts"][0]["ended_at"], "the attempt to fail")
    finally:
        proxy.set(PASS)
    job = cluster.wait_for_job(job_id)
    subject.check_end(kind, job)
    failed = job["attempts"][:-1]  # the next one may have begun before the network was well again
    assert {(attempt["status"], attempt["error"]["code"]) for attempt in failed} == {
        ("failed", "storage_error")
    }
    if kind == "convert":
        assert any("files that attempt 1" in decision for decision in job["result"]["decisions"])
        return
    for _ in range(2):
        cluster.run(subject.table_id, "compact")
    assert strays(subject.table, INDEX_WAREHOUSE, store) == set()


class Ending(RecordingReporter):
    """Whenever a stage begins, all sessions are over."""

    def __init__(self, sessions: Aws, told: timedelta) -> None:
        super().__init__()
        self._sessions, self._told = sessions, told
        self.stages: list[str] = []

    def progress(self, stage: str, done: int, total: int, unit: str, message: str | None = None) -> None:
        super().progress(stage, done, total, unit, message)
        if not total and stage not in self.stages:
            self.stages.append(stage)
            self._sessions.over()
            time.sleep(self._told.total_seconds())  # as their ends were told


@pytest.mark.parametrize(
    "local_rows", [LOCAL_ROWS, pytest.param(-1, marks=pytest.mark.exhaustive)], ids=["driver", "spark"]
)
def test_a_table_is_converted_with_credentials_that_end_with_each_stage(
    spark: SparkSession,
    catalog_file: Path,
    server: S3,
    table: TableBuilder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    local_rows: int,
) -> None:
    """The catalog vends them. The record knows the store's address alone; nothing else here knows a key."""
    monkeypatch.setattr("worker.io.storage._RENEW_SECONDS", 0.0)
    sessions, told = Aws(server.port), timedelta(seconds=0.5)
    backend = s3_catalog(catalog_file, server)
    known = {key: value for key, value in backend.properties.items() if "key" not in key}
    with (
        BackingCatalog(backend.name, **backend.properties) as tables,
        sessions_only(server.port, sessions) as port,
        running_rest_catalog(
            tables,
            commit_by_java(spark, backend.name, backend.properties),
            lambda: {"s3://lake/": vended(sessions, told), "s3://other/": OTHERS},
        ) as rest,
    ):
        asking = {
            **known,
            "uri": rest.url,
            "s3.endpoint": f"http://127.0.0.1:{port}",
            "header.X-Iceberg-Access-Delegation": "vended-credentials",
        }
        jobs = Jobs(spark, SqlCatalog("vending", asking, "rest"), table.identifier, tmp_path)
        jobs.runner = TaskRunner(spark, local_rows)
        jobs.reporter = ending = Ending(sessions, told)
        jobs.index_location = f"s3://lake/index-of-vended-{table.identifier}"  # where they reach
        assert jobs.run("index").result["key_sets"][0]["files_indexed"] > 0
        outcome = jobs.run("convert")
    assert {"read", "lookup", "deletes"} <= set(ending.stages)
    assert [one["source"] for one in outcome.result["key_sets"]] == ["index"]
    assert outcome.result["rows_deleted"] == ROWS // 3
    assert sessions.refused == []
    assert len(set(sessions.used)) > len(ending.stages)
    assert visible_rows(spark, table.identifier) == EXPECTED
    assert equality_delete_files(spark, table.identifier) == []


def test_a_table_as_of_s3_tables_is_converted_although_it_is_compacted_meanwhile(
    spark: SparkSession, catalog_file: Path, server: S3, table: TableBuilder, tmp_path: Path
) -> None:
    """Its catalog wants requests signed, its bucket takes files of tables alone, and AWS compacts it."""
    server.create_bucket("indexes")
    backend = s3_catalog(catalog_file, server)
    signatures, refused = Signatures("s3tables", "us-east-1"), list[str]()
    overtaken: list[bool] = []
    tables_begin = "warehouse/db/"
    with (
        BackingCatalog(backend.name, **backend.properties) as tables,
        running_rest_catalog(tables, commit_by_java(spark, backend.name, backend.properties)) as rest,
        signed_only(rest.url, signatures) as url,
        table_bucket(server.port, "lake", tables_begin, refused) as port,
    ):
        record = {
            **backend.properties,
            "uri": url,
            "s3.endpoint": f"http://127.0.0.1:{port}",
            "rest.sigv4-enabled": "true",
            "rest.signing-name": "s3tables",
            "rest.signing-region": "us-east-1",
            "rest.access-key-id": "AKIDRECORD",
            "rest.secret-access-key": "secret/of+record",
        }
        jobs = Jobs(spark, SqlCatalog("s3tables", record, "rest"), table.identifier, tmp_path)
        jobs.index_location = "s3://lake/index"
        with pytest.raises(JobError) as denied:
            jobs.run("index")
        assert denied.value.code == "index_unwritable"
        assert refused
        refused.clear()

        def compact_once() -> None:
            if not overtaken:
                overtaken.append(True)
                table.compact()

        jobs.index_location = "s3://indexes/icestream"
        assert jobs.run("index").result["key_sets"][0]["files_indexed"] > 0
        jobs.reporter.before_commit = compact_once
        result = jobs.run("convert").result
    assert overtaken
    assert any("plans again" in sentence for sentence in result["decisions"])
    assert (signatures.refused, refused) == ([], [])
    assert any(method == "POST" for method, _, _ in signatures.seen)
    assert visible_rows(spark, table.identifier) == EXPECTED
    assert equality_delete_files(spark, table.identifier) == []
