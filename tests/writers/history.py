"""One history: random steps on a table of the service and on its model, told in lines.

Invariants: a history is a pure function of its steps. Whatever a job commits is seen before anybody else
commits, so the model knows its place; and each write has one place at most, at which it made of the rows
that it met what the model makes of them.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from tests.factories import WrittenFile
from tests.soak.drawing import Step
from tests.soak.history import play
from tests.soak.seeds import Kind
from tests.soak.table import LiveFile, SoakTable, local_path
from tests.writers.drawing import Setup, draw
from tests.writers.model import Effect, Row, Write
from tests.writers.points import watched
from tests.writers.served import Served
from worker.contract.control_plane import Assignment, AttemptId

_STAGES = (
    "plan",
    "read",
    "lookup",
    "deletes",
    "rows",
    "commit",
    "index",
    "entries",
    "dictionary",
    "addresses",
)
POINTS = [
    f"{name}.{when}"
    for name in (*_STAGES, "announce", "announce", "iceberg", "iceberg", "iceberg", "finish")
    for when in ("before", "after")
]
_RECORD = re.compile(r"Record\((\d+), (\w+), (\d+)[,)]")
_numbers = count()


class _Killed(BaseException):
    """The worker is gone: nothing tidies up, as it does after an Exception."""


@dataclass
class Sent:
    """A write that the service has accepted. since: the number of states when it came."""

    write: Write
    since: int
    effect: Effect | None = None
    snapshot_id: int | None = None
    is_cancelled: bool = False
    has_died: bool = False


@dataclass
class Disturbance:
    """What happens when an attempt passes a point for the nth time."""

    point: str
    nth: int
    kind: str
    seed: int


@dataclass(frozen=True)
class Rewrite:
    """A compaction under way: planned on a snapshot, its files written, not committed yet."""

    snapshot_id: int
    sequence_number: int
    old: list[LiveFile]
    new: list[WrittenFile]


@dataclass
class Script:
    """What is to happen during one attempt."""

    assignment: Assignment
    disturbances: list[Disturbance] = field(default_factory=list)


class History:
    """A table, its model, and all that may happen to them."""

    def __init__(self, served: Served, setup: Setup) -> None:
        self.served, self.setup = served, setup
        self.lines: list[str] = []
        self.values = count()
        self.rows: list[Row] = []
        self.states: list[list[Row]] = [self.rows]
        self.past: dict[int, list[Row]] = {}
        self.head: int | None = None
        self.sent: dict[str, Sent] = {}
        self.files: list[Path] = []
        self.rewrite: Rewrite | None = None
        self.script: Script | None = None
        world = served.world
        schema = Schema(
            NestedField(1, "id", LongType()),
            NestedField(2, "region", StringType()),
            NestedField(3, "value", LongType()),
        )
        properties = {
            "format-version": str(setup.format_version),
            "write.delete.mode": "merge-on-read",
            "write.merge.mode": "merge-on-read",
        }
        name = f"{world.catalog.name}.histories.w{next(_numbers)}"
        self.table = SoakTable.make(world.spark, world.java_catalog, name, schema, properties)
        if setup.is_partitioned:
            self.table.java.updateSpec().addField("region").commit()
        self.id = served.enroll(name, setup.key)

    def take(self, step: Step) -> None:
        """Do one step; `lines` say what it did."""
        self.lines.append(f"{step.kind} ...")
        operation: Callable[[Random], str] = getattr(self, step.kind)
        said = operation(Random(step.seed))
        self.lines[-1] = f"{step.kind}: {said}"
        self.look()
        self._compare()

    def remove(self) -> None:
        identifier = self.table.iceberg.catalog.TableIdentifier.parse(self.table.identifier.partition(".")[2])
        self.served.forget(self.id)
        self.served.world.java_catalog.dropTable(identifier, False)
        shutil.rmtree(local_path(self.table.metadata.location), ignore_errors=True)
        for file in self.files:
            file.unlink()

    # The table and its model

    def look(self) -> None:
        """Learns what jobs have committed since."""
        self.table.refresh()
        java = self.table.java
        snapshot, new = java.currentSnapshot(), []
        while snapshot is not None and snapshot.snapshotId() != self.head:
            new.append(snapshot)
            parent = snapshot.parentId()
            snapshot = None if parent is None else java.snapshot(parent)
        for snapshot in reversed(new):
            assert snapshot.parentId() == self.head, "a job committed on another head"
            summary = dict(snapshot.summary())
            sent = self.sent.get(summary["icestream.job-id"])
            if sent is not None:
                assert sent.snapshot_id is None, f"written twice: {sent.write}"
                sent.effect, sent.snapshot_id = sent.write.on(self.rows), int(snapshot.snapshotId())
                told = int(summary["icestream.rows-added"]), int(summary["icestream.rows-deleted"])
                expected = sent.effect.added, sent.effect.deleted
                assert told == expected, f"{sent.write} added and deleted {told}, not {expected}"
                self.rows = sent.effect.rows
            self._note(int(snapshot.snapshotId()))
        if new:
            self._compare()

    def _compare(self) -> None:
        shown, expected = Counter(self._shown()), Counter(self.rows)
        assert shown == expected, f"missing {expected - shown}, too many {shown - expected}"

    def _note(self, head: int | None) -> None:
        self.head = head
        if head is not None:
            self.past[head] = self.rows
        self.states.append(self.rows)

    def _shown(self) -> Iterator[Row]:
        """By Iceberg's generic reader in Java."""
        records = self.table.iceberg.data.IcebergGenerics.read(self.table.java).build()
        try:
            text: str = self.table._to_text(records)
        finally:
            records.close()
        found = _RECORD.findall(text)
        assert len(found) == text.count("Record(")
        for id_, region, value in found:
            yield Row(int(id_), None if region == "null" else region, int(value))

    def _committed(self, rows: list[Row]) -> None:
        """By somebody else than a job."""
        self.table.refresh()
        self.rows = rows
        self._note(self.table.snapshot_id)

    def _new_rows(self, rng: Random, at_most: int) -> list[Row]:
        return [
            Row(rng.randrange(8), rng.choice(["eu", "us", None]), next(self.values))
            for _ in range(rng.randint(1, at_most))
        ]

    # Other writers and maintenance

    def append(self, rng: Random) -> str:
        rows = self._new_rows(rng, 3)
        self.table.append([row._asdict() for row in rows])
        self._committed(self.rows + rows)
        return f"{len(rows)} rows"

    def stream(self, rng: Random) -> str:
        """As Flink commits a checkpoint: rows, and equality deletes of their keys."""
        rows = list({row.key(self._stream_key): row for row in self._new_rows(rng, 3)}.values())
        self.table.upsert([row._asdict() for row in rows], key=self.setup.key)
        self._committed(self._without(rows) + rows)
        return f"{len(rows)} rows"

    def delete_keys(self, rng: Random) -> str:
        rows = self._new_rows(rng, 2)
        self.table.delete_keys([row._asdict() for row in rows], equality_columns=self.setup.key)
        self._committed(self._without(rows))
        return f"{len(rows)} keys"

    @property
    def _stream_key(self) -> tuple[str, ...]:
        """An equality delete is of its partition alone."""
        return ("id", "region") if self.setup.is_partitioned else self.setup.key

    def _without(self, rows: Sequence[Row]) -> list[Row]:
        gone = {row.key(self._stream_key) for row in rows}
        return [row for row in self.rows if row.key(self._stream_key) not in gone]

    def start_rewrite(self, rng: Random) -> str:
        """Compaction reads all files of the head and writes others; it commits later, or never."""
        old = self.table.live(deletes=False)
        if not old or self.head is None:
            return "nothing"
        rows = rng.sample(self.rows, len(self.rows))
        new = self.table.data_files([row._asdict() for row in rows]) if rows else []
        self.rewrite = Rewrite(self.head, self.table.sequence_number, old, new)
        return f"{len(old)} files"

    def end_rewrite(self, rng: Random) -> str:
        if self.rewrite is None:
            self.start_rewrite(rng)
        rewrite, self.rewrite = self.rewrite, None
        if rewrite is None:
            return "nothing"
        if self._loses_deletes(rewrite):
            return "given up: Iceberg would drop deletes that the new files need"
        try:
            self.table.rewrite(
                rewrite.snapshot_id, rewrite.sequence_number, [one.file for one in rewrite.old], rewrite.new
            )
        except Py4JJavaError:
            if self.head == rewrite.snapshot_id:
                raise
            return "refused"
        self._committed(self.rows)
        return f"{len(rewrite.old)} files became {len(rewrite.new)}"

    def _loses_deletes(self, rewrite: Rewrite) -> bool:
        """As `MaintenanceSteps._loses_deletes` of the soak says."""
        old = {one.path for one in rewrite.old}
        left = [one.sequence_number for one in self.table.live(deletes=False) if one.path not in old]
        oldest = min(left, default=self.table.sequence_number)
        numbers = {one.sequence_number for one in self.table.live(deletes=True)}
        return any(rewrite.sequence_number < number < oldest for number in numbers)

    def rewrite_data_files(self, _: Random) -> str:
        """Spark's procedure."""
        if self.head is None:
            return "nothing"
        self.table.compact()
        self._committed(self.rows)
        return "done"

    def merge(self, rng: Random) -> str:
        """Spark deletes rows by a scan, merge-on-read."""
        id_ = rng.randrange(8)
        self.served.spark.sql(f"DELETE FROM {self.table.identifier} WHERE id = {id_}")
        self._committed([row for row in self.rows if row.id != id_])
        return f"id {id_}"

    def expire(self, rng: Random) -> str:
        """Drops snapshots, all but the head or some, and the files that only they need."""
        others = [one for one in self.past if one != self.head]
        expired = others if rng.random() < 0.5 else others[: rng.randint(0, len(others))]
        if not expired:
            return "nothing"
        update = self.table.java.expireSnapshots()
        for snapshot_id in expired:
            update.expireSnapshotId(snapshot_id)
            del self.past[snapshot_id]
        update.commit()
        self.table.refresh()
        return f"{len(expired)} snapshots"

    def roll_back(self, rng: Random) -> str:
        """To any kept snapshot, back or forth."""
        others = [one for one in self.past if one != self.head]
        if not others:
            return "nothing"
        chosen = rng.choice(others)
        self.table.java.manageSnapshots().setCurrentSnapshot(chosen).commit()
        self._committed(self.past[chosen])
        return f"to {list(self.past).index(chosen)} of {len(self.past)}"

    def other(self, rng: Random) -> str:
        kinds = ["append", "stream", "stream", "delete_keys", "end_rewrite", "start_rewrite"]
        if not any(one.snapshot_id and not self._has_ended(job_id) for job_id, one in self.sent.items()):
            # What a lost attempt has committed is looked for where it is (docs/writes.md).
            kinds += ["expire", "roll_back"]
        if self.setup.uses_spark:
            kinds += ["rewrite_data_files", "merge"]
        kind = rng.choice(kinds)
        return f"{kind} ({getattr(self, kind)(rng)})"

    # Jobs

    def index(self, rng: Random) -> str:
        return self._job("index", rng)

    def convert(self, rng: Random) -> str:
        return self._job("convert", rng)

    def compact(self, rng: Random) -> str:
        return self._job("compact", rng)

    def _job(self, kind: str, rng: Random, **disturbed: bool) -> str:
        job_id = self.served.post(f"/tables/{self.id}/jobs", {"kind": kind})["id"]
        said = self._work(rng, **disturbed)
        job = self.served.get(f"/jobs/{job_id}")
        assert job["status"] == "succeeded", f"{kind} {job['status']}: {job['error']}"
        return said

    def write(self, rng: Random) -> str:
        """One write or several, by two writers who do not wait for each other."""
        said = [self.send(rng) for _ in range(rng.choice([1, 1, 2, 3]))]
        return f"{', '.join(said)}; {self._work(rng)}"

    def send(self, rng: Random) -> str:
        rows = self._new_rows(rng, 4)
        options: dict[str, Any] = {}
        kind = rng.choice(["upsert", "upsert", "delete"])
        if kind == "upsert":
            options = rng.choice([{}, {}, {"insert_only": True}, {"only_if_newer_than": "value"}])
            options = options | {"duplicates": "last"}
            if rng.random() < 0.5:  # older than what is there
                rows = [row._replace(value=rng.randrange(row.value + 1)) for row in rows]
        else:
            rows = list({row.key(self.setup.key): row for row in rows}.values())
        write = Write(kind, self.setup.key, rows, options)
        sent = [row._asdict() for row in rows]
        if kind == "delete":
            sent = [dict(zip(self.setup.key, row.key(self.setup.key), strict=True)) for row in rows]
        named = {"key_columns": list(self.setup.key)} if rng.random() < 0.5 else {}
        what = "keys" if kind == "delete" else "rows"
        source = {"files": [self._file(sent)]} if rng.random() < 0.3 else {what: sent}
        body = {**source, **options, **named}
        post = partial(self.served.post, f"/tables/{self.id}/rows/{kind}", body, Idempotency_Key=str(uuid4()))
        job_id = post()["id"]
        if rng.random() < 0.2:
            assert post()["id"] == job_id, "a call that was repeated is another job"
        self.sent[job_id] = Sent(write, len(self.states) - 1)
        return str(write)

    def _file(self, sent: list[dict[str, Any]]) -> str:
        """They stay for attempts that follow, until the history ends."""
        place = self.served.world.directory / "sent" / f"{next(_numbers)}.parquet"
        place.parent.mkdir(exist_ok=True)
        kinds = {"id": pa.int64(), "region": pa.string(), "value": pa.int64()}
        schema = pa.schema([(name, kinds[name]) for name in sent[0]])
        pq.write_table(pa.Table.from_pylist(sent, schema), place)
        self.files.append(place)
        return place.as_uri()

    def _has_ended(self, job_id: str) -> bool:
        return self.served.get(f"/jobs/{job_id}")["status"] in ("succeeded", "failed", "cancelled")

    def _work(self, rng: Random, *, calm: bool = False) -> str:
        """Runs jobs until none waits, with somebody in between now and then."""
        said: list[str] = []
        given_up: list[AttemptId] = []
        with watched(lambda point: self._pass(point, said)):
            while (assignment := self.served.claim(given_up)) is not None:
                given_up = []
                number = 0 if calm or assignment.attempt > 3 else rng.choice([0, 1, 2, 3])
                if not self._attempt(assignment, self._drawn(rng, number)):
                    given_up = [_id_of(assignment)]
                self.look()
        for job_id, sent in list(self.sent.items()):
            self._check_end(job_id, sent)
            del self.sent[job_id]
        return "; ".join(said) or "undisturbed"

    def _drawn(self, rng: Random, number: int) -> list[Disturbance]:
        kinds = ["other"] * 8 + ["die"] * 4 + ["be_late"] * 3 + ["cancel"] + ["send"] * 2
        return [
            Disturbance(rng.choice(POINTS), rng.choice([1, 1, 1, 2]), rng.choice(kinds), rng.getrandbits(32))
            for _ in range(number)
        ]

    def _attempt(self, assignment: Assignment, disturbances: list[Disturbance]) -> bool:
        """Whether its end was reported."""
        outer, self.script = self.script, Script(assignment, disturbances)
        try:
            return self.served.run(assignment)
        except _Killed:
            if (sent := self.sent.get(assignment.job.id)) is not None:
                sent.has_died = True
            return False
        finally:
            self.script = outer

    def _pass(self, point: str, said: list[str]) -> None:
        script = self.script
        for one in list(script.disturbances) if script else []:
            if one.point != point:
                continue
            one.nth -= 1
            if one.nth:
                continue
            assert script is not None
            script.disturbances.remove(one)
            self.served.disturbances += 1
            told = f"at {point} of attempt {script.assignment.attempt}"
            if one.kind == "die":
                said.append(f"died {told}")
                raise _Killed
            with self._undisturbed():
                self.look()
                said.append(f"{getattr(self, f'_{one.kind}')(Random(one.seed), script.assignment)} {told}")
                self.look()

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        script, self.script = self.script, None
        try:
            yield
        finally:
            self.script = script

    def _other(self, rng: Random, _: Assignment) -> str:
        return self.other(rng)

    def _be_late(self, _: Random, assignment: Assignment) -> str:
        """The service takes the attempt for lost, and another runs to its end while this one sleeps."""
        if (sent := self.sent.get(assignment.job.id)) is not None:
            sent.has_died = True
        successor = self.served.claim([_id_of(assignment)])
        if successor is None:
            return "late, with nobody after it"
        assert self._attempt(successor, [])
        return f"attempt {successor.attempt} of {successor.job.kind} overtook"

    def _cancel(self, _: Random, assignment: Assignment) -> str:
        if (sent := self.sent.get(assignment.job.id)) is None:
            return "not cancelled"
        answer = self.served.http.post(f"/jobs/{assignment.job.id}/cancel")
        sent.is_cancelled = answer.is_success
        return f"cancelled ({answer.status_code})"

    def _send(self, rng: Random, _: Assignment) -> str:
        return f"sent {self.send(rng)}"

    def _check_end(self, job_id: str, sent: Sent) -> None:
        job = self.served.get(f"/jobs/{job_id}")
        status, told = job["status"], f"{sent.write} {job['status']}: {job['error']}"
        if status == "cancelled":
            assert sent.is_cancelled, told
            assert sent.snapshot_id is None or sent.has_died, f"committed, and yet {told}"
            return
        assert status == "succeeded", told
        result = job["result"]
        assert result["iceberg_snapshot_id_after"] == sent.snapshot_id, told
        if sent.effect is None:
            effects = [sent.write.on(rows) for rows in self.states[sent.since :]]
            assert any(effect.is_nothing for effect in effects), f"not written: {told}"
            return
        effect = sent.effect
        assert (result["rows_added"], result["rows_deleted"]) == (effect.added, effect.deleted), told
        assert result["left_out"] == effect.left_out, told

    def finish(self, rng: Random) -> str:
        """The index is right, whatever came in between, and Spark shows what the generic reader does."""
        self._job("index", rng, calm=True)
        job_id = self.served.post(f"/tables/{self.id}/jobs", {"kind": "verify"})["id"]
        self._work(rng, calm=True)
        verified = self.served.get(f"/jobs/{job_id}")
        assert verified["status"] == "succeeded", verified["error"]
        assert not any(one["differences"] for one in verified["result"]["key_sets"]), "the index is wrong"
        if self.head is not None and self.setup.uses_spark:
            assert self.table.spark_rows(["long", "string", "long"]) == Counter(map(tuple, self.rows))
        return "verified"


def _id_of(assignment: Assignment) -> AttemptId:
    return AttemptId(job_id=assignment.job.id, attempt=assignment.attempt)


def run(served: Served, setup: Setup, steps: Sequence[Step]) -> list[str]:
    """Run a history and return what it did. Raises HistoryError."""
    return play(History(served, setup), setup, steps, nullcontext())


WRITERS = Kind("--writers", draw, run)
