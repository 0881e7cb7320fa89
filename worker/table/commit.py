"""Commits new delete files in place of equality deletes: one Iceberg `RowDelta`, through Spark's JVM.

Place in the flow: deletes -> commit -> report. No Spark job runs here.

Invariants: the commit happens only on a branch where the pinned snapshot is an ancestor of the head, every
referenced data file still lives and every delete file to remove is still there. None of them was added once
more meanwhile: it goes by paths, and would hit and remove that one, too. It is a `RowDelta`, never a
`RewriteFiles`: a compaction in flight looks for deletes it missed among DELETE and OVERWRITE snapshots only.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from py4j.java_gateway import GatewayClient, JavaObject, JVMView
from py4j.protocol import DEFAULT_JVM_ID, Py4JError
from pyspark.errors.exceptions.captured import CapturedException

from worker.process.errors import JobError
from worker.table.catalogs import java_map, java_message, java_types, jvm_of, raise_lack_of_memory
from worker.table.files import DeleteFile, FileContent, NewDeleteFile

T = TypeVar("T")
JOB_ID = "icestream.job-id"
ATTEMPT = "icestream.attempt"
COMMIT_ID = "icestream.commit-id"

# The library revalidates and retries a lost race by itself, four times unless the table says otherwise;
# another round costs far less than a new plan when a streaming writer commits several times a second.
_COMMIT_ROUNDS = 5

_ANY_FILE = "any-file"
_GUARDS = Path(__file__).with_name("CommitGuards.java")

# Files that cross to Java in one text: about 50 MB.
_SLICE = 100_000

_ICEBERG_ERRORS = "org.apache.iceberg.exceptions."
_COMMIT_FAILED = _ICEBERG_ERRORS + "CommitFailedException"
_CLEANABLE = _ICEBERG_ERRORS + "CleanableFailure"
# What the checks of a `RowDelta` throw before anything is written to the catalog. A table that is gone is
# looked for once more by the next plan, which tells of it.
_CONFLICTS = frozenset(
    {_COMMIT_FAILED}
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
# Iceberg takes no commit that is older than the last one by more than this, and says so while it builds the
# new metadata, before the catalog hears of it.
CLOCK_TOLERANCE_SECONDS = 60
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


@dataclass(frozen=True, slots=True)
class RowDelta:
    """One commit: delete files to add and to remove, and what must still hold.

    starting_snapshot_id: the pinned snapshot that was planned on.
    referenced_data_files: paths, as manifests spell them, of all data files that must still be live.
    summary: further snapshot properties, such as counts (`icestream.*`).
    """

    branch: str
    starting_snapshot_id: int
    job_id: str
    attempt: int
    added: Sequence[NewDeleteFile]
    removed: Sequence[DeleteFile]
    referenced_data_files: Sequence[str]
    summary: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CommittedSnapshot:
    """A snapshot that a job added to a branch."""

    snapshot_id: int
    parent_snapshot_id: int | None
    sequence_number: int
    job_id: str
    attempt: int
    summary: Mapping[str, str]


def commit_row_delta(
    java_table: JavaObject,
    delta: RowDelta,
    *,
    confirm_lease: Callable[[], None] = lambda: None,
    check_location: Callable[[str], None] = lambda _: None,
) -> CommittedSnapshot:
    """Commits `delta` in one snapshot and returns it.

    java_table: an `org.apache.iceberg.Table`; it is refreshed.
    confirm_lease: called before each round, when nothing is committed; what it raises ends the commit.
    check_location: raises for a place where the table's metadata may not be written; the same holds for it.
    Raises the errors of this module, ValueError for a delta that changes nothing, and MemoryError when the
    JVM's heap is too small for it: then nothing is known either.
    """
    if not delta.added and not delta.removed:
        raise ValueError("a commit needs delete files to add or to remove")
    commit_id = str(uuid4())
    summary = {**delta.summary, JOB_ID: delta.job_id, ATTEMPT: str(delta.attempt), COMMIT_ID: commit_id}
    with _prepared():
        referenced = _java_list(jvm_of(java_table), delta.referenced_data_files)
        validator = _nothing_added_again(java_table, delta, referenced)
    for remaining in reversed(range(_COMMIT_ROUNDS)):
        confirm_lease()
        with _prepared():
            java_table.refresh()
            # Iceberg creates a branch that does not exist from the current snapshot, without any check.
            if not java_table.refs().containsKey(delta.branch):
                raise CommitConflictError(f"branch {delta.branch} no longer exists")
            check_clock(java_table)
            place = java_table.operations().metadataFileLocation(_ANY_FILE)
            check_location(place)
            base = int(java_table.operations().current().lastSequenceNumber())
            condemned = jvm_of(java_table).java.util.concurrent.ConcurrentLinkedQueue()
            operation = _row_delta(java_table, delta, summary, referenced, validator, condemned, place)
        failure: CommitError | None = None
        cause: Exception | None = None
        may_repeat = False
        try:
            operation.commit()
        except (Py4JError, CapturedException) as error:
            failure, cause = _commit_failure(error), error
            lost_race = isinstance(failure, CommitConflictError) and _COMMIT_FAILED in java_types(error)
            may_repeat = lost_race and remaining > 0
        # Also after a conflict: the library, or a connection pool below it, may have repeated a commit whose
        # answer was lost, and met that one. A table that is gone may come back, so this is unknown, too.
        said = failure or CommitStateUnknownError("the commit was accepted, but the table does not show it")
        try:
            committed = _find_commit(java_table, delta, commit_id)
        except CommitError as unreadable:
            raise CommitStateUnknownError(f"{said}; then: {unreadable}") from None
        if committed is None and isinstance(said, CommitStateUnknownError):
            if cause is not None:
                raise_lack_of_memory(cause)
            raise said
        # Iceberg may believe that a commit failed which has happened, and would delete its manifests.
        paths = set(jvm_of(java_table).java.util.ArrayList(condemned))
        needed = _manifests_since(java_table, base) if failure and paths else set()
        if committed is None and paths & needed:
            raise CommitStateUnknownError(f"{said}; but later snapshots are built on it")
        _delete(java_table, paths - needed)
        if committed is not None:
            return committed
        if not may_repeat:
            raise said
    raise AssertionError("the last round returns or raises")


def check_clock(java_table: JavaObject) -> None:
    """Whether Iceberg takes a commit at this machine's time: raises ClockBehindError, with both times.

    The table is taken as it was refreshed last.
    """
    with _prepared():
        metadata = java_table.operations().current()
        last = metadata.lastUpdatedMillis()
        if metadata.snapshotLog():
            last = max(last, metadata.snapshotLog()[-1].timestampMillis())
        now = jvm_of(java_table).java.lang.System.currentTimeMillis()
    if now < last - 1000 * CLOCK_TOLERANCE_SECONDS:
        raise ClockBehindError(
            f"the table was last committed to at {_time(last)} by the clock of its writer, and it is"
            f" {_time(now)} here; Iceberg takes no commit that is more than a minute older than the last one"
        )


def find_commits(java_table: JavaObject, branch: str, job_id: str) -> list[CommittedSnapshot]:
    """The commits of a job among the ancestors of a branch's head, newest first; [] when there is no branch.

    Expired snapshots and ones that were rolled back are not found. The table is refreshed.
    Raises CommitError when the table can't be read.
    """
    with _prepared():
        java_table.refresh()
        ancestors = _ancestors(_metadata(java_table), branch)
    return [_committed(ancestor) for ancestor in ancestors if _summary(ancestor).get(JOB_ID) == job_id]


def find_head(java_table: JavaObject, branch: str) -> int | None:
    """The snapshot that a branch is at now; None when there is no branch. The table is refreshed.

    Raises CommitError when the table can't be read.
    """
    with _prepared():
        java_table.refresh()
        head = java_table.snapshot(branch)
        return None if head is None else int(head.snapshotId())


def _row_delta(
    java_table: JavaObject,
    delta: RowDelta,
    summary: Mapping[str, str],
    referenced: JavaObject,
    validator: JavaObject,
    condemned: JavaObject,
    place: str,
) -> JavaObject:
    """The operation, not yet committed.

    condemned: gets the manifests that Iceberg would delete. place: of a metadata file, as it was checked.
    """
    operation = (
        _guarded(java_table, place.removesuffix(_ANY_FILE))
        .newRowDelta()
        .toBranch(delta.branch)
        .deleteWith(_collector(condemned))
        .validateFromSnapshot(delta.starting_snapshot_id)
        .validateDataFilesExist(referenced)
        .validateDeletedFiles()
        .validateWith(validator)
    )
    add = _row_delta_consumer(operation, "addDeletes")
    for added in _slices(delta.added):
        _java_delete_files(java_table, [_added_json(file) for file in added]).forEach(add)
    remove = _row_delta_consumer(operation, "removeDeletes")
    for removed in _slices(delta.removed):
        _java_delete_files(java_table, [_removed_json(file) for file in removed]).forEach(remove)
    for name, value in summary.items():
        operation.set(name, value)
    return operation


def _guarded(java_table: JavaObject, folder: str) -> JavaObject:
    """The same table, which loads no class that it names, and commits only while its metadata goes there."""
    jvm = jvm_of(java_table)
    own = jvm.org.apache.iceberg.LocationProviders.locationsFor(java_table.location(), java_map(jvm, {}))
    operations = _guard(java_table, "GuardedOperations", java_table.operations(), own, folder)
    return jvm.org.apache.iceberg.BaseTable(operations, java_table.name(), java_table.reporter())


def _file_json(file: NewDeleteFile | DeleteFile, content: FileContent) -> dict[str, Any]:
    """What is told of each delete file in the form of Iceberg's `ContentFileParser`."""
    return {
        "spec-id": file.partition.spec_id,
        "content": content.value,
        "file-path": file.path,
        "file-format": file.file_format,
        "partition": json.loads(file.partition.values),
        "file-size-in-bytes": file.file_size_bytes,
        "record-count": file.record_count,
    }


