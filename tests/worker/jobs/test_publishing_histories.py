"""Random histories of a staging branch and its target, against a model in plain words."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.deaths import killed_at_its_commit
from tests.jobs import Jobs
from tests.staging import BRANCH, Lake
from tests.thorough import of_many
from worker.publication.plan import PublicationError

pytestmark = pytest.mark.integration

Row = tuple[int | None, str, int]  # id, region, value
STEPS = 40  # half as many with every change
_UNTOLD = ("publication_expired", "staged_snapshots_expired", "staging_branch_unclear")


@dataclass(frozen=True)
class Commit:
    """A staged one: it deletes older rows by their key, then adds rows."""

    deleted: tuple[tuple[str, Any, str | None], ...]  # column, value, and the region that it is confined to
    added: tuple[Row, ...]

    def on(self, rows: list[Row]) -> list[Row]:
        return [one for one in rows if not any(map(_matches(one), self.deleted))] + list(self.added)


def _matches(row: Row) -> Callable[[tuple[str, Any, str | None]], bool]:
    values = dict(zip(("id", "region", "value"), row, strict=True))
    return lambda key: values[key[0]] == key[1] and key[2] in (None, values["region"])


@dataclass(frozen=True)
class State:
    """Of the target at one of its snapshots: its rows, and how many staged commits it has.

    branch: the how manieth staging branch that was by then.
    """

    rows: list[Row]
    published: int
    branch: int


class History:
    def __init__(self, lake: Lake, seed: int) -> None:
        self.lake, self.draw = lake, random.Random(seed)
        self.partitioned = self.draw.random() < 0.5
        self.branches, self.has_expired, self.has_renewed = 0, False, False
        self.version = self.draw.choice([2, 3])
        self.staged: list[Commit] = []
        self.commits: set[int] = set()
        rows = self._rows(6)
        self.table = lake.create(
            *map(_row, rows),
            format_version=self.version,
            partitioned_by=["region"] if self.partitioned else [],
        )
        self.target = State(rows, 0, 0)
        self.past = {self.table.snapshot_id: self.target}

    def _rows(self, count: int) -> list[Row]:
        draw = self.draw
        ids = [None, *range(12)]
        return [(draw.choice(ids), draw.choice(["eu", "us"]), draw.randrange(6)) for _ in range(count)]

    def step(self) -> None:
        steps = [self.stage] * 8 + [self.publish] * 4 + [self.append] * 2
        steps += [
            self.delete,
            self.compact,
            self.index,
            self.die,
            self.expire,
            self.roll_back,
            self.replace,
            self.evolve_schema,
            self.evolve_spec,
            *[self.renew, self.unstage] * 2,
        ]
        self.draw.choice(steps)()
        assert self.lake.rows() == Counter(self.target.rows)

    def stage(self) -> None:
        table, draw = self.table, self.draw
        rows = self._rows(draw.randrange(4))
        column = draw.choice(["id", "id", "id", "value"])
        of_keys = rows if draw.random() < 0.6 else self._rows(draw.randrange(3))
        keys = [(column, one[0] if column == "id" else one[2], one[1]) for one in of_keys]
        files = table.data_files([_row(one) for one in rows]) if rows else []
        deletes = []
        if of_keys:
            deletes = table.equality_deletes([_row(one) for one in of_keys], equality_columns=[column])
        # Iceberg lets nobody write vectors where the branch's history is cut.
        may_write = self.version == 2 or not self.has_expired
        if len(rows) > 1 and not self.partitioned and draw.random() < 0.5 and may_write:
            # The writer's own, of the same commit, as for a key that changes twice in a checkpoint.
            write = table.deletion_vectors if self.version == 3 else table.position_deletes
            deletes += write({files[0].path: [0]})
            rows = rows[1:]
        self.lake.stage(*files, *deletes)
        self.commits.add(self.table.metadata.refs[BRANCH].snapshot_id)
        scoped = [(name, value, region if self.partitioned else None) for name, value, region in keys]
        self.staged.append(Commit(tuple(scoped), tuple(rows)))

    def _waiting(self) -> list[Commit]:
        """What left with an older branch comes no more, also where the target was rolled back behind it."""
        return self.staged[self.target.published if self.target.branch == self.branches else 0 :]

    def _published(self) -> State:
        rows = self.target.rows
        for commit in self._waiting():
            rows = commit.on(rows)
        return State(rows, len(self.staged), self.branches)

    def _is_at(self, state: State) -> None:
        self.target = self.past[self.table.snapshot_id] = state

    def publish(self, *, renew: bool = False) -> None:
        """All that waits, or nothing where expiry, or a renewal before a rollback, has taken what tells; then
        the branch starts anew."""
        waiting, published = len(self._waiting()), self._published()
        try:
            result = self.lake.publish(parameters={"from": BRANCH, "renew": renew})
        except PublicationError as error:
            is_untold = self.has_expired and error.code in _UNTOLD
            if not is_untold and not (self.has_renewed and error.code == "staging_branch_replaced"):
                raise
            self._start_branch()
            return
        self.has_renewed |= result["renewed"]
        assert (result["staged_snapshots"], result["stopped_at"]) == (waiting, None)
        self._is_at(published)

    def die(self) -> None:
        when = self.draw.choice(["before", "after"])
        state = self._published()
        try:
            with killed_at_its_commit(when) as death:
                self.lake.publish()
        except PublicationError:
            return
        if not death.happened or when == "after":
            self._is_at(state)

    def replace(self) -> None:
        """By one that starts at the target's head."""
        self.publish()
        self._start_branch()

    def _start_branch(self) -> None:
        self.branches += 1
        self.staged = []
        self.table.java.manageSnapshots().replaceBranch(BRANCH, self.table.snapshot_id).commit()

    def renew(self) -> None:
        self.publish(renew=True)

    def unstage(self) -> None:
        """Rolls the staging branch back behind some of what waits."""
        metadata, waiting = self.table.metadata, len(self._waiting())
        known = {one.snapshot_id: one.parent_snapshot_id for one in metadata.snapshots}
        at: int | None = metadata.refs[BRANCH].snapshot_id
        for _ in range(self.draw.randrange(waiting) if waiting else 0):
            at = known.get(at) if at is not None else None
            if at not in known or at not in self.commits:
                return
            self.staged.pop()
            self.table.java.manageSnapshots().replaceBranch(BRANCH, at).commit()

    def evolve_schema(self) -> None:
        """The rows stay what they are."""
        self.table.java.updateSchema().addColumn("note", self.table.java.schema().findType("region")).commit()
        self.table.java.updateSchema().deleteColumn("note").commit()

    def evolve_spec(self) -> None:
        """All that is published goes to the new one: deletes of a partition spare rows of others."""
        self.publish()
        update = self.table.java.updateSpec()
        (update.removeField if self.partitioned else update.addField)("region").commit()
        self.partitioned = not self.partitioned
        self.table.compact()
        self.past = {}
        self._is_at(self.target)

    def append(self) -> None:
        rows = self._rows(2)
        self.table.append([_row(one) for one in rows])
        self._is_at(replace(self.target, rows=self.target.rows + rows))

    def delete(self) -> None:
        id_ = self.draw.randrange(12)
        self.lake.jobs.run("delete", rows=[{"id": id_}], parameters={"key_columns": ["id"]})
        self._is_at(replace(self.target, rows=[one for one in self.target.rows if one[0] != id_]))

    def compact(self) -> None:
        self.table.compact()
        self._is_at(self.target)

    def index(self) -> None:
        self.lake.jobs.run("index", key_sets=[["id"]])

    def expire(self) -> None:
        """All that no branch's head needs; what waits is lost with it, unless it is published before."""
        if self.draw.random() < 0.8:
            self.publish()
        left = self.draw.choice([1, 1, 3])
        self.table.java.expireSnapshots().expireOlderThan(2**62).retainLast(left).commit()
        self.has_expired = True

    def roll_back(self) -> None:
        known = {one.snapshot_id: one.parent_snapshot_id for one in self.table.metadata.snapshots}
        at = self.table.snapshot_id
        ancestors = []
        while at in known:
            if at in self.past:
                ancestors.append(at)
            at = known[at]
        chosen = self.draw.choice(ancestors)
        self.table.java.manageSnapshots().rollbackTo(chosen).commit()
        self.target = self.past[chosen]


def _row(row: Row) -> dict[str, Any]:
    return dict(zip(("id", "region", "value"), row, strict=True))


@of_many("seed", range(12))
def test_the_target_is_as_the_model_says_at_each_of_its_snapshots(
    spark: SparkSession, jobs: Jobs, table_name: str, seed: int
) -> None:
    history = History(Lake(spark, jobs, table_name), seed)
    for _ in range(STEPS if seed else STEPS // 2):
        history.step()
    history.publish()
    assert history.lake.rows() == Counter(history.target.rows)
