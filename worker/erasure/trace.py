"""What a file tells of the keys of an erasure."""

from __future__ import annotations

from dataclasses import dataclass

from worker.process.errors import JobError, Reason

NOTHING: frozenset[int] = frozenset()
MISSING = "missing_file"


@dataclass(frozen=True, slots=True)
class Trace:
    """What a file tells of keys: their numbers. why: it could not be looked through.

    places: where it says that files of its table may lie.
    """

    keys: frozenset[int] = NOTHING
    why: Reason | None = None
    size_bytes: int = 0
    places: frozenset[str] = frozenset()

    @property
    def is_clean(self) -> bool:
        return not self.keys and self.why is None

    @property
    def is_read(self) -> bool:
        """Of a manifest or a list of these: whether all is known that it names."""
        return self.why is None or self.why is FORMER_COLUMN

    @property
    def is_missing(self) -> bool:
        return self.why is not None and self.why.code == MISSING


FORMER_COLUMN = Reason(
    "former_column",
    "it has values of a column that was dropped, and was or may have been called like one of the key",
    "Rewrite the table's data files (rewrite_data_files), then its manifests (rewrite_manifests), let older"
    " snapshots expire (expire_snapshots), and erase again.",
)


def unreadable(error: Exception) -> Reason:
    if isinstance(error, JobError):
        return error.reason
    if isinstance(error, FileNotFoundError):
        return Reason(MISSING, str(error), "Restore the file, or let its snapshots expire.")
    return Reason("unreadable_file", str(error), "Restore the file, or let its snapshots expire.")