def _added_json(file: NewDeleteFile) -> dict[str, Any]:
    """Iceberg assigns the sequence number."""
    content = _file_json(file, FileContent.POSITION_DELETES)
    if file.referenced_data_file is not None:
        content["referenced-data-file"] = file.referenced_data_file
    if file.content_offset is not None:
        content["content-offset"] = file.content_offset
        content["content-size-in-bytes"] = file.content_size_bytes
    if file.column_sizes:
        content["column-sizes"] = _json_map(file.column_sizes)
    if file.lower_bounds:
        content["lower-bounds"] = _json_map({key: value.hex() for key, value in file.lower_bounds.items()})
        content["upper-bounds"] = _json_map({key: value.hex() for key, value in file.upper_bounds.items()})
    if file.split_offsets:
        content["split-offsets"] = list(file.split_offsets)
    return content


def _removed_json(file: DeleteFile) -> dict[str, Any]:
    """What Iceberg needs to find a delete file in the manifests: location, range, spec and partition."""
    content = _file_json(file, file.content)
    if file.equality_ids:
        content["equality-ids"] = list(file.equality_ids)
    if file.is_deletion_vector:
        content["referenced-data-file"] = file.referenced_data_file
        content["content-offset"] = file.content_offset
        content["content-size-in-bytes"] = file.content_size_bytes
    return content


