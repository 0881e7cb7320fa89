"""Files of rows that a stranger names: what is read of them, and what each of the others is told."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg import types
from pyiceberg.schema import Schema

from tests import decimals
from tests.arrow_memory import measured
from worker.io import thrift
from worker.io.storage import ALLOWED_LOCATIONS, OWN_FILES, Storage
from worker.process.errors import JobError
from worker.writes import sent_files
from worker.writes.rows import InvalidRowsError
from worker.writes.sent_files import (
    FileChangedError,
    FileNotAllowedError,
    TooLargeError,
    UnreadableFileError,
    read_files,
)
from worker.writes.sent_rows import KeptRows, rows_of_part

NAMES = ["id", "name"]
ROWS = pa.table({"id": [1, 2, 3], "name": ["a", None, "c"]})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    return allowed


@pytest.fixture
def storage(place: Path) -> Storage:
    return Storage({ALLOWED_LOCATIONS: place.as_uri()})


@pytest.fixture
def read(storage: Storage, place: Path) -> Callable[..., list[Any]]:
    def read_all(*files: Path | str, columns: Sequence[str] = NAMES, table: str = "") -> list[Any]:
        parts = read_files(storage, [str(file) for file in files], table or place.as_uri(), columns)
        return [row for part in parts for row in part.rows.to_pylist()]

    return read_all


def arrow_file(path: Path, rows: pa.Table, **options: Any) -> Path:
    with pa.ipc.new_file(path, rows.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(rows)
    return path


def arrow_stream(path: Path, rows: pa.Table) -> Path:
    with pa.ipc.new_stream(path, rows.schema) as writer:
        writer.write_table(rows)
    return path


def parquet(path: Path, rows: pa.Table, **options: Any) -> Path:
    pq.write_table(rows, path, **options)
    return path


def test_parquet_and_arrow_files_are_read_in_their_order(place: Path, read: Callable[..., list[Any]]) -> None:
    files = [
        parquet(place / "a", ROWS),
        arrow_file(place / "b", ROWS),
        arrow_stream(place / "c", ROWS),
        place / "d",
        parquet(place / "nothing", ROWS.slice(0, 0)),
        parquet(place / "categories", ROWS.set_column(1, "name", ROWS.column("name").dictionary_encode())),
    ]
    pl.DataFrame(ROWS).write_ipc_stream(place / "d", compat_level=pl.CompatLevel.oldest())
    assert read(*files) == 5 * ROWS.to_pylist()


def test_what_is_no_file_of_rows_is_told(place: Path, read: Callable[..., list[Any]]) -> None:
    text = place / "text"
    text.write_text("id,name\n1,a\n")
    cut = parquet(place / "cut", ROWS)
    cut.write_bytes(cut.read_bytes()[:-40])
    empty = place / "empty"
    empty.touch()
    pipe = place / "pipe"
    os.mkfifo(pipe)
    damaged = arrow_file(place / "damaged", ROWS)
    damaged.write_bytes(damaged.read_bytes()[:100])
    compressed = arrow_file(place / "compressed", ROWS, compression="zstd")
    nested = arrow_file(place / "nested", pa.table({"id": [1], "name": [["a"]]}))
    categories = ROWS.set_column(1, "name", ROWS.column("name").dictionary_encode())
    wrong = pa.table({"id": decimals.column(41)})
    for file, told in [
        (text, "neither Parquet nor Arrow IPC"),
        (empty, "neither Parquet nor Arrow IPC"),
        (cut, "can't be read"),
        (pipe, "is no file"),
        (place, "is no file"),
        (place / "none", "There is no file"),
        (damaged, "can't be read"),
        (compressed, "compressed"),
        (nested, "columns within columns"),
        (arrow_file(place / "decimals", wrong), "41 of them behind the point"),
        (decimals.parquet_file(place / "decimals.parquet", "id"), "scale is not from 0 to 76"),
        (arrow_file(place / "categories", categories), "dictionaries"),
    ]:
        with pytest.raises(UnreadableFileError, match=told) as caught:
            read(file)
        assert str(file) in str(caught.value)
        assert not caught.value.retryable


def test_text_that_is_no_utf8_is_not_written(place: Path, read: Callable[..., list[Any]]) -> None:
    name = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"]).buffers())
    file = parquet(place / "a", pa.table({"id": [1], "name": name}))
    with pytest.raises(UnreadableFileError, match="UTF8"):
        read(file)


def test_only_files_at_allowed_places_of_the_tables_store_are_opened(
    place: Path, tmp_path: Path, read: Callable[..., list[Any]]
) -> None:
    outside = parquet(tmp_path / "outside", ROWS)
    link = place / "link"
    link.symlink_to(outside)
    for file in (
        outside,
        link,
        f"{place}/../outside",
        f"{place}/%2e%2e/outside",
        f"file://other{place}/a",
        "s3://bucket/a",
        "a",
    ):
        with pytest.raises(FileNotAllowedError):
            read(file)
    inside = parquet(place / "inside", ROWS)
    with pytest.raises(FileNotAllowedError, match="another store"):
        read(inside, table="s3://bucket/table")
    own = Storage({ALLOWED_LOCATIONS: place.as_uri(), OWN_FILES: str(inside)})
    with pytest.raises(FileNotAllowedError, match="keeps for itself"):
        list(read_files(own, [str(inside)], place.as_uri(), NAMES))


@pytest.mark.parametrize("how", ["replaced", "cut off", "gone"])
def test_of_a_file_that_changes_while_it_is_read_nothing_is_used(
    place: Path, storage: Storage, how: str
) -> None:
    many = pa.table({"id": range(200_000), "name": pa.array(map(str, range(200_000)))})
    file = parquet(place / "a", many, row_group_size=50_000)
    parts = read_files(storage, [str(file)], place.as_uri(), NAMES)
    next(parts)
    if how == "replaced":
        parquet(place / "b", many).replace(file)
    elif how == "cut off":
        os.truncate(file, 1_000)
    else:
        file.unlink()
    with pytest.raises(JobError, match="no file" if how == "gone" else "another than it was") as caught:
        list(parts)
    assert isinstance(caught.value, UnreadableFileError if how == "gone" else FileChangedError)


@pytest.mark.parametrize("make", [parquet, arrow_file])
def test_a_file_has_the_columns_that_are_wanted_and_no_others(
    place: Path, read: Callable[..., list[Any]], make: Callable[[Path, pa.Table], Path]
) -> None:
    for columns, told in [
        (["id"], "has no column name"),
        (["id", "name", "secret"], "has 1 column too many"),
        (["id", "name", "id"], "two columns of one name"),
    ]:
        rows = pa.Table.from_arrays([pa.array([1])] * len(columns), names=columns)
        with pytest.raises(InvalidRowsError, match=told) as caught:
            read(make(place / "a", rows))
        assert "secret" not in str(caught.value)


def test_what_would_grow_is_refused_before_it_does(
    place: Path, read: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte of text, named half a million times: some kilobytes in the file."""
    long = pa.DictionaryArray.from_arrays(pa.array([0] * 500_000, pa.int32()), ["x" * 2**20])
    bomb = parquet(place / "bomb", pa.table({"id": range(500_000), "name": long}), compression="zstd")
    assert bomb.stat().st_size < 2**22
    before = pa.total_allocated_bytes()
    monkeypatch.setattr(sent_files, "DECODED_BYTES", 2**28)
    with pytest.raises(TooLargeError, match="268,435,456 bytes"):
        read(bomb)
    assert pa.total_allocated_bytes() - before < 2**28
    one = parquet(place / "one", pa.table({"id": [1], "name": ["x" * 2**20]}))
    monkeypatch.setattr(sent_files, "_ROW_BYTES", 2**19)
    with pytest.raises(TooLargeError, match="row 0 has"):
        read(one)
    monkeypatch.setattr(sent_files, "ROW_GROUP_BYTES", 10)
    with pytest.raises(TooLargeError, match="row group"):
        read(parquet(place / "wide", ROWS))
    monkeypatch.setattr(sent_files, "ARROW_BYTES", 10)
    with pytest.raises(TooLargeError, match="Arrow IPC"):
        read(arrow_file(place / "arrow", ROWS))


