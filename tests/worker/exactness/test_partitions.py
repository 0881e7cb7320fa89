"""An equality delete hits the data files of its own partition and spec, and those of all if it has none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from tests.exactness import Exactness
from tests.factories import TableBuilder, WrittenFile
from tests.readers import Rows, duckdb_rows, java_rows
from tests.thorough import V2_FIRST, V3_FIRST, thorough_unless

pytestmark = pytest.mark.integration

Row = dict[str, Any]


def visible(rows: Sequence[Row], is_deleted: Callable[[Row], bool]) -> Rows:
    """The model: the rows that stay."""
    return Counter(tuple(row.values()) for row in rows if not is_deleted(row))


def of_regions(*regions: str | None, ids: int = 4, value: int = 0) -> list[Row]:
    return [{"id": i, "region": region, "value": value} for region in regions for i in range(ids)]


def upgrade(table: TableBuilder, format_version: int) -> None:
    table.spark.sql(f"ALTER TABLE {table.identifier} SET TBLPROPERTIES ('format-version'='{format_version}')")


def scoped(exactly: Exactness, table: TableBuilder, rows: Rows) -> dict[str, Any]:
    """Asks Spark before, and DuckDB after: 1.5.5 takes every equality delete as global."""
    return exactly.convert(table, rows=rows, read_after=duckdb_rows, duckdb=False)


@V2_FIRST
def test_a_delete_hits_only_its_own_partition(exactly: Exactness, format_version: int) -> None:
    table = exactly.table(format_version=format_version, partitioned_by=["region"])
    rows = of_regions("eu", "us", "")
    table.append(rows, files=2)
    table.delete_keys([{"id": 1}, {"id": 3}], partition_of={"region": "eu"})
    table.delete_keys([{"id": 2}], partition_of={"region": ""})
    table.delete_keys([{"id": 0}], partition_of={"region": "nowhere"})
    deleted = {(1, "eu"), (3, "eu"), (2, "")}
    result = scoped(exactly, table, visible(rows, lambda row: (row["id"], row["region"]) in deleted))
    assert result["rows_deleted"] == 3


@V3_FIRST
def test_a_null_partition_is_a_partition_like_others(exactly: Exactness, format_version: int) -> None:
    table = exactly.table(format_version=format_version, partitioned_by=["region"])
    rows = of_regions("eu", None, "null", "__HIVE_DEFAULT_PARTITION__")
    table.append(rows)
    table.delete_keys([{"id": 1}], partition_of={"region": None})
    table.delete_keys([{"id": 2, "region": None}])
    table.delete_keys([{"id": 3, "region": "null"}])
    deleted = {(1, None), (2, None), (3, "null")}
    result = scoped(exactly, table, visible(rows, lambda row: (row["id"], row["region"]) in deleted))
    assert result["rows_deleted"] == 3


@V2_FIRST
def test_a_global_delete_hits_files_of_every_spec_and_a_scoped_one_its_own(
    exactly: Exactness, format_version: int
) -> None:
    table = exactly.table(format_version=format_version)
    rows = of_regions("eu", "us", value=0)
    table.append(rows)
    table.java.updateSpec().addField("region").commit()
    rows += of_regions("eu", "us", value=1)
    table.append(of_regions("eu", "us", value=1))
    expressions: Any = table.spark.sparkContext._jvm.org.apache.iceberg.expressions.Expressions  # type: ignore[union-attr]
    table.java.updateSpec().addField(expressions.bucket("id", 2)).commit()
    rows += of_regions("eu", "us", value=2)
    table.append(of_regions("eu", "us", value=2))
    # Under the first spec, after the evolution: it is global still.
    table.delete_keys([{"id": 0}], spec_id=0)
    table.delete_keys([{"id": 1}], spec_id=1, partition_of={"region": "eu"})
    table.delete_keys([{"id": 2, "region": "us"}])
    after = [{"id": i, "region": "eu", "value": 3} for i in range(3)]
    table.append(after)

    def is_deleted(row: Row) -> bool:
        scope = (row["id"], row["region"], row["value"])
        return bool(row["value"] < 3 and (row["id"] == 0 or scope in {(1, "eu", 1), (2, "us", 2)}))

    result = scoped(exactly, table, visible(rows + after, is_deleted))
    assert result["rows_deleted"] == 8


@V3_FIRST
def test_deletes_of_a_spec_that_was_given_up_stay_scoped(exactly: Exactness, format_version: int) -> None:
    table = exactly.table(format_version=format_version, partitioned_by=["region"])
    rows = of_regions("eu", "us", value=0)
    table.append(rows)
    table.delete_keys([{"id": 0}], partition_of={"region": "us"})
    table.java.updateSpec().removeField("region").commit()
    assert not table.metadata.spec().fields
    rows += of_regions("eu", "us", value=1)
    table.append(of_regions("eu", "us", value=1))
    table.delete_keys([{"id": 1}], spec_id=0, partition_of={"region": "us"})
    table.delete_keys([{"id": 2}])

    def is_deleted(row: Row) -> bool:
        return row["id"] == 2 or (*row.values(),) in {(0, "us", 0), (1, "us", 0)}

    result = scoped(exactly, table, visible(rows, is_deleted))
    assert result["rows_deleted"] == 6


@V2_FIRST
def test_a_delete_under_a_spec_of_void_fields_only_is_global(exactly: Exactness, format_version: int) -> None:
    table = exactly.table(partitioned_by=["region"], properties={"format-version": "1"})
    rows = of_regions("eu", "us", value=0)
    table.append(rows)
    table.java.updateSpec().removeField("region").commit()
    assert [str(field.transform) for field in table.metadata.spec().fields] == ["void"]
    rows += of_regions("eu", "us", value=1)
    table.append(of_regions("eu", "us", value=1))
    upgrade(table, format_version)
    table.delete_keys([{"id": 0}])
    table.delete_keys([{"id": 1}], spec_id=0, partition_of={"region": "eu"})

    def is_deleted(row: Row) -> bool:
        return row["id"] == 0 or (row["id"], row["region"], row["value"]) == (1, "eu", 0)

    result = scoped(exactly, table, visible(rows, is_deleted))
    assert result["rows_deleted"] == 5


@V3_FIRST
def test_a_delete_under_a_void_and_a_real_field_is_scoped_by_the_real_one(
    exactly: Exactness, format_version: int
) -> None:
    table = exactly.table(
        partitioned_by=["region", "truncate(10, value)"], properties={"format-version": "1"}
    )
    rows = [{**row, "value": v} for row in of_regions("eu", "us") for v in (5, 15)]
    table.append(rows)
    table.java.updateSpec().removeField("region").commit()
    assert [str(field.transform) for field in table.metadata.spec().fields] == ["void", "truncate[10]"]
    upgrade(table, format_version)
    later = [{**row, "value": row["value"] + 1} for row in rows]
    table.append(later)
    table.delete_keys([{"id": 0}], partition_of={"value": 10})
    table.delete_keys([{"id": 1}], spec_id=0, partition_of={"region": "us", "value": 0})

    def is_deleted(row: Row) -> bool:
        return (row["id"], row["value"]) == (0, 16) or (*row.values(),) == (1, "us", 5)

    result = scoped(exactly, table, visible(rows + later, is_deleted))
    assert result["rows_deleted"] == 3


@V2_FIRST
def test_data_files_from_before_sequence_numbers_are_older_than_every_delete(
    exactly: Exactness, format_version: int
) -> None:
    table = exactly.table(partitioned_by=["region"], properties={"format-version": "1"})
    rows = of_regions("eu", "us", value=0)
    table.append(rows, files=2)
    upgrade(table, format_version)
    rows += of_regions("eu", value=1)
    table.append(of_regions("eu", value=1))
    table.delete_keys([{"id": 1}, {"id": 2}], partition_of={"region": "eu"})
    deleted = {(1, "eu"), (2, "eu")}
    result = scoped(exactly, table, visible(rows, lambda row: (row["id"], row["region"]) in deleted))
    assert result["rows_deleted"] == 4


MOMENTS = [
    datetime(1969, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001
    datetime(1970, 1, 1),  # noqa: DTZ001
    datetime(2024, 2, 29, 12, 30),  # noqa: DTZ001
    datetime(2024, 2, 29, 13, 30),  # noqa: DTZ001
    None,
]


# And of what value the partition of a row is.
TRANSFORMS: dict[str, Callable[[Row], Any]] = {
    "region": lambda row: row["region"],
    "truncate(2, region)": lambda row: row["region"] and row["region"][:2],
    "truncate(10, id)": lambda row: row["id"] // 10,
    "years(at)": lambda row: row["at"] and row["at"].year,
    "months(at)": lambda row: row["at"] and (row["at"].year, row["at"].month),
    "days(at)": lambda row: row["at"] and row["at"].date(),
    "hours(at)": lambda row: row["at"] and (row["at"].date(), row["at"].hour),
    # One bucket each, for these three ids.
    "bucket(8, id)": lambda row: row["id"],
}


# Values of the others are numbers, as those of buckets.
_ALWAYS = [(2, "region"), (3, "truncate(2, region)"), (3, "days(at)"), (3, "bucket(8, id)")]


@pytest.mark.parametrize(
    ("format_version", "transform"),
    thorough_unless(_ALWAYS.__contains__, [(version, each) for each in TRANSFORMS for version in (2, 3)]),
)
def test_every_transform_scopes_the_deletes_of_its_partitions(
    exactly: Exactness, format_version: int, transform: str
) -> None:
    partition_of = TRANSFORMS[transform]
    table = exactly.table(
        "id bigint, region string, at timestamp_ntz",
        format_version=format_version,
        partitioned_by=[transform],
    )
    rows: list[Row] = [
        {"id": i, "region": region, "at": at}
        for i in (-7, 7, 16)
        for region in ("eu-1", "eu-2", "añb", None)
        for at in MOMENTS
    ]
    table.append(rows)
    # Each applies to one partition, that of the row, whatever else the row holds.
    scopes: list[Row] = [
        {"id": 7, "region": "eu-1", "at": MOMENTS[0]},
        {"id": 16, "region": "añb", "at": MOMENTS[2]},
        {"id": -7, "region": None, "at": None},
    ]
    for scope in scopes:
        table.delete_keys([{"id": scope["id"]}], partition_of=scope)
    deleted = {(scope["id"], partition_of(scope)) for scope in scopes}
    scoped(exactly, table, visible(rows, lambda row: (row["id"], partition_of(row)) in deleted))


def in_partition(files: Sequence[WrittenFile], spec_id: int, values: list[Any]) -> list[WrittenFile]:
    """The files as if they had been written under another spec."""
    return [WrittenFile({**file.json, "spec-id": spec_id, "partition": values}) for file in files]


def add_column(table: TableBuilder, name: str, iceberg_type: str) -> None:
    """Any type, also those that Spark's SQL lacks."""
    types = table.spark.sparkContext._jvm.org.apache.iceberg.types.Types  # type: ignore[union-attr]
    table.java.updateSchema().addColumn(name, types.fromPrimitiveString(iceberg_type)).commit()


