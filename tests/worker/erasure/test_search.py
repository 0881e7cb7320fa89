"""Whatever tells an erased key is found: metadata, paths, deletes and files that nobody names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.factories import TableBuilder, garble
from tests.jobs import ONE_PER_TASK, Jobs
from tests.thorough import V2_FIRST, first_always
from tests.worker.erasure.tables import ALL_GONE, PLAIN, Erase, NewTable, holders, key, place_of, row
from worker.erasure import metadata_files, orphan_files
from worker.erasure.trace import FORMER_COLUMN
from worker.jobs import erasure

pytestmark = pytest.mark.integration


def test_docs_and_defaults_of_columns_are_looked_through(new_table: NewTable, erase: Erase) -> None:
    table = new_table()
    table.append([row(0)])
    jvm: Any = table.spark.sparkContext._jvm
    text = jvm.org.apache.iceberg.types.Types.StringType.get()
    friend = jvm.org.apache.iceberg.expressions.Expressions.lit(key(6))
    table.java.updateSchema().updateColumnDoc("region", f"as of {key(5)}").addColumn(
        "friend", text, None, friend
    ).commit()

    report = erase(5, 6, 7)

    assert report["counts"] == {"gone": 1, "invisible": 0, "held": 2, "unknown": 0}
    told = {(one["holder"], *one["keys"]) for one in report["held"]}
    assert told == {("metadata", 0, 1)}


@V2_FIRST
def test_paths_of_partitions_are_looked_through(
    new_table: NewTable, erase: Erase, format_version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a data file is named: in manifests, and in deletes by position."""
    table = new_table(format_version=format_version)
    place = f"{table.metadata.location}/data/id={key(7)}"
    with monkeypatch.context() as patched:
        patched.setattr(table, "_new_path", lambda extension: f"{place}/{uuid4()}.{extension}")
        (named,) = table.append([row(0), row(1), row(2)])
    deletes = (
        [table.shared_position_deletes({named: [0]})]
        if format_version == 2
        else table.deletion_vectors({named: [0]})
    )
    table.commit(*deletes)

    report = erase(7, 8)

    assert report["counts"] == {"gone": 1, "invisible": 0, "held": 1, "unknown": 0}
    names = {name for holder, name, keys in holders(report) if (holder, keys) == ("metadata", [0])}
    assert deletes[0].path in names
    assert any(str(name).endswith(".avro") for name in names)


