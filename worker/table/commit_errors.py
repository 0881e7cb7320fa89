"""Why a commit failed: told apart by what Iceberg throws and says, and by when it does."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors.exceptions.captured import CapturedException

from worker.process.errors import JobError
from worker.table.catalogs import java_message, java_types, raise_lack_of_memory

_ICEBERG_ERRORS = "org.apache.iceberg.exceptions."
COMMIT_FAILED = _ICEBERG_ERRORS + "CommitFailedException"
_CLEANABLE = _ICEBERG_ERRORS + "CleanableFailure"
# What the checks of a `RowDelta` throw before anything is written to the catalog. A table that is gone is
# looked for once more by the next plan, which tells of it.
_CONFLICTS = frozenset(
    {COMMIT_FAILED}
    | {
        _ICEBERG_ERRORS + name
        for name in ("ValidationException", "NotFoundException", "NoSuchTableException")
    }
)
# These exceptions have many causes, which only their messages tell apart.
_VAGUE = frozenset(
    f"java.lang.{name}"
    for name in ("IllegalArgumentException", "IllegalStateException", "UnsupportedOperationException")
)
# Of a table that changed since the plan, or of another one that has its name now.
_CONFLICT_MESSAGES = (
    "Table UUID does not match",
    "is not an ancestor of",
    "Must use DVs",
    "Must not use DVs",
    "Cannot find partition spec",
    "Type: unknown is not supported",
)
# Of a commit that is older than the last one by too much, while Iceberg builds the new metadata, before the
# catalog hears of it.
_CLOCK_MESSAGES = (
    "Expected sorted snapshot log entries",
    "Expected sorted previous metadata log entries",
    "Invalid update timestamp",
)


class CommitError(JobError):
    """The commit failed for a reason of its own, in the words of Iceberg; the table is unchanged."""

    code = "commit_failed"
    title = "The deletes could not be committed"
    remedy = "The table is as it was. Look at the cause, most likely the catalog, and retry."
    retryable = True


class CommitConflictError(CommitError):
    """The table changed under the plan and is left as it is: remove own outputs and plan again."""

    code = "commit_conflict"
    title = "Other commits came first every time"
    remedy = "Run the conversion when compaction or MERGE on this table is idle."


class ClockBehindError(CommitError):
    """The table was committed to at a time that this machine's clock has not reached; it is unchanged."""

    code = "clock_behind"
    title = "The clock of this worker or of the table's writer is wrong"
    remedy = (
        "Set both clocks right. It is tried again, and succeeds once this worker's clock has reached the time"
        " of the last commit."
    )


class ClockAheadError(CommitError):
    """A commit at this machine's time would keep every other writer from committing; there was none."""

    code = "clock_ahead"
    title = "The clock of this worker or of the service is wrong"
    remedy = "Set both clocks right. It is tried again, also by other workers."


class CommitStateUnknownError(CommitError):
    """Whether the commit happened can't be told: remove nothing, look in the history, then decide."""

    code = "commit_state_unknown"
    title = "The catalog did not say whether the commit happened"
    remedy = "Nothing was removed. The next attempt looks for the commit in the table's history."


@contextmanager
def prepared() -> Iterator[None]:
    """Errors before the commit itself: nothing can have happened yet."""
    try:
        yield
    except (Py4JError, CapturedException) as error:
        raise_lack_of_memory(error)
        conflict = _is_conflict(error)
        raise (CommitConflictError if conflict else CommitError)(java_message(error)) from None


def commit_failure(error: Exception) -> CommitError:
    if _is_conflict(error):
        return CommitConflictError(java_message(error))
    if _says(error, _CLOCK_MESSAGES):  # another writer committed since the clock was looked at
        return ClockBehindError(java_message(error))
    # Iceberg marks the errors after which a commit has surely not happened. Whatever else goes wrong while
    # the catalog swaps the metadata, such as a lost connection, leaves that open.
    if _CLEANABLE in java_types(error):
        return CommitError(java_message(error))
    return CommitStateUnknownError(java_message(error))


def _is_conflict(error: Exception) -> bool:
    return bool(java_types(error) & _CONFLICTS) or _says(error, _CONFLICT_MESSAGES)


def _says(error: Exception, messages: Sequence[str]) -> bool:
    """Whether an error of a class with many causes has one of these messages."""
    return bool(java_types(error) & _VAGUE) and any(part in java_message(error) for part in messages)