def long_texts(path: Path, **options: Any) -> Path:
    """6 MB of texts that are nowhere twice, in some kilobytes of a file; pages of one each."""
    texts = pa.array([f"{number:06d}" + "x" * 10_000 for number in range(600)])
    rows = pa.table({"id": pa.array(range(600), pa.int64()), "name": texts})
    more: dict[str, Any] = {"compression": "zstd", "use_dictionary": False, "write_statistics": False}
    return parquet(path, rows, data_page_size=1_000, write_batch_size=1, **more | options)


def with_small_footer(file: Path) -> Path:
    """The same, whose footer says that nothing in it is large, or much."""
    content = file.read_bytes()
    length = int.from_bytes(content[-8:-4], "little")
    footer, _ = thrift.decode(content, len(content) - 8 - length)
    for group in footer[4][1][1]:
        group[2] = (thrift.I64, 1)
        for chunk in group[1][1][1]:
            chunk[3][1][6] = (thrift.I64, 1)
    end = thrift.encode(footer)
    file.write_bytes(content[: -8 - length] + end + len(end).to_bytes(4, "little") + b"PAR1")
    return file


@pytest.mark.parametrize("lies", [False, True])
@pytest.mark.parametrize("options", [{}, {"data_page_version": "2.0"}], ids=str)
def test_long_texts_are_decoded_a_few_at_a_time(
    place: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], lies: bool
) -> None:
    file = long_texts(place / "a", **options)
    assert file.stat().st_size < 200_000
    if lies:
        with_small_footer(file)
    monkeypatch.setattr(sent_files, "_BATCH_BYTES", 100_000)
    with measured() as pool:
        found = [part.rows.num_rows for part in read_files(storage, [str(file)], place.as_uri(), NAMES)]
    assert sum(found) == 600
    assert pool.max_memory() < 3_000_000


