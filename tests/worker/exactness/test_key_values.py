"""Keys of every type, with the values at its edges: each deletes its own rows and no others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import pyarrow as pa
import pytest

from tests.exactness import Exactness
from tests.factories import TableBuilder, equality_delete_files
from tests.readers import Rows, duckdb_rows, java_rows
from tests.thorough import V2_FIRST, V3_FIRST
from worker.process.errors import JobError

pytestmark = pytest.mark.integration

Reader = Literal["spark", "java", "duckdb"]


@dataclass(frozen=True)
class Keys:
    """Values of one key type, ordered so that those that may be mistaken for each other are neighbours."""

    values: Sequence[Any]
    sql_type: str = ""
    iceberg_type: Callable[[Any], Any] | None = None  # of Iceberg's `Types`, for what Spark SQL can't say
    readers: tuple[Reader, ...] = ("spark", "java", "duckdb")  # of the table with equality deletes
    readers_after: tuple[Reader, ...] = ("java", "duckdb")  # also, once these are converted
    since_version: int = 2
    arrow_type: pa.DataType | None = None
    written_by: Literal["arrow", "iceberg"] = "arrow"


LONG_TEXT = "prefix " * 600  # 4,200 characters, far beyond the 16 that bounds keep
PREFIXES = [
    b"",
    b"\x00",
    b"\x00\x00",
    b"\x00\x01",
    b"a",
    b"a\x00",
    b"a\x00b",
    b"ab",
    b"\x7f",
    b"\x80",
    b"\xff",
]
HALF = 1 << 63
DAY_NANOSECONDS = 86_400 * 10**9

KEYS = {
    "boolean": Keys([True, False], "boolean"),
    "int": Keys([-(2**31), 2**31 - 1, -1, 1, 0, -(2**31) + 1, 256], "int"),
    "long": Keys(
        [-HALF, HALF - 1, -HALF + 1, HALF - 2, -1, 0, 1, 2**31, 2**32, 2**53, 2**53 + 1, 2**62], "bigint"
    ),
    "decimal(7,2)": Keys([Decimal(n) / 100 for n in (-9999999, 9999999, -1, 0, 1, 10, 100)], "decimal(7,2)"),
    "decimal(18,4)": Keys(
        [Decimal(sign * n).scaleb(-4) for n in (10**18 - 1, 10**18 - 2, 10**15, 1) for sign in (1, -1)],
        "decimal(18,4)",
    ),
    "decimal(38,10)": Keys(
        [
            Decimal((sign, tuple(map(int, str(n))), -10))
            for n in (10**38 - 1, 10**38 - 2, 2**64, 2**64 + 1, 2**63, 1)
            for sign in (0, 1)
        ],
        "decimal(38,10)",
    ),
    "date": Keys(
        [
            date(1, 1, 1),
            date(9999, 12, 31),
            date(1582, 10, 4),
            date(1582, 10, 15),
            date(1969, 12, 31),
            date(1970, 1, 1),
            date(1970, 1, 2),
            date(9999, 12, 30),
        ],
        "date",
    ),
    "timestamp": Keys(
        [
            datetime(1, 1, 1),  # noqa: DTZ001
            datetime(9999, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001
            datetime(9999, 12, 31, 23, 59, 59, 999_998),  # noqa: DTZ001
            datetime(1969, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001
            datetime(1970, 1, 1),  # noqa: DTZ001
            datetime(1970, 1, 1, 0, 0, 0, 1),  # noqa: DTZ001
            datetime(2024, 3, 31, 2, 30),  # noqa: DTZ001
        ],
        "timestamp_ntz",
    ),
    "timestamptz": Keys(
        [
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            datetime(9999, 12, 31, 23, 59, 59, 999_998, tzinfo=UTC),
            datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            datetime(1970, 1, 1, tzinfo=UTC),
            datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
            datetime(2024, 3, 31, 1, 30, tzinfo=UTC),
        ],
        "timestamp",
    ),
    "time": Keys(
        [time(0), time(0, 0, 0, 1), time(12), time(23, 59, 59, 999_998), time(23, 59, 59, 999_999)],
        iceberg_type=lambda types: types.TimeType.get(),
        readers=("java",),  # Spark has no such type, and DuckDB 1.5.5 does not match them all
    ),
    "timestamp_ns": Keys(
        [-HALF + 1, HALF - 1, HALF - 2, -1, 0, 1, 999, 1_000, 1_001, -DAY_NANOSECONDS, DAY_NANOSECONDS],
        iceberg_type=lambda types: types.TimestampNanoType.withoutZone(),
        readers=("java", "duckdb"),
        since_version=3,
        arrow_type=pa.timestamp("ns"),
    ),
    "timestamptz_ns": Keys(
        [-HALF + 1, HALF - 1, HALF - 2, -1, 0, 1, 999, 1_000, 1_001, -DAY_NANOSECONDS, DAY_NANOSECONDS],
        iceberg_type=lambda types: types.TimestampNanoType.withZone(),
        readers=("java",),  # neither Spark nor DuckDB 1.5.5 has such a type
        readers_after=(),
        since_version=3,
        arrow_type=pa.timestamp("ns", "UTC"),
    ),
    "string": Keys(
        [
            *("", " ", "\x00", "\x00\x00", "a", "a ", "A", "a\x00", "a\x00b", "ab", "null", "NULL"),
            *("caf\u00e9", "cafe\u0301", "\u212b", "\u00c5", "A\u030a"),
            *("\uffff", "\U0001f600", "\U0001f601", "\U0010ffff", "\U0010ffff" * 20, "\U0010ffff" * 21),
            *(LONG_TEXT, LONG_TEXT + "\x00", LONG_TEXT + "a", LONG_TEXT[:-1], LONG_TEXT[:16], LONG_TEXT[:17]),
        ],
        "string",
    ),
    "binary": Keys(
        [
            *PREFIXES,
            *(LONG_TEXT.encode() + tail for tail in (b"", b"\x00", b"\xff")),
            b"\xff" * 16,
            b"\xff" * 17,
        ],
        "binary",
    ),
    "fixed": Keys(
        [b"\x00" * 4, b"\x00\x00\x00\x01", b"a\x00\x00\x00", b"ab\x00\x00", b"\x80\x00\x00\x00", b"\xff" * 4],
        iceberg_type=lambda types: types.FixedType.ofLength(4),
        readers=("duckdb",),  # Iceberg in Java is wrong: see test_reference_reader.py
        readers_after=("spark", "java"),
    ),
    "uuid": Keys(
        [
            UUID(int=n).bytes
            for n in (0, 1, HALF - 1, HALF, 1 << 64, (1 << 127) - 1, 1 << 127, (1 << 127) + 1, (1 << 128) - 1)
        ],
        iceberg_type=lambda types: types.UUIDType.get(),
        readers=("duckdb",),  # Iceberg in Java is wrong: see test_reference_reader.py
        readers_after=("spark", "java"),
        written_by="iceberg",
    ),
}


def add_column(table: TableBuilder, name: str, iceberg_type: Callable[[Any], Any]) -> None:
    jvm: Any = table.spark.sparkContext._jvm
    table.java.updateSchema().addColumn(name, iceberg_type(jvm.org.apache.iceberg.types.Types)).commit()


def ids(table: TableBuilder, reader: Reader) -> Rows:
    """The column `id` as one reader shows it."""
    if reader == "spark":
        shown = [row[0] for row in table.spark.table(table.identifier).select("id").collect()]
    elif reader == "java":
        shown = [int(row[0] or -1) for row in java_rows(table, "id").elements()]
    else:
        shown = [row[0] for row in duckdb_rows(table).elements()]
    return Counter((one,) for one in shown)


def rows_of(keys: Keys, values: Sequence[Any], first_id: int | None = None) -> pa.Table:
    """Rows with the values as `k`, and ids from `first_id` on."""
    columns: dict[str, Any] = {"k": pa.array(values, keys.arrow_type)}
    if first_id is not None:
        columns["id"] = pa.array(range(first_id, first_id + len(values)), pa.int64())
    return pa.table(columns)


@pytest.mark.parametrize(
    ("kind", "format_version"),
    [
        pytest.param(kind, version, marks=() if version == max(since, 2 + at % 2) else pytest.mark.exhaustive)
        for at, (kind, since) in enumerate((kind, keys.since_version) for kind, keys in KEYS.items())
        for version in (2, 3)
        if version >= since
    ],
)
def test_each_key_deletes_its_own_rows_and_no_others(
    exactly: Exactness, kind: str, format_version: int, request: pytest.FixtureRequest
) -> None:
    """Every other value is deleted, those of odd or of even place according to the format version.

    `make thorough` asks all readers, and each change one of them.
    """
    keys = KEYS[kind]
    first = 0 if request.node.get_closest_marker("thorough") else -1
    if keys.sql_type:
        table = exactly.table(f"id bigint, k {keys.sql_type}", format_version=format_version)
    else:
        table = exactly.table("id bigint", format_version=format_version)
        assert keys.iceberg_type is not None
        add_column(table, "k", keys.iceberg_type)
    table.writer = keys.written_by
    if keys.arrow_type is not None:
        table.parquet = {"write_statistics": False}  # PyIceberg can't make bounds of nanoseconds
    values = list(keys.values)  # without null: see test_null_keys.py
    count, deleted = len(values), values[format_version % 2 :: 2]
    table.append(rows_of(keys, values, 0))
    table.append(rows_of(keys, values[::-1], count))
    table.delete_keys(rows_of(keys, deleted))
    table.append(rows_of(keys, values, 2 * count))
    kept = [at for at, value in enumerate(values) if value not in deleted]
    expected = Counter(
        (i,) for at in range(count) for i in ((at, 2 * count - 1 - at) if at in kept else ())
    ) + Counter((i,) for i in range(2 * count, 3 * count))
    for reader in keys.readers[first:]:
        assert ids(table, reader) == expected, f"{reader} before the conversion"
    foretold = exactly.jobs.run("convert", dry_run=True).result
    exactly.jobs.run("index")
    result = exactly.jobs.run("convert").result
    assert result["unconvertible"] == foretold["unconvertible"] == []
    assert result["rows_deleted"] == foretold["rows_deleted"] == 2 * len(deleted)
    assert table.java.currentSnapshot().summary()["total-equality-deletes"] == "0"
    for reader in (*keys.readers, *keys.readers_after)[first:]:
        assert ids(table, reader) == expected, f"{reader} after the conversion"


@V3_FIRST
def test_a_key_of_many_types_compares_every_column(exactly: Exactness, format_version: int) -> None:
    table = exactly.table(
        "id bigint, b boolean, d decimal(38,10), s string, y binary, t timestamp, e date",
        format_version=format_version,
    )
    key: dict[str, Any] = {
        "b": True,
        "d": Decimal("-0.0000000001"),
        "s": "a\x00",
        "y": b"\x00",
        "t": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        "e": date(1969, 12, 31),
    }
    others: dict[str, Any] = {
        "b": False,
        "d": Decimal("0.0000000001"),
        "s": "a",
        "y": b"",
        "t": datetime(1970, 1, 1, tzinfo=UTC),
        "e": date(1970, 1, 1),
    }
    one_apart = [{**key, name: other} for name, other in others.items()]
    one_null = [{**key, name: None} for name in others]
    rows = [{"id": i, **row} for i, row in enumerate([key, *one_apart, *one_null, key])]
    table.append(rows)
    table.delete_keys([key])
    kept = {(row["id"], *(row[name] for name in key)): 1 for row in rows[1:-1]}
    # DuckDB 1.5.5 takes a null for equal to anything: see test_null_keys.py.
    exactly.convert(table, rows=kept, duckdb=False)


@V2_FIRST
def test_floating_point_keys_are_refused_and_the_others_converted(
    exactly: Exactness, format_version: int
) -> None:
    table = exactly.table("id bigint, f float, d double", format_version=format_version)
    rows = [{"id": i, "f": i / 2, "d": i / 4} for i in range(8)]
    table.append(rows)
    refused = [
        *table.delete_keys([{"f": 0.5}]),
        *table.delete_keys([{"d": 0.5}]),
        *table.delete_keys([{"id": 3, "f": 1.5}]),
    ]
    table.delete_keys([{"id": 4}, {"id": 5}])
    # Floats of a full row are no key.
    table.delete_keys([{"id": 6, "f": 0.0, "d": 0.0}], equality_columns=["id"], columns=["id", "f", "d"])
    kept = Counter({(i, i / 2, i / 4): 1 for i in (0, 7)})
    assert exactly.visible_rows(table) == kept
    exactly.jobs.run("index")
    result = exactly.jobs.run("convert").result
    assert sorted((one["file_path"], one["code"]) for one in result["unconvertible"]) == sorted(
        (path, "float_key") for path in refused
    )
    assert result["rows_deleted"] == 3
    assert sorted(file["file_path"] for file in equality_delete_files(exactly.spark, table.identifier)) == (
        sorted(refused)
    )
    assert exactly.visible_rows(table) == kept


def test_a_variant_beside_the_key_is_nothing_that_a_conversion_reads(exactly: Exactness) -> None:
    """Nor one within a struct, list or map; PyIceberg has no such type."""
    table = exactly.table(
        "id bigint, v variant, s struct<v: variant>, l array<variant>, m map<string, variant>",
        format_version=3,
    )

    def read(of: TableBuilder) -> Rows:
        shown = f"SELECT id, to_json(struct(v, s, l, m)) FROM {of.identifier}"
        return Counter(tuple(row) for row in of.spark.sql(shown).collect())

    def insert(first: int, last: int) -> None:
        table.spark.sql(
            f"INSERT INTO {table.identifier} SELECT id, v, named_struct('v', v), array(v), map('k', v) FROM"
            f" (SELECT id, parse_json(concat('[', id, ', \"x\"]')) AS v FROM range({first}, {last}))"
        )

    insert(0, 6)
    table.delete_keys([{"id": 1}, {"id": 2}])
    insert(2, 3)
    table.delete_keys([{"id": 5}])
    result = exactly.convert(table, read=read, duckdb=False)
    assert result["rows_deleted"] == 3
    assert [row[0] for row in sorted(read(table))] == [0, 2, 3, 4]
    with pytest.raises(JobError, match=r"column v, of type variant, are not written") as refusal:
        exactly.jobs.run("upsert", rows=[{"id": 9}], parameters={"key_columns": ["id"]})
    assert not refusal.value.retryable


@pytest.mark.exhaustive
def test_each_kind_of_job_leaves_variants_as_they_are(exactly: Exactness) -> None:
    table, jobs = exactly.table("id bigint, at bigint, v variant", format_version=3), exactly.jobs
    by_id = {"key_columns": ["id"]}

    def insert(first: int, last: int, branch: str = "") -> None:
        variant = "parse_json(concat('[', id, ', \"x\"]'))"
        rows = f"SELECT id, id, {variant} FROM range({first}, {last})"
        table.spark.sql(f"INSERT INTO {table.identifier}{branch} {rows}")

    def shown() -> list[int]:
        rows = table.spark.sql(f"SELECT id, to_json(v) FROM {table.identifier} ORDER BY id").collect()
        assert all(of_variant == f'[{i},"x"]' for i, of_variant in rows)
        return [i for i, _ in rows]

    insert(0, 6)
    jobs.run("index", key_sets=[["id"]])
    assert jobs.run("verify").result["key_sets"][0]["differences"] == 0
    assert jobs.run("report_duplicates").result["key_sets"][0]["duplicate_keys"] == 0
    assert jobs.run("delete", rows=[{"id": 3}], parameters=by_id).result["rows_deleted"] == 1
    told = jobs.run("erase", rows=[{"id": 4}], parameters={**by_id, "erasure_id": "e"}).result["erasure"]
    assert (shown(), told["counts"]["gone"], told["data_files_rewritten"]) == ([0, 1, 2, 5], 1, 1)
    table.java.manageSnapshots().createBranch("staging").commit()
    insert(6, 8, ".branch_staging")
    table.commit(*table.equality_deletes([{"id": 5}, {"id": 6}]), branch="staging")
    insert(5, 6, ".branch_staging")
    published = jobs.run("publish", parameters={"from": "staging"}).result
    assert (shown(), published["rows_added"]) == ([0, 1, 2, 5, 7], 2)
    rewritten = jobs.run("rewrite_data_files", parameters={"min_input_files": 2}).result["data_files"]
    assert (shown(), rewritten["data_files_added"]) == ([0, 1, 2, 5, 7], 1)
    jobs.run("rewrite_manifests")
    jobs.run("expire_snapshots", parameters={"older_than_seconds": 0})
    assert shown() == [0, 1, 2, 5, 7]
    # Once it is dropped, rows can be written, and the files with it are still read.
    table.spark.sql(f"ALTER TABLE {table.identifier} DROP COLUMN v")
    rows, newer = [{"id": 0, "at": 0}, {"id": 1, "at": 9}], {"only_if_newer_than": "at"}
    assert jobs.run("upsert", rows=rows, parameters=by_id | newer).result["left_out"] == [0]


NEW_TYPES: dict[str, Callable[[Any, Any], Any]] = {
    "unknown": lambda types, _: types.UnknownType.get(),
    "geometry": lambda types, _: types.GeometryType.crs84(),
    "geometry of some coordinates": lambda types, _: types.GeometryType.of("srid:3857"),
    "geography": lambda types, algorithm: types.GeographyType.of("srid:4326", algorithm.KARNEY),
    "nanoseconds": lambda types, _: types.TimestampNanoType.withZone(),
}


def test_columns_of_new_types_beside_the_key_are_nothing_that_a_conversion_reads(exactly: Exactness) -> None:
    table = exactly.table("id bigint", format_version=3)
    table.append([{"id": i} for i in range(4)])
    iceberg_types = exactly.spark.sparkContext._jvm.org.apache.iceberg.types  # type: ignore[union-attr]
    change = table.java.updateSchema()
    for name, kind in NEW_TYPES.items():
        change = change.addColumn(name, kind(iceberg_types.Types, iceberg_types.EdgeAlgorithm))
    change.commit()
    table.delete_keys([{"id": 1}, {"id": 2}])
    table.commit(*table.data_files([{"id": 2}], columns=["id"]))
    result = exactly.convert(table, read=lambda of: java_rows(of, "id"), duckdb=False)
    assert result["rows_deleted"] == 2
    assert java_rows(table, *NEW_TYPES)[(None,) * len(NEW_TYPES)] == 3
    with pytest.raises(JobError, match=r"column unknown, of type unknown, are not written"):
        exactly.jobs.run("upsert", rows=[{"id": 9}], parameters={"key_columns": ["id"]})


NO_KEYS = [
    (2, "c array<int>", "c"),
    (3, "c array<int>", "c.element"),
    (2, "c map<string, int>", "c"),
    (3, "c map<string, int>", "c.key"),
    (2, "c map<string, int>", "c.value"),
    (3, "c array<struct<x: int>>", "c.element.x"),
    (2, "c struct<x: int>", "c"),
    (3, "c unknown", "c"),
]


@pytest.mark.parametrize(("format_version", "column", "field"), NO_KEYS)
def test_what_is_no_primitive_is_refused_as_a_key_and_the_others_converted(
    exactly: Exactness, format_version: int, column: str, field: str
) -> None:
    table = exactly.table("id bigint", format_version=format_version)
    table.append([{"id": i} for i in range(4)])
    (by_id,), (by_other,) = table.equality_deletes([{"id": 1}]), table.equality_deletes([{"id": 2}])
    if column == "c unknown":
        add_column(table, "c", lambda types: types.UnknownType.get())
    else:
        table.spark.sql(f"ALTER TABLE {table.identifier} ADD COLUMNS ({column})")
    by_other.json["equality-ids"] = [table.java.schema().findField(field).fieldId()]
    table.commit(by_id, by_other)
    result = exactly.jobs.run("convert").result
    assert [(one["file_path"], one["code"]) for one in result["unconvertible"]] == [
        (by_other.path, "unsupported_key_type")
    ]
    assert result["unconvertible"][0]["reason"]
    assert result["rows_deleted"] == 1
    left = equality_delete_files(exactly.spark, table.identifier)
    assert [one["file_path"] for one in left] == [by_other.path]