# Iceberg type -> (value, its JSON in a partition tuple) of two partitions.
VALUES: Mapping[str, list[tuple[Any, Any]]] = {
    "boolean": [(True, True), (False, False)],
    "int": [(-(2**31), -(2**31)), (0, 0)],
    "long": [(2**63 - 1, 2**63 - 1), (-1, -1)],
    "decimal(9,2)": [(Decimal("-1.50"), "-1.50"), (Decimal("0.00"), "0.00")],
    "decimal(38,10)": [
        (Decimal("1234567890123456789012345678.0123456789"), "1234567890123456789012345678.0123456789"),
        (Decimal("0E-10"), "0.0000000000"),
    ],
    "date": [(date(1969, 12, 31), "1969-12-31"), (date(2024, 2, 29), "2024-02-29")],
    "time": [(time(23, 59, 59, 999_999), "23:59:59.999999"), (time(0), "00:00:00")],
    "timestamp": [
        (datetime(1969, 12, 31, 23, 59, 59, 999_999), "1969-12-31T23:59:59.999999"),  # noqa: DTZ001
        (datetime(2024, 2, 29), "2024-02-29T00:00:00"),  # noqa: DTZ001
    ],
    "timestamptz": [
        (datetime(1, 1, 1, 0, 0, 0, 1, UTC), "0001-01-01T00:00:00.000001+00:00"),
        (datetime(9999, 12, 31, tzinfo=UTC), "9999-12-31T00:00:00+00:00"),
    ],
    "string": [("a/b=c%2F ü'\"\\", "a/b=c%2F ü'\"\\"), ("", "")],
    "uuid": [
        (UUID(int=7).bytes, str(UUID(int=7))),
        (UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7").bytes, "f79c3e09-677c-4bbd-a479-3f349cb785e7"),
    ],
    "binary": [(b"\x00\xff", "00FF"), (b"", "")],
    "timestamp_ns": [
        (-1, "1969-12-31T23:59:59.999999999"),
        (1_700_000_000_000_000_000, "2023-11-14T22:13:20"),
    ],
    "timestamptz_ns": [
        (-1_000, "1969-12-31T23:59:59.999999+00:00"),
        (1_700_000_000_123_456_789, "2023-11-14T22:13:20.123456789+00:00"),
    ],
    # Java's manifests have these with their lengths, as no other type.
    "fixed[3]": [(b"\x00\xff\x7f", "00FF7F"), (bytes(3), "000000")],
}


# Of these, Iceberg's generic reader in Java 1.12 (`IdentityPartitionConverters`) gives the key comparison a
# value of another class than it expects, and it fails or matches nothing.
WRONG_IN_JAVA = ("uuid", "fixed[3]", "timestamp_ns", "timestamptz_ns")


@pytest.mark.parametrize(
    ("iceberg_type", "format_version"),
    thorough_unless(
        # All of them as keys, without Spark, are in keys/test_read.py.
        lambda case: case[1] == 3 and (list(VALUES).index(case[0]) % 2 == 0 or case[0] == "fixed[3]"),
        [
            (kind, version)
            for kind in VALUES
            for version in (2, 3)
            if version == 3 or not kind.endswith("_ns")
        ],
    ),
)
def test_a_partition_value_of_every_type_scopes_deletes_and_stands_for_an_absent_key_column(
    exactly: Exactness, format_version: int, iceberg_type: str
) -> None:
    table = exactly.table("id bigint, p_text string", format_version=format_version)
    add_column(table, "p", iceberg_type)
    table.java.updateSpec().addField("p").commit()
    partitions = [*VALUES[iceberg_type], (None, None)]
    files = []
    for at, (_, in_json) in enumerate(partitions):
        rows = [{"id": i, "p_text": str(at)} for i in range(5)]
        # As in a Hive table, the partition column is not in the file.
        written = table.data_files(rows, columns=["id", "p_text"], spec_id=0)
        files += in_partition(written, 1, [in_json])
    table.commit(*files)
    deletes = []
    for at, (value, in_json) in enumerate(partitions):
        by_id = table.equality_deletes([{"id": at}], spec_id=0)
        of_this = table.equality_deletes([{"id": 3, "p": value}], spec_id=0)
        of_other = table.equality_deletes([{"id": 4, "p": partitions[at - 1][0]}], spec_id=0)
        deletes += in_partition([*by_id, *of_this, *of_other], 1, [in_json])
    table.commit(*deletes)
    expected = Counter(
        (str(i), str(at)) for at in range(len(partitions)) for i in range(5) if i not in (at, 3)
    )
    # Spark knows neither `time` nor all moments, and no reader in Java takes all of these from a partition.
    if iceberg_type not in WRONG_IN_JAVA:
        assert java_rows(table, "id", "p_text") == expected
    foretold = exactly.jobs.run("convert", dry_run=True).result
    exactly.jobs.run("index")
    result = exactly.jobs.run("convert").result
    assert [result["unconvertible"], result["rows_deleted"], foretold["rows_deleted"]] == [[], 6, 6]
    snapshot = table.metadata.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["total-equality-deletes"] == "0"
    assert java_rows(table, "id", "p_text") == expected


@V3_FIRST
@pytest.mark.parametrize(
    ("iceberg_type", "partitions"),
    [
        ("date", ["+12345-06-07", "9999-12-31", "-0002-02-03"]),
        ("timestamp", ["+12345-06-07T00:00:00.000001", "0000-01-01T00:00:00", "-0002-02-03T23:59:59"]),
    ],
)
def test_partitions_of_years_that_python_lacks(
    exactly: Exactness, format_version: int, iceberg_type: str, partitions: list[str]
) -> None:
    table = exactly.table("id bigint, p_text string", format_version=format_version)
    add_column(table, "p", iceberg_type)
    table.java.updateSpec().addField("p").commit()
    for p in partitions:
        written = table.data_files([{"id": i, "p_text": p} for i in range(3)], spec_id=0)
        table.commit(*in_partition(written, 1, [p]))
    table.commit(*in_partition(table.equality_deletes([{"id": 1}], spec_id=0), 1, [partitions[0]]))
    table.commit(*in_partition(table.equality_deletes([{"id": 2}], spec_id=0), 1, [partitions[2]]))
    deleted = {(1, partitions[0]), (2, partitions[2])}
    expected = Counter((str(i), p) for p in partitions for i in range(3) if (i, p) not in deleted)
    assert java_rows(table, "id", "p_text") == expected
    result = exactly.jobs.run("convert").result
    assert (result["unconvertible"], result["rows_deleted"]) == ([], 2)
    assert java_rows(table, "id", "p_text") == expected


@V2_FIRST
def test_several_columns_of_a_partition_may_have_one_type(exactly: Exactness, format_version: int) -> None:
    """In manifests, which Avro writes, these types have names, and are described but once."""
    table = exactly.table("id bigint", format_version=format_version)
    types = ["decimal(9,2)", "decimal(9,2)", "decimal(12,4)", "uuid", "uuid", "fixed[3]", "fixed[3]"]
    names = [f"p{at}" for at in range(len(types))]
    for name, kind in zip(names, types, strict=True):
        add_column(table, name, kind)
    update = table.java.updateSpec()
    for name in names:
        update.addField(name)
    update.commit()
    ones, zeros = [1] * 5, [0] * 5
    rows: list[Row] = [
        {"id": i}
        | {"p0": Decimal(f"{of_types[0]}.00"), "p1": Decimal(f"{of_types[1]}.00")}
        | {"p2": Decimal(f"{of_types[2]}.0000")}
        | {name: UUID(int=at).bytes for name, at in zip(names[3:5], of_types[3:5], strict=True)}
        | {"p5": b"abc", "p6": bytes([0, 255, of_types[0]])}
        for of_types in (ones, zeros, [1, 0, 1, 0, 1])
        for i in range(3)
    ]
    table.append(rows)
    of_uuids = {"p3": UUID(int=0), "p4": UUID(int=0)}
    table.delete_keys([{"id": 1}], partition_of=rows[3] | of_uuids)
    table.delete_keys([{"id": 2}], partition_of=rows[6] | of_uuids | {"p4": UUID(int=1)})

    def ids(table: TableBuilder) -> Rows:
        return java_rows(table, "id", "p0", "p1")

    left = [*rows[:4], *rows[5:8]]
    expected = Counter((str(row["id"]), *(f"{row[name]:.2f}" for name in ("p0", "p1"))) for row in left)
    exactly.convert(table, rows=expected, read=ids, duckdb=False)


@V2_FIRST
def test_a_partition_whose_source_column_was_dropped_blocks_nothing_else(
    exactly: Exactness, format_version: int
) -> None:
    """Iceberg in Java has lost that partition's type, and can't write a delete file into it."""
    table = exactly.table(format_version=format_version, partitioned_by=["region"])
    table.append(of_regions("eu", "us", value=0))
    table.delete_keys([{"id": 0}], partition_of={"region": "eu"})
    table.java.updateSpec().removeField("region").commit()
    table.spark.sql(f"ALTER TABLE {table.identifier} DROP COLUMN region")
    table.append([{"id": 7, "value": 1}, {"id": 8, "value": 1}])
    table.delete_keys([{"value": 1, "id": 7}])
    result = exactly.jobs.run("convert").result
    # The delete in the old partition stays; the other one finds rows in new data files only.
    assert [one["code"] for one in result["unconvertible"]] == ["lost_partition_type"]
    assert result["equality_delete_files_removed"] == 1
    expected = Counter({(0, 0): 1, (1, 0): 2, (2, 0): 2, (3, 0): 2, (8, 1): 1})
    assert exactly.visible_rows(table) == expected
    # One that finds rows in the old partition has to stay, too.
    table.delete_keys([{"value": 0, "id": 3}])
    result = exactly.jobs.run("convert").result
    assert [one["code"] for one in result["unconvertible"]] == ["lost_partition_type"] * 2
    assert exactly.visible_rows(table) == expected - Counter({(3, 0): 2})


@V3_FIRST
def test_partitions_of_floats_that_json_has_no_numbers_for(exactly: Exactness, format_version: int) -> None:
    table = exactly.table("id bigint, p double", format_version=format_version)
    table.java.updateSpec().addField("p").commit()
    of_p = ["double('NaN')", "double('Infinity')", "double('-Infinity')", "double('-0.0')", "0.0D", "1.5D"]
    values = ", ".join(f"({i}, {p})" for p in of_p for i in range(3))
    table.spark.sql(f"INSERT INTO {table.identifier} VALUES {values}")
    # Under the first spec, so that it is global.
    table.commit(*table.equality_deletes([{"id": 1}], spec_id=0))
    table.commit(*in_partition(table.equality_deletes([{"id": 2}], spec_id=0), 1, [-0.0]))

    def ids(table: TableBuilder) -> Rows:
        return java_rows(table, "id", "p")

    texts = ("nan", "inf", "-inf", "-0.0", "0.0", "1.5")
    expected = Counter((str(i), p) for p in texts for i in (0, 2) if (i, p) != (2, "-0.0"))
    result = exactly.convert(table, rows=expected, read=ids, duckdb=False)
    assert result["rows_deleted"] == 7
