"""The delete files beside docs/conformance.md, whole as conversions publish them, mean what is said of them.

`python -m tests.conformance.test_delete_files` writes them anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import BytesIO
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from tests.conformance.roaring import positions
from tests.worker.deletes.files import data_file
from worker.deletes.merge import DeleteGranularity
from worker.deletes.write import write_deletion_vectors, write_position_deletes
from worker.io.storage import Storage

FILE = Path(__file__).parents[2] / "docs" / "delete-files.jsonl"
ONE = {"s3://lake/shop/orders/data/r=1/a b\u00e9.parquet": [0, 7, 65_536, *range(100_000, 100_020)]}
SEVERAL = {**ONE, "s3://lake/shop/orders/data/r=1/c.parquet": [3, 4]}


def lines() -> Iterator[str]:
    """As `FILE` is written: the whole file in hex, and what the manifest's entry says of it."""
    storage = Storage()
    with TemporaryDirectory() as directory:
        place = str(Path(directory, "deletes"))
        for what, version, told in (
            ("a deletion vector", 3, ONE),
            ("position deletes of a data file", 2, ONE),
            ("position deletes of several data files of a partition", 2, SEVERAL),
        ):
            new = {data_file(path, rows=200_000): BitMap64(of) for path, of in told.items()}
            if version == 3:
                (written,) = write_deletion_vectors(storage, lambda _: place, new)
            else:
                of = DeleteGranularity.FILE if len(told) == 1 else DeleteGranularity.PARTITION
                (written,) = write_position_deletes(storage, lambda _: place, new, of)
            entry = {
                "file_format": written.file_format,
                "record_count": written.record_count,
                "file_size_in_bytes": written.file_size_bytes,
                "referenced_data_file": written.referenced_data_file,
                "content_offset": written.content_offset,
                "content_size_in_bytes": written.content_size_bytes,
            }
            line = {"what": what, "format_version": version, "entry": entry, "positions": told}
            yield json.dumps({**line, "file": Path(place).read_bytes().hex()}) + "\n"


def decoded(entry: dict[str, Any], content: bytes) -> dict[str, list[int]]:
    """By the specifications alone: positions by data file."""
    assert len(content) == entry["file_size_in_bytes"]
    if entry["file_format"] == "puffin":
        return _of_puffin(entry, content)
    file = pq.ParquetFile(BytesIO(content))
    columns = [file.schema.column(at) for at in range(len(file.schema))]
    ids = [int(one.metadata[b"PARQUET:field_id"]) for one in file.schema_arrow]
    assert [(one.name, one.physical_type, one.max_definition_level) for one in columns] == [
        ("file_path", "BYTE_ARRAY", 0),
        ("pos", "INT64", 0),
    ]
    assert ids == [2147483546, 2147483545]
    rows = [(one["file_path"], one["pos"]) for one in file.read().to_pylist()]
    assert rows == sorted(rows, key=lambda row: (row[0].encode(), row[1]))
    assert len(rows) == entry["record_count"]
    return {path: [pos for _, pos in of] for path, of in groupby(rows, key=lambda row: str(row[0]))}


def _of_puffin(entry: dict[str, Any], content: bytes) -> dict[str, list[int]]:
    assert content[:4] == content[-4:] == b"PFA1"
    assert content[-8:-4] == bytes(4)  # the footer is not compressed
    length = int.from_bytes(content[-12:-8], "little")
    footer = content[-12 - length - 4 : -12]
    assert footer[:4] == b"PFA1"
    (blob,) = json.loads(footer[4:])["blobs"]
    path = entry["referenced_data_file"]
    assert blob == {
        "type": "deletion-vector-v1",
        "fields": [2147483645],
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": entry["content_offset"],
        "length": entry["content_size_in_bytes"],
        "properties": {"referenced-data-file": path, "cardinality": str(entry["record_count"])},
    }
    return {path: positions(content[blob["offset"] : blob["offset"] + blob["length"]])}


def told() -> list[dict[str, Any]]:
    return [json.loads(line) for line in FILE.read_text().splitlines()]


def what(one: dict[str, Any]) -> str:
    return str(one["what"])


@pytest.mark.parametrize("line", told(), ids=what)
def test_a_delete_file_is_read_by_the_specifications(line: dict[str, Any]) -> None:
    entry = line["entry"]
    assert decoded(entry, bytes.fromhex(line["file"])) == line["positions"]
    only = next(iter(line["positions"])) if len(line["positions"]) == 1 else None
    assert entry["referenced_data_file"] == only


def test_conversions_still_write_such_files() -> None:
    written = [json.loads(line) for line in lines()]
    assert [(what(one), one["positions"]) for one in written] == [
        (what(one), one["positions"]) for one in told()
    ]
    for one in written:
        assert decoded(one["entry"], bytes.fromhex(one["file"])) == one["positions"]


if __name__ == "__main__":
    FILE.write_text("".join(lines()))
