"""Deletes at other snapshots than the newest."""

from __future__ import annotations

from conformance.case import Cases, Expected
from conformance.cases.rows import key, keyed, row, rows
from conformance.table import Table

CASES = Cases("Snapshot References")
case = CASES.case


@case("Point in Time Reads (Time Travel)")
def time_travel_before_the_deletes(t: Table) -> Expected:
    """At an older snapshot, deletes that came later don't count."""
    keyed(t)
    at = t.commit(t.data(*rows([1, 2])))
    t.commit(t.equality(key(1), by=["k"]))
    t.commit(t.data(row(10, 3)))
    return Expected(rows([1, 2]), at)


@case("Point in Time Reads (Time Travel)")
def time_travel_between_deletes(t: Table) -> Expected:
    """Of the deletes, those count that were there."""
    keyed(t)
    t.commit(t.data(*rows([1, 2, 3])))
    at = t.commit(t.equality(key(1), by=["k"]))
    t.commit(t.equality(key(2), by=["k"]))
    return Expected([row(1, 2), row(2, 3)], at)


@case()
def a_branch_with_deletes_of_its_own(t: Table) -> Expected:
    """The head of a branch has its own deletes, and not those that main got since."""
    keyed(t)
    t.commit(t.data(*rows([1, 2, 3])))
    t.create_branch("audit")
    t.commit(t.equality(key(1), by=["k"]))
    at = t.commit(t.equality(key(2), by=["k"]), branch="audit")
    return Expected([row(0, 1), row(2, 3)], at)


@case()
def main_beside_a_branch(t: Table) -> Expected:
    """Main does not know the deletes of a branch, though they are newer."""
    keyed(t)
    t.commit(t.data(*rows([1, 2, 3])))
    t.create_branch("audit")
    t.commit(t.equality(key(2), by=["k"]), branch="audit")
    t.commit(t.equality(key(1), by=["k"]))
    return Expected([row(1, 2), row(2, 3)])


@case()
def a_tag(t: Table) -> Expected:
    """A tag keeps the rows of its snapshot, deleted ones left out."""
    keyed(t)
    t.commit(t.data(*rows([1, 2, 3])))
    at = t.commit(t.equality(key(1), by=["k"]))
    t.create_tag("release")
    t.commit(t.equality(key(2), by=["k"]))
    return Expected([row(1, 2), row(2, 3)], at)


@case("Table Metadata Fields")
def a_table_that_was_rolled_back(t: Table) -> Expected:
    """After a rollback the current snapshot is not the newest: later deletes don't count, and new ones do."""
    keyed(t)
    first = t.commit(t.data(*rows([1, 2, 3])))
    t.commit(t.equality(key(1), by=["k"]))
    t.roll_back(first)
    t.commit(t.equality(key(2), by=["k"]))
    return Expected([row(0, 1), row(2, 3)])
