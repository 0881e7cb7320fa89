"""Which rows an equality delete deletes: its age against theirs, its columns, and deletes of other kinds."""

from __future__ import annotations

from conformance.case import Cases
from conformance.cases.rows import key, keyed, row, rows
from conformance.table import Table
from conformance.types import Row, field

CASES = Cases("Scan Planning")
case = CASES.case


@case()
def older_data_is_deleted(t: Table) -> list[Row]:
    """An equality delete applies to data files whose data sequence number is strictly less than its own."""
    keyed(t)
    t.commit(t.data(*rows([1, 2, 3])))
    t.commit(t.equality(key(2), by=["k"]))
    return [row(0, 1), row(2, 3)]


@case()
def data_of_the_same_commit_stays(t: Table) -> list[Row]:
    """An upsert: an equality delete does not apply to data files with its own data sequence number."""
    keyed(t)
    t.commit(t.data(*rows([1, 2])))
    t.commit(t.data(row(10, 2)), t.equality(key(2), by=["k"]))
    return [row(0, 1), row(10, 2)]


@case()
def newer_data_stays(t: Table) -> list[Row]:
    """Rows that come back after they were deleted are seen."""
    keyed(t)
    t.commit(t.data(*rows([1, 2])))
    t.commit(t.equality(key(1), key(2), by=["k"]))
    t.commit(t.data(row(10, 2)))
    return [row(10, 2)]


@case()
def a_key_comes_and_goes(t: Table) -> list[Row]:
    """Each equality delete is taken against each data file by its own sequence number."""
    keyed(t)
    for i in range(4):
        t.commit(t.data(row(i, 7)), t.equality(key(7), by=["k"]))
    t.commit(t.equality(key(7), by=["k"]))
    t.commit(t.data(row(10, 7), row(11, 8)))
    t.commit(t.data(row(20, 8)), t.equality(key(8), by=["k"]))
    return [row(10, 7), row(20, 8)]


@case("Manifest Entry Fields")
def rewritten_data_keeps_its_age(t: Table) -> list[Row]:
    """A compaction may give its data files an older data sequence number: the deletes that are newer than
    that still apply, whatever the file sequence number is."""
    keyed(t)
    old = t.data(*rows([1, 2, 3]))
    first = t.commit(old)
    t.commit(t.equality(key(2), by=["k"]))
    t.commit(t.data(*rows([1, 2, 3])), removed=[old], data_sequence=1)
    assert first
    return [row(0, 1), row(2, 3)]


@case("Manifest Entry Fields")
def rewritten_data_without_its_age_is_new(t: Table) -> list[Row]:
    """A data file that is written anew is newer than the deletes before it."""
    keyed(t)
    old = t.data(*rows([1, 2, 3]))
    t.commit(old)
    t.commit(t.equality(key(2), by=["k"]))
    t.commit(t.data(row(0, 1), row(2, 3), row(10, 2)), removed=[old])
    return [row(0, 1), row(2, 3), row(10, 2)]


@case()
def removed_deletes_do_not_count(t: Table) -> list[Row]:
    """An entry of a manifest with status DELETED is no delete any more."""
    keyed(t)
    t.commit(t.data(*rows([1, 2, 3])))
    delete, kept = t.equality(key(2), by=["k"]), t.equality(key(3), by=["k"])
    t.commit(delete, kept)
    t.commit(removed=[delete])
    return [row(0, 1), row(1, 2)]


@case("Sequence Number Inheritance")
def a_table_of_version_1_was_upgraded(t: Table) -> list[Row]:
    """Manifests of version 1 have no sequence numbers: their data files have 0, and are older than all
    deletes."""
    version = t.format_version
    t.upgrade(1)
    keyed(t)
    t.commit(t.data(*rows([1, 2, 3])))
    t.upgrade(version)
    t.commit(t.equality(key(2), by=["k"]))
    t.commit(t.data(row(10, 2)))
    return [row(0, 1), row(2, 3), row(10, 2)]