@pytest.mark.parametrize("lies", [False, True])
def test_a_row_group_whose_pages_are_too_large_is_refused(
    place: Path, read: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch, lies: bool
) -> None:
    file = long_texts(place / "a")
    monkeypatch.setattr(sent_files, "ROW_GROUP_BYTES", 6 * 10**6)
    with measured() as pool, pytest.raises(TooLargeError, match="a row group of 6,0"):
        read(with_small_footer(file) if lies else file)
    assert pool.max_memory() < 1_000_000


@pytest.mark.parametrize("make", [parquet, arrow_file])
def test_more_rows_than_a_write_has_are_refused_before_they_are_read(
    place: Path,
    storage: Storage,
    make: Callable[[Path, pa.Table], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sent_files, "ROWS", 5)
    parts = read_files(storage, [str(make(place / n, ROWS)) for n in ("a", "b")], place.as_uri(), NAMES)
    assert next(parts).rows.num_rows == 3
    with pytest.raises(TooLargeError, match="6 rows"):
        next(parts)


def fitted(storage: Storage, file: Path, schema: Schema) -> pa.Table:
    names = [field.name for field in schema.fields]
    parts = read_files(storage, [str(file)], file.parent.as_uri(), names)
    return pa.concat_tables([rows_of_part(schema, part) for part in parts])


NOON = datetime(2024, 2, 29, 12, 0, 0, 4, tzinfo=UTC)
LAST = datetime(9999, 1, 1, tzinfo=UTC)
INT, TEXT = types.IntegerType(), types.StringType()
STRUCT = types.StructType(
    types.NestedField(2, "a", INT, required=True), types.NestedField(3, "b", TEXT, required=False)
)
LIST = types.ListType(2, INT, element_required=True)
MAP = types.MapType(2, TEXT, 3, INT, value_required=True)


@pytest.mark.parametrize(
    ("kind", "given", "values"),
    [
        (types.LongType(), pa.int8(), [1, None]),
        (INT, pa.int64(), [2**31 - 1, None]),
        (types.DoubleType(), pa.int32(), [7]),
        (types.FloatType(), pa.float64(), [1.5, float("inf")]),
        (types.DecimalType(20, 2), pa.int64(), [Decimal(5)]),
        (types.DecimalType(9, 2), pa.decimal128(38, 2), [Decimal("-9999999.99")]),
        (types.TimestamptzType(), pa.timestamp("ns", "Europe/Berlin"), [NOON]),
        (types.TimestampType(), pa.timestamp("us"), [NOON.replace(tzinfo=None)]),
        (types.DateType(), pa.date64(), [NOON.date()]),
        (types.UUIDType(), pa.string(), ["f79c3e09-677c-4bbd-a479-3f349cb785e7"]),
        (types.FixedType(2), pa.binary(), [b"\0\xff"]),
        (STRUCT, pa.struct({"a": pa.int64(), "b": pa.string()}), [{"a": 1, "b": None}, None]),
        (LIST, pa.list_(pa.int64()), [[1, 2], [], None]),
        (MAP, pa.map_(pa.string(), pa.int32()), [[("k", 1)], None]),
        (INT, pa.null(), [None]),
    ],
    ids=str,
)
def test_values_of_a_file_fit_where_the_column_holds_them_without_loss(
    place: Path, storage: Storage, kind: types.IcebergType, given: pa.DataType, values: list[Any]
) -> None:
    schema = Schema(types.NestedField(1, "x", kind, required=False))
    file = parquet(place / "a", pa.table({"x": pa.array(values, given)}))
    found = fitted(storage, file, schema).column("x").to_pylist()
    if isinstance(kind, types.UUIDType):
        assert bytes(found[0]).hex() == values[0].replace("-", "")
    else:
        assert found == values


@pytest.mark.parametrize(
    ("kind", "given", "values", "told"),
    [
        (INT, pa.int64(), [1, 2, 2**31, 3], "row 2: column x is of type int"),
        (INT, pa.string(), ["1"], "column x is of type int, which .*string does not fit"),
        (INT, pa.float64(), [1.0], "double does not fit"),
        (TEXT, pa.binary(), [b"secret"], "binary does not fit"),
        (types.FloatType(), pa.float64(), [1e300], "row 0: column x"),
        (types.TimestampType(), pa.timestamp("us", "UTC"), [NOON], "does not fit"),
        (types.TimestampType(), pa.timestamp("ns"), [1], "row 0: column x"),
        (types.DecimalType(5, 2), pa.decimal128(38, 2), [Decimal("1000.00")], "row 0: column x"),
        (types.UUIDType(), pa.string(), ["secret"], "row 0: column x"),
        (INT, pa.list_(pa.int32()), [[1]], "does not fit"),
        (STRUCT, pa.struct({"a": pa.int64()}), [{"a": 1}], "does not fit"),
        (STRUCT, pa.struct({"a": pa.int64(), "b": pa.string()}), [None, {"a": 2**40, "b": ""}], "row 1"),
        (STRUCT, pa.struct({"a": pa.int64(), "b": pa.string()}), [None, {"b": ""}], "row 1 .*null.* x.a"),
        (LIST, pa.list_(pa.int64()), [[1], None, [2, None]], "row 2 has null in column x.element"),
        (
            MAP,
            pa.map_(pa.string(), pa.int32()),
            [[("k", 1)], [("k", None)]],
            "row 1 has null in column x.value",
        ),
    ],
    ids=str,
)
def test_the_first_row_of_a_file_that_does_not_fit_is_told_by_its_number(
    place: Path,
    storage: Storage,
    kind: types.IcebergType,
    given: pa.DataType,
    values: list[Any],
    told: str,
) -> None:
    schema = Schema(types.NestedField(1, "x", kind, required=False))
    file = parquet(place / "a", pa.table({"x": pa.array(values, given)}))
    with pytest.raises(InvalidRowsError, match=told) as caught:
        fitted(storage, file, schema)
    assert "secret" not in str(caught.value)


def test_null_in_a_required_column_is_told_by_its_row(place: Path, storage: Storage) -> None:
    rows = pa.table({"x": pa.array([*range(100_000), None, None], pa.int64())})
    schema = Schema(types.NestedField(1, "x", types.LongType(), required=True))
    with pytest.raises(InvalidRowsError, match="row 100000 has null in column x"):
        fitted(storage, parquet(place / "a", rows), schema)


def test_a_moment_in_sparks_old_form_is_one_of_utc(place: Path, storage: Storage) -> None:
    before = datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)  # of which Arrow itself says another moment
    moments = [NOON, LAST, before]
    rows = pa.table({"x": pa.array([one.replace(tzinfo=None) for one in moments])})
    file = parquet(place / "a", rows, use_deprecated_int96_timestamps=True)
    schema = Schema(types.NestedField(1, "x", types.TimestamptzType(), required=False))
    assert fitted(storage, file, schema).column("x").to_pylist() == moments


def test_rows_that_are_kept_come_back_by_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.writes.sent_rows.PART_ROWS", 4)
    kept = KeptRows()
    for start in range(0, 10, 3):
        kept.add(pa.table({"x": list(range(start, min(start + 3, 10)))}))
    kept.end()
    assert (len(kept), kept.column("x").to_pylist()) == (10, list(range(10)))
    chosen = pa.array([0, 3, 4, 5, 6, 7, 9]).to_numpy()
    parts = list(kept.parts(chosen))
    found = [pq.read_table(pa.BufferReader(part)).column("x").to_pylist() for _, part in parts]
    assert [one for part in found for one in part] == chosen.tolist()
    assert [len(part) for part in found] == [rows for rows, _ in parts]
    assert list(kept.parts(chosen[:0])) == []