def _json_map(values: Mapping[int, Any]) -> dict[str, list[Any]]:
    return {"keys": list(values), "values": list(values.values())}


# A call through py4j costs about 0.2 ms, so lists cross it as JSON texts and are walked inside the JVM. In
# slices, since a Java string ends at 2^31 characters, to which four million delete files come.


def _slices(values: Sequence[T]) -> Iterator[Sequence[T]]:
    return (values[start : start + _SLICE] for start in range(0, len(values), _SLICE))


def _java_delete_files(java_table: JavaObject, files: list[dict[str, Any]]) -> JavaObject:
    iceberg = jvm_of(java_table).org.apache.iceberg
    # Partition values may be NaN or infinite, for which Python writes what JSON has no numbers for.
    feature = iceberg.shaded.com.fasterxml.jackson.core.json.JsonReadFeature.ALLOW_NON_NUMERIC_NUMBERS
    reader = getattr(iceberg.util.JsonUtil.mapper().reader(), "with")(feature)
    node = reader.readTree(json.dumps({"delete-files": files}))
    return iceberg.rest.TableScanResponseParser.parseDeleteFiles(node, java_table.specs())


def _java_list(jvm: JVMView, values: Sequence[str]) -> JavaObject:
    whole = jvm.java.util.ArrayList()
    mapper = jvm.org.apache.iceberg.util.JsonUtil.mapper()
    for part in _slices(values):
        whole.addAll(mapper.readValue(json.dumps(list(part)), whole.getClass()))
    return whole