@case("Manifest Entry Fields")
def kept_deletes_keep_their_age(t: Table) -> list[Row]:
    """A manifest of deletes that is written again, as one of them was removed: the others are EXISTING, with
    the sequence number of their own commit, and not with that of the manifest."""
    keyed(t)
    t.commit(t.data(*rows([1, 2, 3])))
    removed, kept = t.equality(key(1), by=["k"]), t.equality(key(2), by=["k"])
    t.commit(removed, kept)
    t.commit(t.data(row(10, 2)))
    t.commit(removed=[removed])
    return [row(0, 1), row(2, 3), row(10, 2)]


@case("Manifest Entry Fields")
def kept_data_keeps_its_age(t: Table) -> list[Row]:
    """The same of a manifest of data files: those that stay are still older than the deletes."""
    keyed(t)
    removed, kept = t.data(*rows([5, 6])), t.data(*rows([1, 2], 10))
    t.commit(removed, kept)
    t.commit(t.equality(key(1), by=["k"]))
    t.commit(removed=[removed])
    return [row(11, 2)]


@case("Equality Delete Files")
def every_row_of_a_key_goes(t: Table) -> list[Row]:
    """Keys are not unique: a delete takes every row of its key, in one file and in several."""
    keyed(t)
    t.commit(t.data(*rows([1, 1, 2, 1])), t.data(*rows([1, 3, 1], 10)))
    t.commit(t.data(*rows([1, 4], 20)))
    t.commit(t.equality(key(1), by=["k"]))
    return [row(2, 2), row(11, 3), row(21, 4)]


@case("Equality Delete Files")
def a_key_that_is_nowhere(t: Table) -> list[Row]:
    """A delete that matches nothing changes nothing."""
    keyed(t)
    t.commit(t.data(*rows([1, 2])))
    t.commit(t.equality(key(99), by=["k"]))
    return rows([1, 2])


@case("Equality Delete Files")
def every_row_of_a_file_goes(t: Table) -> list[Row]:
    """A data file of which no row is left."""
    keyed(t)
    t.commit(t.data(*rows([1, 2])), t.data(row(10, 3)))
    t.commit(t.equality(key(1), key(2), by=["k"]))
    return [row(10, 3)]


def _composite(t: Table) -> None:
    t.set_schema(field(1, "id", "long"), field(2, "a", "int"), field(3, "b", "string"))


@case("Equality Delete Files")
def columns_are_anded(t: Table) -> list[Row]:
    """A delete of several columns takes the rows that are equal in all of them."""
    _composite(t)
    data: list[Row] = [
        {"id": 0, "a": 1, "b": "x"},
        {"id": 1, "a": 1, "b": "y"},
        {"id": 2, "a": 2, "b": "x"},
        {"id": 3, "a": 2, "b": "y"},
    ]
    t.commit(t.data(*data))
    t.commit(t.equality({"a": 1, "b": "x"}, {"a": 2, "b": "y"}, by=["a", "b"]))
    return data[1:3]


@case("Equality Delete Files")
def delete_columns_in_another_order(t: Table) -> list[Row]:
    """Columns are told by field id, wherever they stand in the delete file and in `equality_ids`."""
    _composite(t)
    data: list[Row] = [{"id": 0, "a": 1, "b": "x"}, {"id": 1, "a": 1, "b": "y"}]
    t.commit(t.data(*data))
    t.commit(t.equality({"a": 1, "b": "x"}, by=["b", "a"], columns=["b", "a"]))
    return data[1:]


@case("Equality Delete Files")
def delete_files_with_different_columns(t: Table) -> list[Row]:
    """Each delete file has delete columns of its own, in one snapshot."""
    _composite(t)
    data: list[Row] = [{"id": i, "a": i % 3, "b": "xyz"[i % 3]} for i in range(6)]
    t.commit(t.data(*data))
    t.commit(
        t.equality({"a": 0}, by=["a"]),
        t.equality({"b": "y"}, by=["b"]),
        t.equality({"id": 2, "b": "z"}, by=["id", "b"]),
    )
    return data[5:]


