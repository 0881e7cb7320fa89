"""The commit of a Paimon snapshot, exclusive on every store: of two that would follow the same one, one wins.

pypaimon's own looks first and renames then, so two processes can both believe to have committed.
Invariants:
- A snapshot follows the one that its commit was planned on, or is not written. A writer that lost its lease
  therefore changes nothing as soon as its successor has committed to the same table, even nothing at all.
- There is no LATEST hint, which a late writer could turn back: the latest snapshot is the one of the highest
  number. A late writer whose number was used and has expired since leaves one below it, which nobody reads.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pypaimon.common.json_util import JSON
from pypaimon.snapshot.snapshot import Snapshot
from pypaimon.snapshot.snapshot_commit import SnapshotCommit
from pypaimon.snapshot.snapshot_manager import SnapshotManager

from worker.index import checksums
from worker.io.storage import Storage


class NextSnapshot(SnapshotCommit):  # type: ignore[misc]  # pypaimon is untyped
    """Writes the snapshot that follows `planned_on` (None: the table's first)."""

    def __init__(
        self,
        manager: SnapshotManager,
        storage: Storage,
        planned_on: int | None,
        properties: Mapping[str, str],
    ) -> None:
        """properties: to be kept in the snapshot."""
        self._manager = manager
        self._storage = storage
        self._properties = {**properties, checksums.NAME: checksums.BLANK}
        self._id = (planned_on or 0) + 1
        self.written: tuple[Snapshot, bytes] | None = None
        """The snapshot, and the content of its file, once that is there."""
        self.was_reached = False
        """Whether pypaimon came as far as the snapshot; before, it looks for conflicts itself."""
        self.is_overtaken = False
        self.error: Exception | None = None
        """Why it can't be told whether the snapshot was written."""

    def commit(self, _base: str | None, snapshot: Snapshot, _statistics: Sequence[Any]) -> bool:
        self.was_reached = True
        snapshot.properties = self._properties
        try:
            content = checksums.filled_json(JSON.to_json(snapshot, indent=2).encode())
            path = self._manager.get_snapshot_path(snapshot.id)
            written = snapshot.id == self._id and self._storage.create(path, content)
        except Exception as error:
            self.error = error
            raise
        self.is_overtaken = not written
        if written:
            self.written = snapshot, content
        return written

    def close(self) -> None:
        """Nothing is held."""
