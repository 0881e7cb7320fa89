"""Streams of Arrow that strangers send: what is let through to Arrow's own reader, and what is not."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from tests import damaged_streams, decimals
from tests.patience import PATIENCE_SECONDS
from trust import arrow_streams
from trust.arrow_streams import ArrowStreamError, count_rows
from worker.query.arrow import read_stream
from worker.query.errors import InvalidArrowError

KEYS = pa.table({"id": pa.array([1, 2, None], pa.int64()), "name": ["a", None, "c"]})


def stream(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=2)
    return bytes(sink.getvalue())


def test_rows_are_counted_in_what_arrow_pandas_and_polars_write() -> None:
    frame = io.BytesIO()
    pl.DataFrame({"id": [1, 2], "name": ["a", None]}).write_ipc_stream(frame)
    pandas = pa.Table.from_pandas(KEYS.to_pandas())
    for written, rows in ((stream(KEYS), 3), (stream(KEYS.slice(0, 0)), 0), (frame.getvalue(), 2)):
        assert count_rows(written) == rows
    assert (count_rows(stream(pandas)), read_stream(stream(pandas)).num_rows) == (3, 3)
    assert read_stream(frame.getvalue())["name"].to_pylist() == ["a", None]


def nested(depth: int) -> pa.Array:
    array = pa.array([1])
    for _ in range(depth):
        array = pa.ListArray.from_arrays([0, 1], array)
    return array


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"", "damaged"),
        (b"{}", "damaged"),
        (b'[{"id": 1}]', "not in the streaming format"),
        (stream(KEYS)[:-8], "damaged"),
        (stream(KEYS)[:-16], "in the middle"),
        (stream(KEYS) + b"\0", "follows its end"),
        (stream(KEYS) + stream(KEYS), "follows its end"),
        (b"\xff\xff\xff\xff" + struct.pack("<i", 2**31 - 1), "bytes of metadata"),
        (b"\xff\xff\xff\xff" + struct.pack("<i", -1), "bytes of metadata"),
        (stream(pa.table({"a": ["x" * 100_000] * 3}), compression="zstd"), "compressed"),
        (stream(pa.table({"a": pa.array(["x"] * 3).dictionary_encode()})), "dictionaries"),
        (stream(pa.table({"a": nested(1)})), "columns within columns"),
        (stream(pa.table({"a": nested(50)})), "columns within columns"),
        (stream(pa.table({str(at): [1] for at in range(1_001)})), "1,000 columns"),
        (stream(KEYS.replace_schema_metadata({"a": "x" * 300_000})), "of metadata"),
    ],
)
def test_what_could_grow_or_is_damaged_is_refused_before_it_is_decoded(sent: bytes, why: str) -> None:
    with pytest.raises(ArrowStreamError, match=why):
        count_rows(sent)


def test_a_text_that_metadata_names_many_times_is_counted_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = KEYS.replace_schema_metadata({f"key {at}": "same" for at in range(1_000)})
    monkeypatch.setattr(arrow_streams, "WORD_BYTES", 20_000)
    with pytest.raises(ArrowStreamError, match="names and metadata"):
        count_rows(stream(schema))


def test_more_messages_than_are_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_streams, "MESSAGES", 2)
    assert count_rows(stream(KEYS.slice(0, 2))) == 2
    with pytest.raises(ArrowStreamError, match="more than 2 messages"):
        count_rows(stream(KEYS))


@pytest.mark.exhaustive
def test_a_damaged_stream_is_refused_or_has_the_rows_that_were_counted() -> None:
    program = [sys.executable, "-m", damaged_streams.__name__]
    done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr[-4_000:]


@pytest.mark.parametrize("scale", decimals.SCALES)
def test_decimals_of_no_scale_are_refused_before_they_are_decoded(scale: int) -> None:
    with pytest.raises(ArrowStreamError, match=f"{scale} of them behind the point"):
        count_rows(stream(pa.table({"a": decimals.column(scale)})))


@pytest.mark.parametrize("count", [6, -1, 2_130_706_433])
def test_more_buffers_of_views_than_there_are_are_refused(count: int) -> None:
    """Arrow would make room for as many. Of two columns there are six: validity, views and text."""
    views = pa.array(["a text of more than twelve bytes"], pa.string_view())
    whole = stream(pa.table({"a": views, "b": views}))
    counts = struct.pack("<iqq", 2, 1, 1)
    assert (whole.count(counts), count_rows(whole)) == (1, 1)
    with pytest.raises(ArrowStreamError, match="more buffers"):
        count_rows(whole.replace(counts, struct.pack("<iqq", 2, 1, count)))


def test_buffers_that_lie_are_refused() -> None:
    whole = stream(pa.table({"a": pa.array(["abc", "def"])}))
    offsets = struct.pack("<3i", 0, 3, 6)
    assert whole.count(offsets) == 1
    with pytest.raises(InvalidArrowError, match="can't be read"):
        read_stream(whole.replace(offsets, struct.pack("<3i", 0, 2**30, 6)))
    with pytest.raises(InvalidArrowError, match="can't be read"):
        read_stream(whole.replace(b"abcdef", b"abc\xff\xff\xff"))
