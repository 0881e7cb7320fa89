"""What lies in files that no snapshot names is told of a key, or is unknown: never is it gone."""

from __future__ import annotations

import gzip
import io
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from tests.factories import TableBuilder
from tests.jobs import Jobs
from tests.thorough import first_always
from tests.worker.erasure.tables import Erase, NewTable, holders, key, place_of, row
from worker.erasure import orphan_files
from worker.io.storage import Storage, StoredFile

pytestmark = pytest.mark.integration

Column = tuple[str, int | None, pa.DataType, Any]  # its name, its field id, its type, and a value
PATH, POSITION, ROW = 2147483546, 2147483545, 2147483544
TEXT, NUMBER = pa.string(), pa.int64()


def _rows(columns: Sequence[Column], name_of_id: str = "PARQUET:field_id") -> pa.Table:
    fields = [
        pa.field(name, kind, metadata=None if field_id is None else {name_of_id: str(field_id)})
        for name, field_id, kind, _ in columns
    ]
    values = [pa.array([value], kind) for _, _, kind, value in columns]
    return pa.Table.from_arrays(values, schema=pa.schema(fields))


def parquet(*columns: Column) -> bytes:
    out = io.BytesIO()
    pq.write_table(_rows(columns), out)
    return out.getvalue()


def orc_file(*columns: Column) -> bytes:
    out = io.BytesIO()
    orc.write_table(_rows(columns, "iceberg.id"), out)
    return out.getvalue()


def avro(fields: Mapping[str, tuple[int, str]], record: Mapping[str, Any], **properties: str) -> bytes:
    out = io.BytesIO()
    columns = [{"name": name, "type": kind, "field-id": at} for name, (at, kind) in fields.items()]
    schema = {"type": "record", "name": "r", "fields": columns}
    fastavro.writer(out, schema, [record], metadata=properties)
    return out.getvalue()


ID, REGION, VALUE = ("id", 1, TEXT, key(0)), ("region", 2, TEXT, "eu"), ("value", 3, NUMBER, 1)
_DELETED_ROW = pa.struct([pa.field("id", TEXT, metadata={"PARQUET:field_id": "1"})])
OWN_ROWS = {
    "own.parquet": parquet(ID, REGION, VALUE),
    "some.parquet": parquet(ID),
    "own.orc": orc_file(ID, REGION, VALUE),
    "own.avro": avro({"id": (1, "string"), "value": (3, "long")}, {"id": key(0), "value": 1}),
    "path.parquet": parquet(
        ("file_path", PATH, TEXT, f"file:/t/id={key(0)}/1.parquet"), ("pos", POSITION, NUMBER, 0)
    ),
}
FOREIGN_ROWS = {
    "other-id.parquet": parquet(("id", 9, TEXT, key(0)), VALUE),
    "swapped.parquet": parquet(("id", 2, TEXT, key(0)), ("region", 1, TEXT, "eu"), VALUE),
    "other-kind.parquet": parquet(("id", 1, TEXT, "x"), ("value", 3, TEXT, key(0))),
    "some-ids.parquet": parquet(("id", None, TEXT, key(0)), VALUE),
    "some-ids.orc": orc_file(("id", None, TEXT, key(0)), VALUE),
    "kept-rows.parquet": parquet(
        ("file_path", PATH, TEXT, "file:/x"),
        ("pos", POSITION, NUMBER, 0),
        ("row", ROW, _DELETED_ROW, {"id": key(0)}),
    ),
    "more-than-positions.parquet": parquet(("file_path", PATH, TEXT, "file:/x"), ("id", 8, TEXT, key(0))),
    "broken.orc": b"ORC" + b"x" * 100,
    "foreign.avro": avro({"id": (7, "string")}, {"id": key(0)}),
    "like-a-list.avro": avro(
        {"manifest_path": (500, "string"), "partition_spec_id": (502, "int"), "id": (1, "string")},
        {"manifest_path": "file:/x", "partition_spec_id": 0, "id": key(0)},
    ),
}


