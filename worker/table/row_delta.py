"""A `RowDelta`, and the operation of Iceberg's that it becomes in Spark's JVM.

A call through py4j costs about 0.2 ms, so lists cross it as JSON texts and are walked inside the JVM. In
slices, since a Java string ends at 2^31 characters, to which four million delete files come.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from py4j.java_gateway import JavaObject, JVMView
from pyiceberg.table.metadata import TableMetadata

from worker.spark.jvm import java_map, java_object, java_strings, json_mapper, jvm_of
from worker.table.catalogs import tables
from worker.table.files import DeleteFile, FileContent, NewDeleteFile

T = TypeVar("T")

ANY_FILE = "any-file"
_GUARDS = Path(__file__).with_name("CommitGuards.java")
NO_SNAPSHOT = -1
"""The head of a branch of an empty table."""

# Files that cross to Java in one text: about 50 MB.
_SLICE = 100_000


@dataclass(frozen=True, slots=True)
class RowDelta:
    """One commit: delete files to add and to remove, and what must still hold.

    starting_snapshot_id: the pinned snapshot that was planned on; NO_SNAPSHOT in an empty table.
    referenced_data_files: paths, as manifests spell them, of all data files that must still be live.
    summary: further snapshot properties, such as counts (`icestream.*`).
    rows: Java's list of new data files. layout: what `layout_of_new_rows` said when they were written; then
    the commit happens on the starting snapshot alone, since later ones may hold rows that were not looked at.
    staged: a branch, and a snapshot that it must still have; what the summary says of it is worth a commit.
    read: files of the table's metadata that need not be read again, by their places.
    """

    branch: str
    starting_snapshot_id: int
    job_id: str
    attempt: int
    added: Sequence[NewDeleteFile]
    removed: Sequence[DeleteFile]
    referenced_data_files: Sequence[str]
    summary: Mapping[str, str] = field(default_factory=dict)
    rows: JavaObject = ()
    layout: str = ""
    staged: tuple[str, int] | None = None
    read: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not self.added and not self.removed and not self.rows and self.staged is None


def java_row_delta(
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
    plan = {
        "folder": place.removesuffix(ANY_FILE),
        "layout": delta.layout,
        "branch": delta.branch,
        "head": str(delta.starting_snapshot_id),
        "read": [(path, len(content)) for path, content in delta.read.items()],
    }
    read, reader = b"".join(delta.read.values()), _lenient_reader(jvm_of(java_table))
    changes = _guard(java_table, "Changes", java_table, json.dumps(plan), read, referenced, validator)
    if delta.rows:
        changes.addRows(delta.rows)
    for added in _slices(delta.added):
        changes.addDeletes(reader, _json_of(map(_added_json, added)))
    for removed in _slices(delta.removed):
        changes.removeDeletes(reader, _json_of(map(_removed_json, removed)))
    return changes.described(json.dumps(dict(summary)), condemned)


def described(operation: JavaObject, summary: Mapping[str, str], condemned: JavaObject) -> JavaObject:
    """A snapshot's operation with its properties. condemned: gets the manifests that Iceberg would delete."""
    properties = java_map(jvm_of(operation), summary)
    return _guard(operation, "Description", properties, condemned).of(operation)


def loads_no_class(java_table: JavaObject, layout: str) -> JavaObject:
    """The same table for its writers, which loads no class that it names."""
    return _guard(java_table, "GuardedTable", java_table, java_table.location(), layout)


def guarded(java_table: JavaObject, place: str, layout: str) -> JavaObject:
    """The same table, which loads no class that it names, and commits only while its metadata goes where that
    place is, and while it has that layout, if one is given.

    place: of a metadata file, as it was checked.
    """
    return _guard(java_table, "GuardedTable", java_table, place.removesuffix(ANY_FILE), layout)


def state_of(java_table: JavaObject, branch: str = "", *, is_refreshed: bool = False) -> dict[str, Any]:
    """What a commit looks at before, of a table as it was refreshed last, or is for this."""
    state: dict[str, Any] = json.loads(tables(java_table).state(java_table, branch, is_refreshed))
    return state


