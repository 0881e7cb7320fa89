"""A worker opens no file beyond the places that the service allows, whatever catalog and table name."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession
from sqlalchemy import text

from tests.jobs import RecordingReporter
from trust.locations import AmbiguousLocationError, LocationNotAllowedError
from worker.contract.control_plane import Assignment
from worker.io.storage import ALLOWED_LOCATIONS, OWN_FILES, Storage
from worker.jobs.pipeline import run_job
from worker.process.errors import JobError
from worker.spark.tasks import TaskRunner

CALLS: list[Callable[[Storage, str], Any]] = [
    Storage.open_input,
    Storage.open_output,
    Storage.read,
    Storage.list,
    Storage.exists,
    Storage.delete,
    lambda storage, location: storage.write(location, pa.py_buffer(b"x")),
    lambda storage, location: storage.create(location, b"x"),
    lambda storage, location: storage.io.new_input(location),
    lambda storage, location: storage.io.new_output(location),
    lambda storage, location: storage.io.delete(location),
]


def limited(*roots: object) -> Storage:
    return Storage({ALLOWED_LOCATIONS: "\n".join(map(str, roots))})


@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
def test_nothing_is_done_to_a_file_elsewhere(tmp_path: Path, call: Callable[[Storage, str], Any]) -> None:
    file = tmp_path / "elsewhere" / "secret"
    file.parent.mkdir()
    file.write_text("secret")
    # As it is sent to tasks.
    storage = pickle.loads(pickle.dumps(limited(tmp_path / "lake", "s3://lake/wh")))
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "link").symlink_to(file.parent)
    for location in (str(file), file.as_uri(), f"file:{file}", f"file://{tmp_path}/lake/link/secret"):
        with pytest.raises(LocationNotAllowedError, match="ICESTREAM_ALLOWED_LOCATIONS"):
            call(storage, location)
    for location in (
        f"file://{tmp_path}/lake/../elsewhere/secret",
        f"{tmp_path}/lake/%2e%2e/elsewhere/secret",
    ):
        with pytest.raises(AmbiguousLocationError, match="not all read alike"):
            call(storage, location)
    with pytest.raises(LocationNotAllowedError, match="keeps for itself"):
        call(Storage({OWN_FILES: str(file)}), str(file))
    assert file.read_text() == "secret"


@pytest.mark.parametrize(
    "location",
    ["s3://other/wh/x", "s3://lake/wh2/x", "s3://lake/wh/../x", "s3://lake/../../lake2/wh", "gs://lake/wh/x"],
)
def test_a_bucket_is_no_way_out(location: str) -> None:
    with pytest.raises(LocationNotAllowedError):
        limited("s3://lake/wh").io.check(location)


def test_what_is_allowed_is_found_in_any_spelling(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("content")
    for root in (tmp_path, tmp_path.as_uri(), f"file:{tmp_path}/"):
        assert limited(root).read(f"file://localhost{tmp_path}/x") == b"content"
        assert limited(root).read(str(tmp_path / "x")) == b"content"
    limited("s3a://lake/wh/").io.check("s3://lake/wh/db/t")
    limited("/").io.check("/any/file")


def test_a_job_keeps_to_the_places_of_its_assignment(tmp_path: Path) -> None:
    assignment = {
        "job": {"id": "job", "kind": "drop_index"},
        "attempt": 1,
        "lease_seconds": 30,
        "table": {"id": "t", "identifier": ["db", "t"], "table_uuid": "u", "branch": "main"},
        "catalog": {"name": "c", "type": "sql", "properties": {}},
        "index": {"warehouse": f"{tmp_path.as_uri()}/index"},
        "allowed_locations": [f"{tmp_path.as_uri()}/lake"],
    }
    with pytest.raises(JobError) as caught:
        run_job(Assignment.model_validate(assignment), cast("TaskRunner", None), RecordingReporter())
    assert (caught.value.code, caught.value.retryable) == ("location_not_allowed", False)
    assignment["allowed_locations"] = [f"{tmp_path.as_uri()}/index"]
    run_job(Assignment.model_validate(assignment), cast("TaskRunner", None), RecordingReporter())


@pytest.mark.integration
@pytest.mark.parametrize(
    "elsewhere", ["metadata_location", "warehouse", "location", "write.metadata.path", "uri", "own", "%"]
)
def test_java_opens_nothing_elsewhere(spark: SparkSession, tmp_path: Path, elsewhere: str) -> None:
    lake, secret = tmp_path / "lake", tmp_path / "secret" / "db" / "t" / "metadata" / "v1.metadata.json"
    secret.parent.mkdir(parents=True)
    secret.write_text("TOPSECRETLINE")
    lake.mkdir()
    uri = f"sqlite:///{tmp_path if elsewhere == 'uri' else lake}/cat.db"
    properties = {"uri": uri, "warehouse": lake.as_uri()}
    if elsewhere == "warehouse":
        record = {"name": "c", "type": "hadoop", "properties": {"warehouse": f"{tmp_path.as_uri()}/secret"}}
    else:
        record = {"name": "c", "type": "sql", "properties": properties}
        catalog = SqlCatalog("c", **properties)
        catalog.create_namespace("db")
        place = f"{tmp_path.as_uri()}/secret"
        catalog.create_table(
            "db.t",
            pa.schema([("id", pa.int64())]),
        )
        with catalog.engine.begin() as connection:
            query = "SELECT metadata_location FROM iceberg_tables"
            head = Path(connection.execute(text(query)).scalar_one().removeprefix("file://"))
            if elsewhere == "metadata_location":
                statement = text("UPDATE iceberg_tables SET metadata_location = :place")
                connection.execute(statement, {"place": secret.as_uri()})
        if elsewhere in ("location", "write.metadata.path"):
            metadata = json.loads(head.read_text())
            if elsewhere == "location":
                metadata["location"] = place
            else:
                metadata["properties"][elsewhere] = place
            head.write_text(json.dumps(metadata))
        elif elsewhere == "%":
            record["properties"] = properties | {"uri": uri.replace("cat.db", "c%61t.db")}
        catalog.engine.dispose()
    assignment = {
        "job": {"id": "job", "kind": "convert"},
        "attempt": 1,
        "lease_seconds": 30,
        "table": {"id": "t", "identifier": ["db", "t"], "table_uuid": "u", "branch": "main"},
        "catalog": record,
        "index": {"warehouse": f"{lake.as_uri()}/index"},
        "allowed_locations": [lake.as_uri()],
        "own_files": [f"{lake}/cat.db"] if elsewhere == "own" else [],
    }
    with pytest.raises(JobError) as caught:
        run_job(Assignment.model_validate(assignment), TaskRunner(spark), RecordingReporter())
    assert (caught.value.code, caught.value.retryable) == ("location_not_allowed", False)
    assert "TOPSECRETLINE" not in caught.value.detail