def _lay(table: TableBuilder, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (place_of(table) / "data" / name).write_bytes(content)


def _told(report: Mapping[str, Any]) -> dict[str, tuple[str, list[int]]]:
    """By the names of files."""
    return {str(one["name"]).rpartition("/")[2]: (one["holder"], one["keys"]) for one in report["held"]}


def test_rows_with_the_columns_of_this_table_are_read_by_their_ids(new_table: NewTable, erase: Erase) -> None:
    table = new_table()
    table.append([row(0), row(1)])
    _lay(table, OWN_ROWS)
    report = erase(0, 7)
    assert report["counts"] == {"gone": 1, "invisible": 0, "held": 1, "unknown": 0}
    assert _told(report) == dict.fromkeys(OWN_ROWS, ("orphan_file", [0]))


def test_rows_with_columns_of_another_table_leave_the_keys_unknown(new_table: NewTable, erase: Erase) -> None:
    """Their ids mean something else; and one that can't be read at all hides no other."""
    table = new_table()
    table.append([row(0), row(1)])
    _lay(table, {**FOREIGN_ROWS, "own.parquet": OWN_ROWS["own.parquet"]})
    report = erase(0, 7)
    assert report["counts"] == {"gone": 0, "invisible": 0, "held": 1, "unknown": 1}
    expected: dict[str, tuple[str, list[int]]] = dict.fromkeys(FOREIGN_ROWS, ("unreadable_file", [1]))
    assert _told(report) == {**expected, "own.parquet": ("orphan_file", [0])}
    assert all("whose file it is" in one["remedy"] for one in report["held"])


def test_rows_with_a_part_of_the_key_leave_the_keys_unknown(new_table: NewTable, jobs: Jobs) -> None:
    """Equality deletes of some of its columns mean the keys with these values, whatever else they have."""
    table = new_table()
    table.append([row(0), row(1)])
    _lay(table, {"part.parquet": parquet(REGION)})
    how = {"key_columns": ["id", "region"], "erasure_id": "e", "expire_snapshots": True}
    rows = [{"id": key(7), "region": "eu"}]
    report = jobs.run("erase", rows=rows, parameters=how).result["erasure"]
    assert _told(report) == {"part.parquet": ("unreadable_file", [0])}


def test_what_a_table_of_before_left_at_the_same_place_is_not_taken_for_this_ones(
    new_table: NewTable, erase: Erase
) -> None:
    """Dropped without purge, and made anew with its columns in another order."""
    table = new_table(columns="region string, id string, value bigint", partitioned_by=("id",))
    table.spark.sql(f"INSERT INTO {table.identifier} VALUES ('eu', '{key(0)}', 1), ('us', '{key(1)}', 2)")
    table.spark.sql(f"DROP TABLE {table.identifier}")
    again = new_table()
    left = {file.name for file in place_of(again).rglob("*") if file.suffix in (".parquet", ".avro")}
    assert len(left) == 4
    again.append([row(1)])

    report = erase(0)

    told = _told(report)
    assert report["counts"]["gone"] == 0
    assert left <= told.keys()


HELD_TEXTS = {
    "lines.ndjson": b'{"id": "x"}\n\n{"id": "person\\u002d000000"}\n',
    "twice.json": json.dumps({"id": key(0)})[:-1].encode() + b', "id": "x"}',
    "settings.json": json.dumps({"format-version": 1, "id": key(0)}).encode(),
    "statistics.json": json.dumps(
        {"format-version": 2, "statistics": [{"blob-metadata": [{"properties": {"top": key(0)}}]}]}
    ).encode(),
    "url.txt": b"GET /?id=person%2D000000",
    "raw.crc": b"crc\x00" + key(0).encode(),
}
UNKNOWN_TEXTS = {
    "odd.txt": rb"\x70erson-000000",
    "in-json.json": json.dumps({"sent": r"\x70erson-000000"}).encode(),
    "twice.txt": b"person%252D000000",
    "cut.crc": b"crc\x00\x00\x00\x02\x00123",
    "not-one.crc": b"crc\x00" + bytes(8),
}


def test_text_is_looked_through_also_where_it_is_escaped(new_table: NewTable, erase: Erase) -> None:
    table = new_table()
    table.append([row(0), row(1)])
    _lay(table, HELD_TEXTS)
    held = {str(one["name"]).rpartition("/")[2] for one in erase(0)["held"] if one["keys"] == [0]}
    assert held == HELD_TEXTS.keys()
    for name in HELD_TEXTS:
        (place_of(table) / "data" / name).unlink()
    _lay(table, UNKNOWN_TEXTS)
    assert _told(erase(0)) == dict.fromkeys(UNKNOWN_TEXTS, ("unreadable_file", [0]))


@first_always("setting", ["write.data.path", "location"])
def test_files_are_sought_wherever_the_table_had_them(
    new_table: NewTable, erase: Erase, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an earlier metadata file says, and no longer the current one."""
    table = new_table()
    table.append([row(0), row(1)])
    elsewhere = place_of(table).with_name(f"{place_of(table).name}_elsewhere")
    elsewhere.mkdir()
    (elsewhere / "lost.parquet").write_bytes(OWN_ROWS["own.parquet"])
    before, place = table.metadata.location, f"file://{elsewhere}"
    if setting == "location":
        table.java.updateLocation().setLocation(place).commit()
        table.java.updateLocation().setLocation(before).commit()
    else:
        table.java.updateProperties().set(setting, place).commit()
        table.java.updateProperties().remove(setting).commit()

    assert _told(erase(0)) == {"lost.parquet": ("orphan_file", [0])}

    walk = Storage.walk

    def walked(storage: Storage, location: str) -> Sequence[StoredFile]:
        if elsewhere.name in location:
            raise PermissionError("not allowed")
        return walk(storage, location)

    monkeypatch.setattr(Storage, "walk", walked)
    report = erase(0)
    assert _told(report) == {elsewhere.name: ("unreadable_file", [0])}
    assert report["counts"]["unknown"] == 1


def test_bounds_in_a_manifest_that_nobody_names_tell_keys_of_several_columns(
    new_table: NewTable, jobs: Jobs
) -> None:
    """As of files that are gone: nobody has looked at their rows."""
    table = new_table()
    table.append([row(0, "us"), row(9, "eu")])
    (manifest,) = place_of(table).glob("metadata/*-m0.avro")
    shutil.copy(manifest, manifest.with_name("lost-m0.avro"))
    how = {"key_columns": ["id", "region"], "erasure_id": "e", "expire_snapshots": True}
    rows = [{"id": key(number), "region": "eu"} for number in (0, 5)]
    report = jobs.run("erase", rows=rows, parameters=how).result["erasure"]
    assert _told(report) == {"lost-m0.avro": ("orphan_file", [0])}


def test_rows_of_a_form_that_arrow_lacks_leave_the_keys_unknown(
    new_table: NewTable, erase: Erase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lack(*_: Any) -> None:
        raise pa.ArrowNotImplementedError("codec LZO")

    table = new_table()
    table.append([row(0), row(1)])
    _lay(table, {"lzo.parquet": OWN_ROWS["own.parquet"]})
    monkeypatch.setattr(orphan_files, "open_columns", lack)
    assert _told(erase(0)) == {"lzo.parquet": ("unreadable_file", [0])}


def test_a_place_on_a_store_of_another_kind_leaves_the_keys_unknown(
    new_table: NewTable, erase: Erase
) -> None:
    table = new_table()
    table.java.updateProperties().set("write.data.path", "dbfs:/lake").commit()
    table.java.updateProperties().remove("write.data.path").commit()
    assert _told(erase(0)) == {"lake": ("unreadable_file", [0])}


def test_a_manifest_with_a_value_that_can_not_be_read_leaves_the_keys_unknown(
    new_table: NewTable, jobs: Jobs
) -> None:
    """Whether a snapshot names it or nobody does."""
    table = new_table(columns="id bigint, region string, value bigint")
    table.append([{"id": number, "region": "eu", "value": number} for number in (1, 2)])
    table.append([{"id": number, "region": "eu", "value": number} for number in (5, 6)])
    manifests = sorted(place_of(table).glob("metadata/*-m0.avro"), key=lambda file: file.stat().st_mtime)
    with manifests[-1].open("rb") as source:
        reader = fastavro.reader(source)
        schema, properties = reader.writer_schema, dict(reader.metadata)
        entries: list[Any] = list(reader)
    for entry in entries:
        for bound in entry["data_file"]["lower_bounds"]:
            bound["value"] = b"abc" if bound["key"] == 1 else bound["value"]
    own = {name: value for name, value in properties.items() if not name.startswith("avro.")}
    with manifests[-1].with_name("lost-m0.avro").open("wb") as sink:
        fastavro.writer(sink, schema, entries, metadata=own)
    how = {"key_columns": ["id"], "erasure_id": "e", "expire_snapshots": True}

    report = jobs.run("erase", rows=[{"id": 9}], parameters=how).result["erasure"]
    assert _told(report) == {"lost-m0.avro": ("unreadable_file", [0])}

    shutil.copy(manifests[-1].with_name("lost-m0.avro"), manifests[-1])
    Path(manifests[-1].with_name(f".{manifests[-1].name}.crc")).unlink(missing_ok=True)
    report = jobs.run("erase", rows=[{"id": 9}], parameters=how).result["erasure"]
    assert report["counts"] == {"gone": 0, "invisible": 0, "held": 0, "unknown": 1}
    assert {manifests[-1].name, "lost-m0.avro"} <= _told(report).keys()


def test_what_nobody_names_is_looked_through_and_told(new_table: NewTable, erase: Erase) -> None:
    table = new_table()
    table.append([row(0), row(1)])
    (lost,) = table.data_files([row(0), row(7)])
    report = erase(0, 7, 8)
    assert report["counts"] == {"gone": 1, "invisible": 0, "held": 2, "unknown": 0}
    ((holder, name, keys),) = holders(report)
    assert (holder, keys) == ("orphan_file", [0, 1])
    assert str(name).rpartition("/")[2] == lost.path.rpartition("/")[2]


def _manifest_of_a_lost_spec() -> bytes:
    out = io.BytesIO()
    schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "string"}]}
    fastavro.writer(out, schema, [{"id": key(0)}], metadata={"partition-spec-id": "77"})
    return out.getvalue()


def _parquet_without_ids() -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"region": ["eu"], "value": [1], "id": [key(0)]}), out)
    return out.getvalue()


_ORPHANS: dict[str, tuple[bytes, str]] = {
    "object.json": (json.dumps({"id": key(0)}).encode(), "held"),
    "list.json": (json.dumps([{"id": key(0)}]).encode(), "held"),
    "escaped.json": (rb'"person-00000\u0030"', "held"),
    "x.puffin": (key(0).encode(), "held"),
    "rows.crc": (key(0).encode(), "held"),
    "rows.csv.gz": (gzip.compress(key(0).encode()), "unknown"),
    "rows.txt": (key(0).encode("utf-16"), "unknown"),
    "rows.parquet": (_parquet_without_ids(), "unknown"),
    "lost-m0.avro": (_manifest_of_a_lost_spec(), "unknown"),
    "snap-1.avro": (_manifest_of_a_lost_spec(), "unknown"),
}


def test_orphan_files_are_told_by_what_is_in_them(new_table: NewTable, erase: Erase) -> None:
    table = new_table()
    table.append([row(0), row(1)])
    for name, (content, _) in _ORPHANS.items():
        (place_of(table) / "data" / name).write_bytes(content)

    report = erase(0)

    told = {str(one["name"]).rpartition("/")[2]: one["holder"] for one in report["held"]}
    holder = {"held": "orphan_file", "unknown": "unreadable_file"}
    assert told == {name: holder[state] for name, (_, state) in _ORPHANS.items()}