def layout_of_new_rows(metadata: TableMetadata) -> str:
    """What of a table new data and delete files depend on, as CommitGuards.java says it."""
    return f"{metadata.current_schema_id} {metadata.default_spec_id} {metadata.format_version}"


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
    if file.is_deletion_vector:
        content["referenced-data-file"] = file.referenced_data_file
        content["content-offset"] = file.content_offset
        content["content-size-in-bytes"] = file.content_size_bytes
    return content


def _json_map(values: Mapping[int, Any]) -> dict[str, list[Any]]:
    return {"keys": list(values), "values": list(values.values())}


def _slices(values: Sequence[T]) -> Iterator[Sequence[T]]:
    return (values[start : start + _SLICE] for start in range(0, len(values), _SLICE))


def _json_of(files: Iterable[dict[str, Any]]) -> str:
    return json.dumps({"delete-files": list(files)})


def _java_delete_files(java_table: JavaObject, files: Iterable[dict[str, Any]]) -> JavaObject:
    jvm = jvm_of(java_table)
    node = _lenient_reader(jvm).readTree(_json_of(files))
    return jvm.org.apache.iceberg.rest.TableScanResponseParser.parseDeleteFiles(node, java_table.specs())


@lru_cache(maxsize=8)
def _lenient_reader(jvm: JVMView) -> JavaObject:
    """Partition values may be NaN or infinite, for which Python writes what JSON has no numbers for."""
    features = jvm.org.apache.iceberg.shaded.com.fasterxml.jackson.core.json.JsonReadFeature
    return getattr(json_mapper(jvm).reader(), "with")(features.ALLOW_NON_NUMERIC_NUMBERS)


def java_delete_files(java_table: JavaObject, files: Sequence[DeleteFile]) -> JavaObject:
    """Delete files of the table, as its operations remove them."""
    return _java_delete_files(java_table, map(_removed_json, files))


def java_new_delete_files(java_table: JavaObject, files: Sequence[NewDeleteFile]) -> JavaObject:
    """The same of files that are to be added."""
    return _java_delete_files(java_table, map(_added_json, files))


def java_list(jvm: JVMView, values: Sequence[str]) -> JavaObject:
    whole = java_strings(jvm, values[:_SLICE])
    for part in _slices(values[_SLICE:]):
        whole.addAll(java_strings(jvm, part))
    return whole


def validator_of(java_table: JavaObject, delta: RowDelta, referenced: JavaObject) -> JavaObject:
    """What says, of each head that Iceberg is about to build on, whether the delta still holds there."""
    if delta.staged is not None:
        branch, snapshot_id = delta.staged
        head, operations = str(delta.starting_snapshot_id), java_table.operations()
        return _guard(java_table, "StagedUnmoved", operations, head, branch, str(snapshot_id))
    if delta.layout:
        return head_unmoved(java_table, delta.starting_snapshot_id)
    removed = [file.path for file in delta.removed]
    return nothing_added_again(java_table, delta.starting_snapshot_id, referenced, removed)


def nothing_added_again(
    java_table: JavaObject, snapshot_id: int, data_files: JavaObject, delete_files: Sequence[str]
) -> JavaObject:
    """What says whether nobody has added files once more since a snapshot: by their paths, those of data
    files in Java's list."""
    deletes = java_list(jvm_of(java_table), delete_files)
    return _guard(java_table, "NothingAddedAgain", java_table, str(snapshot_id), data_files, deletes)


def head_unmoved(java_table: JavaObject, snapshot_id: int) -> JavaObject:
    """What says whether a branch still has a head; -1 for an empty table."""
    return _guard(java_table, "HeadUnmoved", str(snapshot_id))


def _guard(neighbour: JavaObject, name: str, *arguments: object) -> JavaObject:
    """An object of a class of CommitGuards.java."""
    return java_object(neighbour, _GUARDS, name, *arguments)
