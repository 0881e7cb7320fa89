"""What is kept for the next question is never told of another table, or of one that is gone."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.iceberg_tables import IcebergCatalog
from trust.bounds import ANSWER_BYTES
from worker.contract.lookups import AskedKeys
from worker.io.storage import Storage
from worker.query.answers import Answers, TablePlace
from worker.query.errors import UnreadableError
from worker.table.avro_files import CorruptMetadataError

ASKED = AskedKeys(keys=[{"id": 1}, {"id": 2}], key_columns=["id"])


@pytest.fixture
def iceberg(tmp_path: Path) -> Iterator[IcebergCatalog]:
    catalog = IcebergCatalog(tmp_path)
    yield catalog
    catalog.close()


def _place(location: str, folder: Path) -> TablePlace:
    return TablePlace(location, Storage(), (folder / "index").as_uri(), Storage())


@pytest.mark.parametrize("name", ["v2.metadata.json", "v2.gz.metadata.json", "v2.metadata.json.gz"])
def test_of_a_table_that_was_created_again_none_of_the_old_rows_is_told(
    name: str, iceberg: IcebergCatalog, tmp_path: Path
) -> None:
    answers, location = Answers(), tmp_path / name
    told, snapshot_ids = [], []
    for table, key in (("db.t", 1), ("db.created_again", 2)):
        iceberg.create(table)
        iceberg.append(table, [key])
        written = Path(iceberg.catalog.load_table(table).metadata_location.removeprefix("file://"))
        snapshot_ids.append(iceberg.head(table))
        # Of the same id, so that nothing else tells them apart.
        text = written.read_text().replace(f":{snapshot_ids[-1]}", f":{snapshot_ids[0]}")
        content = text.encode()
        location.write_bytes(gzip.compress(content) if ".gz" in name else content)
        told += answers.find(_place(location.as_uri(), tmp_path), ASKED)[1].keys.tolist()
    assert told == [0, 1]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("1-a.metadata.json", b" " * (ANSWER_BYTES + 1), "more than 64 MiB"),
        (
            "v1.gz.metadata.json",
            gzip.compress(b" " * (ANSWER_BYTES + 1), 1),
            "unpacked, has more than 64 MiB",
        ),
        ("1-a.metadata.json", b"[" * 100_000, "lie within each other"),
    ],
    ids=["large", "packed", "deep"],
)
def test_metadata_beyond_what_the_service_takes_is_not_read(
    name: str, content: bytes, said: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(UnreadableError, match=said) as refused:
        Answers().find(_place(file.as_uri(), tmp_path), ASKED)
    assert refused.value.remedy
    file.unlink()


# Without a time: it would be in the tests' names, which each process of a run collects alike.
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("1-a.metadata.json", b'{"format-version": 2'),
        ("1-a.metadata.json", b"\xff"),
        ("1-a.metadata.json", b'{"format-version": 99}'),
        ("1-a.metadata.json", b"[]"),
        ("v1.gz.metadata.json", b"{}"),
        ("v1.metadata.json.gz", gzip.compress(b"{}", mtime=0)[:-1]),
        ("v1.metadata.json.gz", gzip.compress(bytes(range(256)), mtime=0)[:20] + b"\xff" * 9),
    ],
)
def test_damaged_metadata_is_told_as_such_packed_or_not(name: str, content: bytes, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(CorruptMetadataError, match=f"{name} is damaged") as refused:
        Answers().find(_place(file.as_uri(), tmp_path), ASKED)
    assert not refused.value.retryable