@case("Equality Delete Files")
def other_columns_of_a_delete_file_do_not_count(t: Table) -> list[Row]:
    """A delete file may hold the whole deleted row; only the columns of `equality_ids` are compared."""
    _composite(t)
    data: list[Row] = [{"id": 0, "a": 1, "b": "x"}, {"id": 1, "a": 2, "b": "y"}, {"id": 2, "a": 3, "b": None}]
    t.commit(t.data(*data))
    whole = ["id", "a", "b"]
    t.commit(
        t.equality({"id": 77, "a": 1, "b": "other"}, {"id": None, "a": 3, "b": "x"}, by=["a"], columns=whole)
    )
    return data[1:2]


@case("Equality Delete Files")
def null_is_equal_to_null(t: Table) -> list[Row]:
    """A null in a delete column matches rows whose value is null, and no others."""
    keyed(t)
    t.commit(t.data(*rows([1, None, 0, None])))
    t.commit(t.equality(key(None), by=["k"]))
    return [row(0, 1), row(2, 0)]


@case("Equality Delete Files")
def a_value_is_not_equal_to_null(t: Table) -> list[Row]:
    """A delete of a value leaves rows whose value is null."""
    keyed(t)
    t.commit(t.data(*rows([1, None, 0])))
    t.commit(t.equality(key(0), key(1), by=["k"]))
    return [row(1, None)]


@case("Equality Delete Files")
def null_in_one_of_two_columns(t: Table) -> list[Row]:
    """A null is compared like a value beside the other columns."""
    _composite(t)
    data: list[Row] = [
        {"id": 0, "a": 1, "b": None},
        {"id": 1, "a": 1, "b": "x"},
        {"id": 2, "a": None, "b": None},
        {"id": 3, "a": None, "b": "x"},
        {"id": 4, "a": 2, "b": None},
    ]
    t.commit(t.data(*data))
    t.commit(t.equality({"a": 1, "b": None}, {"a": None, "b": "x"}, by=["a", "b"]))
    return [data[1], data[2], data[4]]


@case()
def position_deletes_of_the_same_commit_count(t: Table) -> list[Row]:
    """Deletes by position apply to data files of their own data sequence number, unlike those by key."""
    keyed(t)
    data = t.data(*rows([1, 2, 3]))
    t.commit(data, *t.deleted_positions({data: [0]}), t.equality(key(3), by=["k"]))
    return [row(1, 2), row(2, 3)]


@case()
def deletes_by_position_and_by_key_together(t: Table) -> list[Row]:
    """Both kinds apply to one data file; some rows are hit by both."""
    keyed(t)
    data, other = t.data(*rows([1, 2, 3, 4, 5])), t.data(*rows([2, 4], 10))
    t.commit(data, other)
    t.commit(*t.deleted_positions({data: [1, 4], other: [0]}))
    t.commit(t.equality(key(2), key(3), by=["k"]))
    return [row(0, 1), row(3, 4), row(11, 4)]


@case()
def deletes_by_position_after_those_by_key(t: Table) -> list[Row]:
    """The order of the commits makes no difference."""
    keyed(t)
    data = t.data(*rows([1, 2, 3, 4, 5]))
    t.commit(data)
    t.commit(t.equality(key(2), key(3), by=["k"]))
    t.commit(*t.deleted_positions({data: [0]}))
    return [row(3, 4), row(4, 5)]


@case("Position Delete Files", versions=(2,))
def two_position_delete_files_of_one_data_file(t: Table) -> list[Row]:
    """All position delete files that apply to a data file count together."""
    keyed(t)
    data = t.data(*rows([1, 2, 3, 4]))
    t.commit(data)
    t.commit(t.position_deletes({data: [0]}))
    t.commit(t.position_deletes({data: [0, 2]}))
    t.commit(t.equality(key(4), by=["k"]))
    return [row(1, 2)]


@case("Position Delete Files", versions=(2,))
def position_deletes_of_an_unnamed_file(t: Table) -> list[Row]:
    """`referenced_data_file` and exact bounds of paths are optional: only the file itself says which data
    files it is of."""
    keyed(t)
    data, other = t.data(*rows([1, 2, 3])), t.data(*rows([1, 2, 3], 10))
    t.commit(data, other)
    t.commit(t.position_deletes({data: [0]}, names_data_file=False))
    t.commit(t.equality(key(3), by=["k"]))
    return [row(1, 2), row(10, 1), row(11, 2)]


