"""Formats of files, and what manifests say of them."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from conformance.case import Case, Cases, Expected
from conformance.cases.rows import key, keyed, row, rows
from conformance.table import Table
from conformance.types import Row, field

CASES = Cases("Delete Formats")
case = CASES.case


def _of_format(of_data: str, of_deletes: str) -> Callable[[Table], list[Row]]:
    def build(t: Table) -> list[Row]:
        t.set_schema(field(1, "id", "long"), field(2, "k", "string"))
        data = t.data(*rows(["a", "b", None, "d", "e"]), file_format=of_data)
        t.commit(data)
        if t.format_version == 2:
            t.commit(t.position_deletes({data: [4]}, of_deletes))
        else:
            t.commit(*t.vectors({data: [4]}))
        t.commit(t.equality(key("b"), key(None), by=["k"], file_format=of_deletes))
        t.commit(t.data(row(10, "b"), file_format=of_data))
        return [row(0, "a"), row(3, "d"), row(10, "b")]

    return build


for _data, _deletes in (("orc", "orc"), ("avro", "avro"), ("parquet", "avro"), ("orc", "parquet")):
    CASES.all.append(
        Case(
            f"{_deletes}-deletes-of-{_data}-data",
            f"Delete files in {_deletes.capitalize()} apply to data files in {_data.capitalize()}.",
            "Delete Formats",
            _of_format(_data, _deletes),
        )
    )


@case("Data File Fields")
def manifests_without_bounds(t: Table) -> list[Row]:
    """Bounds and counts are optional: a reader that has none prunes nothing."""
    keyed(t)
    t.commit(t.data(*rows([1, 2, None]), with_bounds=False))
    t.commit(t.equality(key(2), key(None), by=["k"], with_bounds=False))
    return [row(0, 1)]


@case("Data File Fields")
def bounds_that_were_cut_off(t: Table) -> list[Row]:
    """Bounds of long texts are only what these begin with, rounded down and up: a delete must not be skipped
    since its value lies beyond a lower bound that looks larger."""
    keyed(t, "string")
    start = "the same sixteen characters, and then "
    t.commit(t.data(*rows([start + "b", start + "c"])))
    t.commit(t.equality(key(start + "c"), by=["k"]), t.equality(key(start + "a"), by=["k"]))
    return [row(0, start + "b")]


@case("Data File Fields", is_defined=False)
def bounds_of_uuids_on_both_sides_of_the_sign(t: Table) -> Expected:
    """The spec does not settle how UUIDs are ordered in bounds. Here they are by their bytes, unsigned: who
    compares them as signed numbers finds bounds that hold nothing, and may miss the delete of the first row
    (which is why tables should have no such bounds, or readers not use them)."""
    keyed(t, "uuid")
    low, high = UUID("70000000-0000-4000-8000-000000000000"), UUID("90000000-0000-4000-8000-000000000000")
    t.commit(t.data(*rows([low, high])))
    t.commit(t.equality(key(low), by=["k"]))
    return Expected([row(1, high)], open_ids=(0,))


@case("Position Delete Files")
def several_row_groups_and_pages(t: Table) -> list[Row]:
    """Positions are counted through a data file, over all its row groups and pages."""
    keyed(t)
    data = t.data(*rows([i % 7 or None for i in range(40)]), group_rows=12, page_rows=5)
    t.commit(data)
    t.commit(*t.deleted_positions({data: [0, 4, 5, 11, 12, 24, 30, 39]}))
    t.commit(t.equality(key(3), key(None), by=["k"]))
    gone = {0, 4, 5, 11, 12, 24, 30, 39}
    return [row(i, i % 7) for i in range(40) if i not in gone and i % 7 not in (0, 3)]


@case("Data File Fields")
def bounds_of_only_nulls(t: Table) -> list[Row]:
    """A file of nulls has no bounds, and its deletes apply all the same."""
    keyed(t)
    t.commit(t.data(*rows([None, None])), t.data(*rows([1, None], 10)))
    t.commit(t.equality(key(None), by=["k"]))
    return [row(10, 1)]


@case("Equality Delete Files")
def an_empty_delete_file(t: Table) -> list[Row]:
    """A delete file without rows deletes nothing."""
    keyed(t)
    t.commit(t.data(*rows([1, None])))
    t.commit(t.equality(by=["k"]))
    return rows([1, None])


@case("Equality Delete Files")
def a_key_twice_in_a_delete_file(t: Table) -> list[Row]:
    """Keys of a delete file need be neither sorted nor unique."""
    keyed(t)
    t.commit(t.data(*rows([3, 1, 2, 3])))
    t.commit(t.equality(key(3), key(1), key(3), by=["k"]))
    return [row(2, 2)]
