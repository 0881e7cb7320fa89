"""Steps of rows that are written by key: each takes effect at once, whoever comes in between or dies."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import Any

from tests.deaths import killed_at_its_commit
from tests.soak.drawing import MEASURE, SERIAL, Step
from tests.soak.model import Position, Row
from tests.soak.steps.jobs import JobSteps
from tests.soak.steps.spark import SparkSteps
from tests.soak.values import in_json
from worker.process.errors import JobError

_OTHERS = [
    "append",
    "upsert",
    "upsert_again",
    "delete",
    "delete_positions",
    "merge",
    "end_rewrite",
    "drop_file",
]
_numbers = count(1)


@dataclass(frozen=True)
class Write:
    """What is sent, in the order of the fields of `key_set`."""

    kind: str
    rows: Sequence[Row]
    key_set: Sequence[int]
    options: dict[str, Any] = field(default_factory=dict)
    job_id: str = field(default_factory=lambda: f"write-{next(_numbers)}")

    def key(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[field_id] for field_id in self.key_set)


class WriteSteps(SparkSteps, JobSteps):
    """Jobs of kind `upsert` and `delete`."""

    def write_by_key(self, rng: Random) -> str:
        usable = [key_set for key_set in self.usable_key_sets(self.schema) if MEASURE not in key_set]
        if not usable:
            return "no key"
        write = self._drawn_write_by_key(rng, rng.choice(usable))
        between = self._drawn_other(rng, 0.4, [*_OTHERS, "roll_back"])
        dies = rng.choice(["", "", "", "before", "after"])
        # No rollback of what a dead attempt has committed: the next one would write again (docs/writes.md).
        after_death = self._drawn_other(rng, 0.5, _OTHERS)
        said = [f"{write.kind} of {len(write.rows)} rows by {tuple(write.key_set)} {write.options}"]

        def before_commit() -> None:
            if between is None or len(said) > 1:
                return
            self._note_new_snapshots()
            said.append(f"overtaken by {between.kind}")
            said[-1] += f" ({self.do(between)})"

        self.jobs.reporter.before_commit = before_commit
        try:
            for one in self._write_by_key(write, dies, after_death):
                said.append(one)  # as it happens: `before_commit` looks at it
        except JobError as error:
            if error.code not in self._refusals():
                raise
            said.append(error.code)
        finally:
            self.jobs.reporter.before_commit = lambda: None
        self._note_new_snapshots()
        self.may_conflict = True
        return ", ".join(said)

    def _drawn_other(self, rng: Random, chance: float, kinds: Sequence[str]) -> Step | None:
        return Step(rng.choice(kinds), rng.getrandbits(32)) if rng.random() < chance else None

    def _drawn_write_by_key(self, rng: Random, key_set: Sequence[int]) -> Write:
        schema = self.schema
        rows = self._some_rows(rng, schema, 5)
        ids = {column.field_id for column in schema.fields}
        if SERIAL in ids:
            rows = [{**row, SERIAL: rng.choice([next(self.serial), next(self.serial), -1])} for row in rows]
        kind = rng.choice(["upsert", "upsert", "delete"])
        options: dict[str, Any] = {}
        if kind == "upsert":
            options["duplicates"] = "last"
            if rng.random() < 0.3:
                rows += rng.sample(rows, 1)
            options |= rng.choice(
                [{}, {}, {"insert_only": True}]
                + ([{"only_if_newer_than": schema.find_column_name(SERIAL)}] if SERIAL in ids else [])
            )
        return Write(kind, rows, key_set, options)

    def _write_by_key(self, write: Write, dies: str, after_death: Step | None) -> Iterator[str]:
        names = {column.field_id: column.name for column in self.schema.fields}
        if write.kind == "delete":
            names = {field_id: names[field_id] for field_id in write.key_set}
        rows = [{name: in_json(row[field_id]) for field_id, name in names.items()} for row in write.rows]
        parameters = {"key_columns": [names[field_id] for field_id in write.key_set], **write.options}
        run = partial(self.jobs.run, write.kind, rows=rows, parameters=parameters, job_id=write.job_id)
        if not dies:
            run()
            yield self._take_effect(write)
            return
        with killed_at_its_commit(dies) as death:
            run()
        if not death.happened:
            yield f"nothing to die at, {self._take_effect(write)}"
            return
        yield f"died {dies} its commit"
        if dies == "after":
            yield self._take_effect(write)
        if after_death is not None:
            yield f"then {after_death.kind} ({self.do(after_death)})"
        before = self.table.snapshot_id
        run(attempt=2, ended_attempts=[self.jobs.reporter.left_by(write.job_id)])
        if dies == "before":
            yield self._take_effect(write)
        self.table.refresh()
        assert dies == "before" or self.table.snapshot_id == before, "it is written again"

    def _take_effect(self, write: Write) -> str:
        """As if at once, where the head is now."""
        head, fields = self.model.head, [column.field_id for column in self.schema.fields]
        there: dict[tuple[Any, ...], list[Position]] = defaultdict(list)
        for position in self.model.visible(head):
            there[self.model.row(position, write.key_set)].append(position)
        sent = {write.key(row): row for row in write.rows}  # the last one of each key counts
        if write.kind == "delete":
            added, replaced = [], list(sent)
        else:
            added = [row for key, row in sent.items() if self._counts(write, row, there.get(key, []))]
            replaced = [write.key(row) for row in added]
        gone = [position for key in replaced for position in there.get(key, [])]
        expected = self.model.rows(head, fields)
        expected.subtract(Counter(self.model.row(position, fields) for position in gone))
        expected.update(tuple(row[field_id] for field_id in fields) for row in added)
        before = self.table.snapshot_id
        self.table.refresh()
        if not added and not gone:
            assert self.table.snapshot_id == before, "a write of nothing has committed"
            return "nothing to write"
        self._learn(head.with_positions(gone, self.table.sequence_number), +expected)
        return f"{len(added)} rows added, {len(gone)} deleted"

    def _counts(self, write: Write, row: Row, there: Sequence[Position]) -> bool:
        if write.options.get("insert_only"):
            return not there
        if "only_if_newer_than" in write.options:
            return all(row[SERIAL] > self._serial(position) for position in there)
        return True

    def _serial(self, position: Position) -> int:
        serial = self.model.row(position, [SERIAL])[0]
        return -2 if serial is None else int(serial)  # null is less than anything

    def _refusals(self) -> set[str]:
        """Codes of what can't be told or done in the table as it is."""
        head = self.model.head
        refusals = set()
        # Float keys, and timestamps in ORC, can't be told.
        if any(MEASURE in one.fields for one in head.deletes) or self._has_orc_files(head):
            refusals.add("unreadable")
        if head.live_twice:
            refusals.add("rows_blocked")
        return refusals