def _row_delta_consumer(operation: JavaObject, method: str) -> JavaObject:
    """A Java `Consumer<DeleteFile>` that calls a method of a `RowDelta`."""
    row_delta = _java_class(operation, "org.apache.iceberg.RowDelta")
    delete_file = _java_class(operation, "org.apache.iceberg.DeleteFile")
    return _consumer(operation, row_delta, method, returns=row_delta, takes=delete_file)


def _collector(queue: JavaObject) -> JavaObject:
    """A Java `Consumer<String>` that adds to a queue."""
    java = jvm_of(queue).java.lang
    object_class = java.Class.forName("java.lang.Object")
    return _consumer(queue, queue.getClass(), "add", returns=java.Boolean.TYPE, takes=object_class)


def _consumer(
    target: JavaObject, owner: JavaObject, method: str, *, returns: JavaObject, takes: JavaObject
) -> JavaObject:
    """A Java `Consumer` that calls a method of an object, without a way back to Python."""
    java = jvm_of(target).java.lang
    method_type = java.invoke.MethodType.methodType(returns, takes)
    handle = java.invoke.MethodHandles.publicLookup().findVirtual(owner, method, method_type)
    consumer = java.Class.forName("java.util.function.Consumer")
    return java.invoke.MethodHandleProxies.asInterfaceInstance(consumer, handle.bindTo(target))


def _nothing_added_again(java_table: JavaObject, delta: RowDelta, referenced: JavaObject) -> JavaObject:
    removed = _java_list(jvm_of(java_table), [file.path for file in delta.removed])
    starting = str(delta.starting_snapshot_id)
    return _guard(java_table, "NothingAddedAgain", java_table, starting, referenced, removed)


def _guard(java_table: JavaObject, name: str, *arguments: object) -> JavaObject:
    """An object of a class of CommitGuards.java."""
    values = jvm_of(java_table).java.util.ArrayList()
    for argument in arguments:
        values.add(argument)
    (constructor,) = _guards(java_table._gateway_client).loadClass(name).getConstructors()
    return constructor.newInstance(values.toArray())


