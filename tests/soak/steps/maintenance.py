"""Steps of the table's maintenance: compaction of files, and snapshots that come and go."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from py4j.protocol import Py4JJavaError

from tests.factories import WrittenFile
from tests.soak.modelled import ModelledTable
from tests.soak.table import items


@dataclass(frozen=True)
class Rewrite:
    """A compaction under way: planned on a snapshot, its files written, not committed yet."""

    snapshot_id: int
    sequence_number: int
    old: tuple[str, ...]
    new: tuple[WrittenFile, ...]


class MaintenanceSteps(ModelledTable):
    """Commits that write no new rows."""

    rewrite: Rewrite | None = None

    def start_rewrite(self, rng: Random) -> str:
        """Compaction reads files of the head and writes others; it commits later, or never."""
        live = self._live_files()
        if not live:
            return "no data files"
        old = tuple(rng.sample(live, rng.randint(1, len(live))))
        schema, spec = self.schema, self.table.metadata.spec()
        ids = [column.field_id for column in schema.fields]
        rows = [
            dict(zip(ids, self.model.row(position, ids), strict=True))
            for position in self.model.visible(self.model.head)
            if position[0] in old
        ]
        rng.shuffle(rows)
        new = tuple(self._data_files(rng, rows, schema, spec))
        snapshot_id = self.table.snapshot_id
        assert snapshot_id is not None
        self.rewrite = Rewrite(snapshot_id, self.table.sequence_number, old, new)
        self.may_conflict = False
        return f"{len(old)} of {len(live)} files into {len(new)}, {len(rows)} rows"

    def end_rewrite(self, rng: Random) -> str:
        said = f"starts: {self.start_rewrite(rng)}; " if self.rewrite is None else ""
        rewrite, self.rewrite = self.rewrite, None
        if rewrite is None:
            return said
        head = self.model.head
        if head.live_twice.intersection(rewrite.old):
            return f"{said}given up: Iceberg would remove what was added again"
        if self._loses_deletes(rewrite):
            return f"{said}given up: Iceberg would drop deletes that the new files need"
        try:
            self.table.rewrite(
                rewrite.snapshot_id,
                rewrite.sequence_number,
                [self.written[path] for path in rewrite.old],
                rewrite.new,
            )
        except Py4JJavaError as error:
            if not self.may_conflict:
                raise
            return f"{said}conflict: {_message(error)}"
        self._note(
            head.without_files(rewrite.old).with_files(
                [file.path for file in rewrite.new], rewrite.sequence_number
            )
        )
        return f"{said}{len(rewrite.old)} files became {len(rewrite.new)}, number {rewrite.sequence_number}"

    def _loses_deletes(self, rewrite: Rewrite) -> bool:
        """Iceberg 1.12 drops deletes that are older than all data files, and doesn't count those that a
        rewrite adds with an older number: their rows come back."""
        head = self.model.head
        left = head.without_files(rewrite.old).files.values()
        oldest = min((number for numbers in left for number in numbers), default=self.table.sequence_number)
        numbers = {live.sequence_number for live in self.table.live(deletes=True)}
        return any(rewrite.sequence_number < number < oldest for number in numbers)

    def drop_file(self, rng: Random) -> str:
        live = self._live_files()
        if not live:
            return "no data files"
        path = rng.choice(live)
        head = self.model.head
        self.table.drop_file(self.written[path])
        self.may_conflict = True
        self._note(head.without_files([path]))
        return path

    def roll_back(self, rng: Random) -> str:
        """To any kept snapshot, back or forth."""
        kept = [snapshot_id for snapshot_id in self.model.snapshots if snapshot_id != self.table.snapshot_id]
        if not kept:
            return "no other snapshot"
        snapshot_id = rng.choice(kept)
        self.table.java.manageSnapshots().setCurrentSnapshot(snapshot_id).commit()
        self.may_conflict = True
        self.model.head = self.model.snapshots[snapshot_id]
        return f"snapshot {list(self.model.snapshots).index(snapshot_id)} of {len(self.model.snapshots)}"

    def cherry_pick(self, rng: Random) -> str:
        """An append that was rolled back comes again, with a new sequence number."""
        head_id = self.table.snapshot_id
        ancestors = set()
        snapshot = self.table.java.currentSnapshot()
        while snapshot is not None:
            ancestors.add(snapshot.snapshotId())
            parent = snapshot.parentId()
            snapshot = None if parent is None else self.table.java.snapshot(parent)
        picked = [
            snapshot_id
            for snapshot_id in self.model.snapshots
            if snapshot_id not in ancestors
            and self.table.java.snapshot(snapshot_id).operation() == "append"
            and not self._appended(snapshot_id) & self.model.head.files.keys()
        ]
        if not picked:
            return "nothing to pick"
        snapshot_id = rng.choice(picked)
        paths, state = self._appended(snapshot_id), self.model.head
        try:
            self.table.java.manageSnapshots().cherrypick(snapshot_id).commit()
        except Py4JJavaError as error:
            return f"refused: {_message(error)}"
        self.may_conflict = True
        new_id = self.table.snapshot_id
        if new_id == snapshot_id:  # its parent was the head
            self.model.head = self.model.snapshots[snapshot_id]
        elif new_id != head_id:
            self._committed(
                lambda number: state.with_files([path for path in self.model.files if path in paths], number)
            )
        return f"{len(paths)} files"

    def _appended(self, snapshot_id: int) -> set[str]:
        files = self.table.java.snapshot(snapshot_id).addedDataFiles(self.table.java.io())
        return {str(file.location()) for file in items(files)}

    def expire(self, rng: Random) -> str:
        """Drops snapshots, all but the head or some, and the files that only they need.

        By their ids: expiring by age, Iceberg Java 1.12 deletes a Puffin file as soon as one of its vectors
        was replaced (`IncrementalFileCleanup`), though others in it are live.
        """
        head_id = self.table.snapshot_id
        others = [snapshot_id for snapshot_id in self.model.snapshots if snapshot_id != head_id]
        expired = others if rng.random() < 0.5 else others[: rng.randint(0, len(others))]
        if not expired:
            return "nothing to expire"
        update = self.table.java.expireSnapshots()
        for snapshot_id in expired:
            update.expireSnapshotId(snapshot_id)
        update.commit()
        for snapshot_id in expired:
            del self.model.snapshots[snapshot_id]
        self.may_conflict = True
        return f"{len(expired)} of {len(others) + 1} snapshots"


def _message(error: Py4JJavaError) -> str:
    return str(error.java_exception.getMessage())[:80]
