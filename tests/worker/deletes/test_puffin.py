"""Deletion vectors written here are read back exactly, by this code and by Iceberg Java, or not at all."""

import io
import json
import struct
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from tests.factories import TableBuilder
from worker.deletes.puffin import (
    CorruptDeletionVectorError,
    PuffinWriter,
    bitmap_of,
    decode_vector,
    encode_vector,
    positions_of,
    read_deletion_vector,
)
from worker.io.storage import Storage

# Positions in several 32-bit bitmaps, dense runs and single rows.
position_sets = st.sets(
    st.one_of(
        st.integers(0, 300),
        st.integers(65_000, 66_000),
        st.integers(2**32 - 10, 2**32 + 10),
        st.integers(2**40, 2**40 + 5),
    )
)


@given(position_sets)
def test_a_vector_is_read_back_as_it_was_written(positions: set[int]) -> None:
    assert set(decode_vector(encode_vector(BitMap64(positions)))) == positions


@given(position_sets.filter(bool), st.data())
def test_a_vector_with_any_changed_byte_is_refused(positions: set[int], data: st.DataObject) -> None:
    vector = bytearray(encode_vector(BitMap64(positions)))
    at = data.draw(st.integers(0, len(vector) - 1))
    vector[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptDeletionVectorError):
        decode_vector(bytes(vector))


@given(position_sets.filter(bool), st.data())
def test_a_vector_that_was_cut_short_is_refused(positions: set[int], data: st.DataObject) -> None:
    vector = encode_vector(BitMap64(positions))
    with pytest.raises(CorruptDeletionVectorError):
        decode_vector(vector[: data.draw(st.integers(0, len(vector) - 1))])


def test_what_is_no_vector_is_told_by_how_it_begins() -> None:
    vector = encode_vector(BitMap64([1, 2, 3]))
    with pytest.raises(CorruptDeletionVectorError, match=r"the magic number is 6e6f6e65$"):
        decode_vector(vector[:4] + b"none" + vector[8:])


def test_a_vector_whose_checksum_fits_but_whose_bitmap_is_none_is_refused() -> None:
    intact = encode_vector(BitMap64([1, 2, 3]))
    content = intact[4:8] + b"\x07" * 20
    forged = struct.pack(">i", len(content)) + content + struct.pack(">I", crc32(content))
    with pytest.raises(CorruptDeletionVectorError, match="the bitmap can't be read"):
        decode_vector(forged)


@given(st.lists(st.integers(0, 2**40)))
def test_arrays_and_bitmaps_hold_the_same_positions(positions: list[int]) -> None:
    bitmap = bitmap_of(np.array(positions, dtype=np.int64))
    assert list(bitmap) == sorted(set(positions))
    assert positions_of(bitmap).tolist() == sorted(set(positions))


def test_a_negative_position_is_refused() -> None:
    with pytest.raises(ValueError, match="position -1 is negative"):
        bitmap_of(np.array([3, -1], dtype=np.int64))


@given(st.lists(position_sets, max_size=5))
def test_the_footer_tells_where_each_vector_of_a_file_lies(sets: list[set[int]]) -> None:
    sink = io.BytesIO()
    writer = PuffinWriter(sink)
    ranges = [writer.write(f"s3://b/{n}.parquet", BitMap64(positions)) for n, positions in enumerate(sets)]
    size = writer.finish()

    content = sink.getvalue()
    assert len(content) == size
    payload_size, flags = struct.unpack("<ii", content[-12:-4])
    assert (content[:4], content[-4:], flags) == (b"PFA1", b"PFA1", 0)
    blobs = json.loads(content[-12 - payload_size : -12])["blobs"]
    for blob, written, positions in zip(blobs, ranges, sets, strict=True):
        assert (blob["type"], blob["snapshot-id"], blob["sequence-number"]) == ("deletion-vector-v1", -1, -1)
        assert blob["properties"] == {
            "referenced-data-file": written.referenced_data_file,
            "cardinality": str(len(positions)),
        }
        assert (blob["offset"], blob["length"]) == (written.content_offset, written.content_size_bytes)
        assert set(decode_vector(content[blob["offset"] : blob["offset"] + blob["length"]])) == positions


def test_a_range_past_the_end_of_the_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "short.puffin"
    vector = encode_vector(BitMap64([5]))
    file.write_bytes(b"PFA1" + vector)
    with pytest.raises(CorruptDeletionVectorError, match=rf"short\.puffin.*ends after {len(vector)} bytes"):
        read_deletion_vector(Storage(), str(file), 4, 100)


def test_a_vector_of_another_cardinality_than_the_manifest_says_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.puffin"
    vector = encode_vector(BitMap64([5, 6]))
    file.write_bytes(b"PFA1" + vector)
    assert list(read_deletion_vector(Storage(), str(file), 4, len(vector), 2)) == [5, 6]
    with pytest.raises(CorruptDeletionVectorError, match="holds 2 positions, the manifest says 3"):
        read_deletion_vector(Storage(), str(file), 4, len(vector), 3)


FAR_APART = [0, 1, 2, 70_000, 2**32 - 1, 2**32, 5 * 2**32 + 7]


@pytest.mark.integration
def test_iceberg_reads_the_vectors_and_the_footer(
    spark: SparkSession, table_name: str, tmp_path: Path
) -> None:
    table = TableBuilder.create(spark, table_name, format_version=3)
    location = f"{tmp_path}/written.puffin"
    with Storage().open_output(location) as sink:
        writer = PuffinWriter(sink)
        ranges = [writer.write("file:/a.parquet", bitmap_of(np.array(FAR_APART, dtype=np.int64)))]
        ranges += [writer.write("file:/b.parquet", BitMap64(range(1_000, 9_000)))]
        writer.finish()

    jvm = spark.sparkContext._jvm
    assert jvm is not None
    iceberg = jvm.org.apache.iceberg
    metadata = iceberg.puffin.Puffin.read(table.java.io().newInputFile(location)).build().fileMetadata()
    blobs = list(metadata.blobs())
    assert [(b.type(), b.offset(), b.length()) for b in blobs] == [
        ("deletion-vector-v1", r.content_offset, r.content_size_bytes) for r in ranges
    ]
    for written, expected in zip(ranges, (FAR_APART, list(range(1_000, 9_000))), strict=True):
        content = Storage().read(location, written.content_offset, written.content_size_bytes)
        described = {
            "spec-id": 0,
            "content": "position-deletes",
            "file-path": location,
            "file-format": "puffin",
            "partition": [],
            "file-size-in-bytes": 1,
            "record-count": written.cardinality,
            "content-offset": written.content_offset,
            "content-size-in-bytes": written.content_size_bytes,
            "referenced-data-file": written.referenced_data_file,
        }
        node = iceberg.util.JsonUtil.mapper().readTree(json.dumps(described))
        delete_file = iceberg.ContentFileParser.fromJson(node, table.java.specs())
        index = iceberg.deletes.PositionDeleteIndex.deserialize(content, delete_file)
        assert index.cardinality() == len(expected)
        assert all(index.isDeleted(position) for position in expected[:50])


@pytest.mark.integration
def test_vectors_written_by_iceberg_are_read(spark: SparkSession, table_name: str) -> None:
    table = TableBuilder.create(spark, table_name, format_version=3)
    [path] = table.append([{"id": 1, "region": "eu", "value": 1}])
    [written] = table.deletion_vectors({path: FAR_APART})
    positions = read_deletion_vector(
        Storage(),
        written.path,
        written.json["content-offset"],
        written.json["content-size-in-bytes"],
        len(FAR_APART),
    )
    assert list(positions) == FAR_APART