def test_a_path_that_a_shared_puffin_file_keeps_goes_once_its_vectors_move(
    new_table: NewTable, erase: Erase, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the vector of that data file was replaced, and is elsewhere."""
    table = new_table(format_version=3)
    place = f"{table.metadata.location}/data/id={key(7)}"
    with monkeypatch.context() as patched:
        patched.setattr(table, "_new_path", lambda extension: f"{place}/{uuid4()}.{extension}")
        table.append([row(0), row(1)])
    table.append([row(3), row(4)])

    def vectors() -> dict[str, str]:
        rows = table.spark.sql(f"SELECT referenced_data_file, file_path FROM {table.identifier}.delete_files")
        return dict(map(tuple, rows.collect()))

    table.delete_keys([{"id": key(0)}, {"id": key(3)}])
    jobs.run("convert", policy=ONE_PER_TASK)
    (shared,) = set(vectors().values())
    table.delete_keys([{"id": key(1)}])
    jobs.run("convert", policy=ONE_PER_TASK)
    assert [place in data_file for data_file, path in vectors().items() if path == shared] == [False]

    report = erase(7, policy=ONE_PER_TASK)
    (told,) = {one["remedy"] for one in report["held"] if one["name"] == shared}
    assert "one_per_data_file" in told
    jobs.run("convert")
    assert shared not in {one["name"] for one in erase(7)["held"]}


def test_a_delete_by_a_part_of_the_key_tells_the_keys_that_it_may_mean(
    new_table: NewTable, jobs: Jobs
) -> None:
    table = new_table()
    table.append([row(0, "eu"), row(1, "us")])
    table.delete_keys([{"region": "us"}])
    table.java.manageSnapshots().createTag("audit", table.snapshot_id).commit()
    jobs.run("convert")
    keys = [{"id": key(9), "region": region} for region in ("us", "eu")]
    how = {"key_columns": ["id", "region"], "erasure_id": "e", "expire_snapshots": True}

    report = jobs.run("erase", rows=keys, parameters=how).result["erasure"]

    assert holders(report) == [("tag", "audit", [0])]
    assert report["counts"] == {"gone": 1, "invisible": 0, "held": 1, "unknown": 0}


def test_lists_of_manifests_that_nobody_names_tell_the_bounds_of_partitions(
    new_table: NewTable, erase: Erase
) -> None:
    table = new_table(partitioned_by=("id",))
    table.append([row(0), row(1), row(2), row(7)])
    (listed,) = [one.manifest_list for one in table.metadata.snapshots]
    shutil.copy(listed.removeprefix("file:"), place_of(table) / "data" / "lost.avro")

    report = erase(0, 1)

    assert [(one["holder"], one["keys"]) for one in report["held"]] == [("orphan_file", [0])]
    assert report["counts"] == {"gone": 1, "invisible": 0, "held": 1, "unknown": 0}
    (place_of(table) / "data" / "lost.avro").unlink()
    assert erase(0)["counts"] == ALL_GONE


@first_always("is_forgotten", [False, True])
def test_a_key_column_that_was_dropped_and_added_again_leaves_its_keys_unknown(
    new_table: NewTable, erase: Erase, is_forgotten: bool
) -> None:
    """Until the files that were written before have been rewritten, and have expired; also once the metadata
    has forgotten the schema that they have."""
    table = new_table()
    table.append([row(0), row(1)])
    orphan = place_of(table) / "data" / "orphan.parquet"
    shutil.copy(table.data_file_paths[0].removeprefix("file:"), orphan)
    table.spark.sql(f"REFRESH TABLE {table.identifier}")
    table.spark.sql(f"ALTER TABLE {table.identifier} DROP COLUMN id")
    table.spark.sql(f"ALTER TABLE {table.identifier} ADD COLUMN id string FIRST")
    table.spark.sql(f"INSERT INTO {table.identifier} VALUES ('{key(2)}', 'eu', 2), ('{key(3)}', 'eu', 3)")
    table.java.refresh()

    if is_forgotten:
        table.java.expireSnapshots().expireOlderThan(2**62).cleanExpiredMetadata(True).commit()
        assert len(table.metadata.schemas) == 1

    report = erase(0, 2)

    assert report["counts"] == {"gone": 0, "invisible": 0, "held": 0, "unknown": 2}
    told = {Path(str(one["name"])).suffix: one["reason"] for one in report["held"]}
    assert told[".avro"] == FORMER_COLUMN.reason
    assert is_forgotten or told[".parquet"] == FORMER_COLUMN.reason
    assert orphan.name in {Path(str(one["name"])).name for one in report["held"]}
    orphan.unlink()
    table.compact()
    table.java.rewriteManifests().clusterBy(_one_manifest(table)).commit()
    table.java.expireSnapshots().expireOlderThan(2**62).commit()
    assert erase(0)["counts"] == ALL_GONE


def _one_manifest(table: TableBuilder) -> Any:
    jvm: Any = table.spark.sparkContext._jvm
    return jvm.java.util.function.Function.identity()


_ODD_SCHEMAS: list[Any] = [{"fields": [{}]}, {"fields": [{"type": "int", "initial-default": 1}]}]


def test_orphan_files_are_told_by_their_places_and_footers_too(new_table: NewTable, erase: Erase) -> None:
    table = new_table()
    table.append([row(0)])
    data = place_of(table) / "data"
    _write(data / f"id={key(7)}" / "part-0", b"nothing else")
    _write(data / "x.puffin", b"PFA1" + key(8).encode())
    for number, schema in enumerate(_ODD_SCHEMAS):
        content = json.dumps({"format-version": 2, "schemas": [schema]})
        _write(data / f"odd-{number}.json", content.encode())

    report = erase(7, 8)

    told = {(one["holder"], Path(str(one["name"])).name, *one["keys"]) for one in report["held"]}
    odd = {("unreadable_file", f"odd-{number}.json", 1) for number in range(len(_ODD_SCHEMAS))}
    assert told == {("orphan_file", "part-0", 0), ("unreadable_file", "x.puffin", 1)} | odd


def test_what_is_too_large_or_too_much_leaves_the_keys_unknown(
    new_table: NewTable, erase: Erase, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table()
    table.append([row(0)])
    data = place_of(table) / "data"
    with monkeypatch.context() as patched:
        patched.setattr(orphan_files, "ANSWER_BYTES", 50_000)
        _write(data / "large.avro", b"Obj\x01" + bytes(50_000))
        (told,) = erase(7)["held"]
        assert (told["holder"], told["reason"]) == ("unreadable_file", metadata_files.TOO_LARGE)
    _write(data / "large.avro", b"a")
    _write(data / "other", b"b")
    assert erase(7)["counts"] == ALL_GONE
    monkeypatch.setattr(erasure, "UNNAMED_AT_MOST", 1)
    ((holder, name, _),) = holders(erase(7))
    assert (holder, name) == ("unreadable_file", table.metadata.location)


def test_statistics_of_columns_are_looked_through(new_table: NewTable, erase: Erase) -> None:
    table = new_table()
    table.append([row(0)])
    actions = table._iceberg.spark.actions.SparkActions.get()
    actions.computeTableStats(table.java).execute()
    (statistics,) = table.metadata.statistics
    assert erase(7)["counts"] == ALL_GONE
    Path(statistics.statistics_path.removeprefix("file:")).write_bytes(b"PFA1 and no footer, of some length")
    report = erase(7)
    assert [(one["holder"], one["name"]) for one in report["held"]] == [
        ("unreadable_file", statistics.statistics_path)
    ]


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_statistics_of_partitions_tell_the_keys_that_are_theirs(
    new_table: NewTable, erase: Erase, file_format: str
) -> None:
    """Whatever the fields of partitions are called since, and however Avro spells that."""
    table = new_table(partitioned_by=("id",), properties={**PLAIN, "write.format.default": file_format})
    table.java.updateSpec().renameField("id", "No.").commit()
    table.append([row(0), row(1)])
    file = table._iceberg.PartitionStatsHandler.computeAndWriteStatsFile(table.java)
    table.java.updateSpec().renameField("No.", "who").commit()
    table.java.updatePartitionStatistics().setPartitionStatistics(file).commit()
    table.java.manageSnapshots().createTag("audit", table.snapshot_id).commit()

    report = erase(0, 7)

    assert report["counts"] == {"gone": 1, "invisible": 0, "held": 1, "unknown": 0}
    assert ("metadata", str(file.path()), [0]) in holders(report)


def _write(place: Path, content: bytes) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)


def test_a_file_that_can_not_be_read_leaves_its_keys_unknown(new_table: NewTable, erase: Erase) -> None:
    table = new_table()
    (old,) = table.append([row(0), row(1), row(2)])
    table.java.manageSnapshots().createTag("audit", table.snapshot_id).commit()
    table.compact()
    garble(Path(old.removeprefix("file:")))

    report = erase(1, 7)

    assert report["counts"] == {"gone": 0, "invisible": 0, "held": 0, "unknown": 2}
    assert report["unknown"] == [0, 1]
    assert holders(report) == [("unreadable_file", old, [0, 1])]


def test_packed_metadata_is_looked_through(new_table: NewTable, erase: Erase) -> None:
    properties = {**PLAIN, "write.metadata.compression-codec": "gzip", "vip": f"{key(7)},{key(8)}"}
    table = new_table(properties=properties)
    table.append([row(0), row(1)])
    assert erase(0)["counts"] == ALL_GONE
    assert {one["holder"] for one in erase(8)["held"]} == {"metadata"}
