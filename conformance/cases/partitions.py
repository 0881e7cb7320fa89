"""In which partitions a delete applies."""

from __future__ import annotations

from conformance.case import Cases
from conformance.table import Table
from conformance.types import Row, field

CASES = Cases("Scan Planning")
case = CASES.case

_REGION = (2, "region", "identity", "string")


def _regions(t: Table, *, partitioned: bool = True) -> None:
    t.set_schema(field(1, "id", "long"), field(2, "region", "string"), field(3, "k", "int"))
    if partitioned:
        t.set_spec(_REGION)


def _row(i: int, region: str | None, k: int) -> Row:
    return {"id": i, "region": region, "k": k}


@case()
def only_the_partition_of_the_delete(t: Table) -> list[Row]:
    """An equality delete of a partitioned spec applies to data files of its own partition only."""
    _regions(t)
    t.commit(t.data(_row(0, "eu", 1), _row(1, "eu", 2)), t.data(_row(2, "us", 1), _row(3, "us", 2)))
    t.commit(t.equality({"k": 1}, by=["k"], partition={"region": "eu"}))
    return [_row(1, "eu", 2), _row(2, "us", 1), _row(3, "us", 2)]


@case()
def the_partition_of_null(t: Table) -> list[Row]:
    """A null partition value is equal to null, and to nothing else."""
    _regions(t)
    t.commit(t.data(_row(0, None, 1), _row(1, None, 2)), t.data(_row(2, "", 1)), t.data(_row(3, "null", 1)))
    t.commit(t.equality({"k": 1}, by=["k"], partition={"region": None}))
    return [_row(1, None, 2), _row(2, "", 1), _row(3, "null", 1)]


@case()
def a_partition_of_two_fields(t: Table) -> list[Row]:
    """Partitions are equal if all their values are."""
    _regions(t, partitioned=False)
    t.set_spec(_REGION, (3, "k", "identity", "int"))
    data = [_row(0, "eu", 1), _row(1, "eu", 2), _row(2, "us", 1)]
    t.commit(*(t.data(one, _row(10 * (i + 1), one["region"], one["k"])) for i, one in enumerate(data)))
    t.commit(t.equality({"id": 0}, {"id": 1}, {"id": 2}, by=["id"], partition={"region": "eu", "k": 1}))
    return [_row(10, "eu", 1), data[1], _row(20, "eu", 2), data[2], _row(30, "us", 1)]


@case()
def bucketed_partitions(t: Table) -> list[Row]:
    """Partition values are compared as manifests have them, whatever the transform is. The hash of 34 is one
    of the spec's Appendix B."""
    _regions(t, partitioned=False)
    t.set_spec((1, "id_bucket", "bucket[16]", "int"))
    of_34, other = {"id_bucket": 2017239379 % 16}, {"id_bucket": (2017239379 + 1) % 16}
    t.commit(t.data(_row(34, "eu", 1), partition=of_34))
    t.commit(
        t.equality({"k": 1}, by=["k"], partition=other),
        t.equality({"k": 2}, by=["k"], partition=of_34),
    )
    return [_row(34, "eu", 1)]


@case()
def unpartitioned_deletes_are_global(t: Table) -> list[Row]:
    """An equality delete that was written with an unpartitioned spec applies to data files of all partitions
    and of all specs."""
    _regions(t, partitioned=False)
    t.commit(t.data(_row(0, "eu", 1), _row(1, "eu", 2)))
    t.set_spec(_REGION)
    t.commit(t.data(_row(2, "eu", 1), _row(3, "eu", 2)), t.data(_row(4, "us", 1)))
    t.commit(t.equality({"k": 1}, by=["k"], spec_id=0))
    return [_row(1, "eu", 2), _row(3, "eu", 2)]


@case()
def partitioned_deletes_leave_unpartitioned_data(t: Table) -> list[Row]:
    """Both the spec and the values must be equal: after a table became partitioned, deletes of its new spec
    do not apply to data files of the old one."""
    _regions(t, partitioned=False)
    t.commit(t.data(_row(0, "eu", 1)))
    t.set_spec(_REGION)
    t.commit(t.data(_row(1, "eu", 1)))
    t.commit(t.equality({"k": 1}, by=["k"], partition={"region": "eu"}))
    return [_row(0, "eu", 1)]


@case()
def equal_values_of_another_spec(t: Table) -> list[Row]:
    """Partition values that look alike are of different partitions if their specs differ."""
    _regions(t, partitioned=False)
    t.set_spec((3, "k", "identity", "int"))
    t.commit(t.data(_row(0, "eu", 1)))
    t.set_spec((1, "id", "identity", "long"))
    t.commit(t.data(_row(1, "eu", 5)))
    t.commit(t.equality({"region": "eu"}, by=["region"], partition={"id": 1}))
    return [_row(0, "eu", 1)]


@case("Partition Evolution")
def older_deletes_after_the_spec_changed(t: Table) -> list[Row]:
    """Deletes of an earlier spec still apply to the data files of that spec."""
    _regions(t)
    t.commit(t.data(_row(0, "eu", 1), _row(1, "eu", 2)))
    t.commit(t.equality({"k": 1}, by=["k"], partition={"region": "eu"}))
    t.set_spec((3, "k", "identity", "int"))
    t.commit(t.data(_row(2, "eu", 1)))
    return [_row(1, "eu", 2), _row(2, "eu", 1)]


@case()
def positions_in_partitions(t: Table) -> list[Row]:
    """Deletes by position beside those by key, in each partition and of both specs."""
    _regions(t, partitioned=False)
    old = t.data(_row(0, "eu", 1), _row(1, "eu", 2))
    t.commit(old)
    t.set_spec(_REGION)
    new = t.data(_row(2, "eu", 1), _row(3, "eu", 2), _row(4, "eu", 3))
    t.commit(new)
    t.commit(*t.deleted_positions({old: [1]}), *t.deleted_positions({new: [0]}))
    t.commit(t.equality({"k": 2}, by=["k"], partition={"region": "eu"}))
    return [_row(0, "eu", 1), _row(4, "eu", 3)]