@lru_cache(maxsize=1)
def _guards(client: GatewayClient) -> JavaObject:
    """The loader of the classes in CommitGuards.java, made once for a JVM."""
    jvm = JVMView(client, "icestream", id=DEFAULT_JVM_ID)
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    # Iceberg's JARs are known to Spark's own loader only.
    compiler.setParentClassLoader(jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
    compiler.cook(_GUARDS.read_text())
    return compiler.getClassLoader()


def _java_class(neighbour: JavaObject, name: str) -> JavaObject:
    """A class as the loader of `neighbour` sees it: Iceberg's JARs are known to Spark's own loader only."""
    return neighbour.getClass().getClassLoader().loadClass(name)


def _find_commit(java_table: JavaObject, delta: RowDelta, commit_id: str) -> CommittedSnapshot | None:
    """The snapshot of one commit, or None when the table has none.

    Raises CommitError when the table can't be read, or has it where the branch does not lead.
    """
    with _prepared():
        java_table.refresh()
        head = java_table.snapshot(delta.branch)
        if head is not None:
            # Nearly always the head itself, which spares serialising the whole history.
            newest = json.loads(jvm_of(java_table).org.apache.iceberg.SnapshotParser.toJson(head))
            if _summary(newest).get(COMMIT_ID) == commit_id:
                return _committed(newest)
        metadata = _metadata(java_table)
    ours = (one for one in metadata.get("snapshots", ()) if _summary(one).get(COMMIT_ID) == commit_id)
    found = next(ours, None)
    if found is None:
        return None
    if found not in _ancestors(metadata, delta.branch):
        raise CommitError(f"the commit happened, and branch {delta.branch} was moved away from it")
    return _committed(found)


def _manifests_since(java_table: JavaObject, base: int) -> set[str]:
    """The manifests and manifest lists of the snapshots with a sequence number above `base`.

    Raises CommitStateUnknownError when one can't be read.
    """
    needed = set()
    try:
        io = java_table.io()
        for snapshot in java_table.snapshots():
            if snapshot.sequenceNumber() > base:
                needed.add(snapshot.manifestListLocation())
                needed |= {manifest.path() for manifest in snapshot.allManifests(io)}
    except (Py4JError, CapturedException) as error:
        raise CommitStateUnknownError(java_message(error)) from None
    return needed


def _delete(java_table: JavaObject, paths: Collection[str]) -> None:
    """Deletes manifests that no snapshot has; what stays by an error is removed with the table's orphans."""
    io = java_table.io()
    for path in paths:
        with suppress(Py4JError, CapturedException):
            io.deleteFile(path)


def _metadata(java_table: JavaObject) -> dict[str, Any]:
    """The table's metadata in Iceberg's JSON form."""
    parser = jvm_of(java_table).org.apache.iceberg.TableMetadataParser
    metadata: dict[str, Any] = json.loads(parser.toJson(java_table.operations().current()))
    return metadata


def _ancestors(metadata: Mapping[str, Any], branch: str) -> list[dict[str, Any]]:
    """The snapshots from a branch's head back to its first known one."""
    by_id = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots", ())}
    snapshot_id = metadata.get("refs", {}).get(branch, {}).get("snapshot-id")
    ancestors = []
    while snapshot_id in by_id:
        ancestors.append(by_id[snapshot_id])
        snapshot_id = by_id[snapshot_id].get("parent-snapshot-id")
    return ancestors


def _summary(snapshot: Mapping[str, Any]) -> Mapping[str, str]:
    summary: Mapping[str, str] = snapshot.get("summary", {})
    return summary


def _committed(snapshot: Mapping[str, Any]) -> CommittedSnapshot:
    summary = _summary(snapshot)
    return CommittedSnapshot(
        snapshot_id=snapshot["snapshot-id"],
        parent_snapshot_id=snapshot.get("parent-snapshot-id"),
        sequence_number=snapshot["sequence-number"],
        job_id=summary[JOB_ID],
        attempt=int(summary[ATTEMPT]),
        summary=summary,
    )


def _time(millis: int) -> datetime:
    return datetime.fromtimestamp(millis / 1000, UTC)


@contextmanager
def _prepared() -> Iterator[None]:
    """Errors before the commit itself: nothing can have happened yet."""
    try:
        yield
    except (Py4JError, CapturedException) as error:
        raise_lack_of_memory(error)
        conflict = _is_conflict(error)
        raise (CommitConflictError if conflict else CommitError)(java_message(error)) from None


def _commit_failure(error: Exception) -> CommitError:
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