@case()
def a_data_file_that_came_back(t: Table) -> list[Row]:
    """A data file that was removed and added again is newer than the deletes before that, by key and by
    position, although its path is the same. A vector has gone with it."""
    keyed(t)
    data = t.data(*rows([1, 2, 3, 4]))
    t.commit(data)
    of_it = t.deleted_positions({data: [0]})
    t.commit(*of_it)
    t.commit(t.equality(key(2), by=["k"]))
    t.commit(removed=[data, *(of_it if t.format_version > 2 else ())])
    t.commit(data)
    t.commit(t.equality(key(4), by=["k"]))
    return rows([1, 2, 3])


@case("Deletion Vectors", versions=(3,))
def a_vector_replaces_position_deletes(t: Table) -> list[Row]:
    """Of a table that was upgraded from version 2: once a data file has a deletion vector, which holds what
    its position delete files held, readers leave those alone; other data files keep theirs."""
    t.upgrade(2)
    keyed(t)
    data, other = t.data(*rows([1, 2, 3])), t.data(*rows([1, 2, 3], 10))
    t.commit(data, other)
    t.commit(t.position_deletes({data: [0], other: [1]}))
    t.upgrade(3)
    t.commit(*t.vectors({data: [0, 1]}))
    t.commit(t.equality(key(3), by=["k"]))
    return [row(10, 1)]


@case("Deletion Vectors", versions=(3,))
def vectors_that_share_a_file(t: Table) -> list[Row]:
    """Several vectors in one Puffin file: the manifest says where each lies."""
    keyed(t)
    files = [t.data(*rows([1, 2, 3, 4], 10 * i)) for i in range(3)]
    t.commit(*files)
    t.commit(*t.vectors({files[0]: [0], files[1]: [1, 2], files[2]: [3]}))
    t.commit(t.equality(key(4), by=["k"]))
    return [row(1, 2), row(2, 3), row(10, 1), row(20, 1), row(21, 2), row(22, 3)]


@case("Deletion Vectors", versions=(3,))
def a_vector_that_was_replaced(t: Table) -> list[Row]:
    """Of two vectors of a data file only the live one counts."""
    keyed(t)
    data = t.data(*rows([1, 2, 3, 4]))
    t.commit(data)
    (old,) = t.vectors({data: [0]})
    t.commit(old)
    t.commit(*t.vectors({data: [0, 1]}), removed=[old])
    t.commit(t.equality(key(4), by=["k"]))
    return [row(2, 3)]


@case(versions=(3,))
def a_vector_that_is_older_than_its_data_file(t: Table) -> list[Row]:
    """A vector applies to the data file of its path unless that is newer: this one stayed when the data file
    was removed, which was added again later."""
    keyed(t)
    data = t.data(*rows([1, 2, 3]))
    t.commit(data)
    t.commit(*t.vectors({data: [0]}))
    t.commit(removed=[data])
    t.commit(data)
    t.commit(t.equality(key(3), by=["k"]))
    return rows([1, 2])


@case("Deletion Vectors", versions=(3,))
def a_vector_of_runs(t: Table) -> list[Row]:
    """A vector may hold runs of positions, in more than one of Roaring's containers; 70,000 rows, all but a
    few of them deleted."""
    keyed(t)
    data = t.data(*rows([*range(70_000)]))
    t.commit(data)
    kept = {0, 9, 65_535, 65_536, 69_999}
    t.commit(*t.vectors({data: [pos for pos in range(70_000) if pos not in kept]}))
    t.commit(t.equality(key(9), by=["k"]))
    return [row(i, i) for i in sorted(kept - {9})]


@case("Deletion Vectors", versions=(3,))
def a_vector_of_many_positions(t: Table) -> list[Row]:
    """More than 4,096 positions that are no runs lie in a bitmap of 65,536 bits."""
    keyed(t)
    data = t.data(*rows([*range(9_000)]))
    t.commit(data)
    t.commit(*t.vectors({data: range(0, 9_000, 2)}))
    t.commit(t.equality(key(1), by=["k"]))
    return [row(i, i) for i in range(3, 9_000, 2)]
