"""What the result of a job that succeeded asks a person to look at: deletes that stay, what is not indexed or
not published, keys and files that are not gone.

Pure. Results come from workers of any version, so nothing in them is taken for granted.
"""

from collections.abc import Mapping
from typing import Any

from service.jobs.models import Caveat
from service.records.jobs import JobKind
from telemetry.plurals import counted

_GO_BY_REASON = "Go by the reason."


def caveat_of(kind: JobKind, result: Mapping[str, Any] | None, *, dry_run: bool) -> Caveat | None:
    """None if all is done that was to be done."""
    match kind:
        case JobKind.CONVERT:
            return _of_conversion(result or {})
        case JobKind.PUBLISH:
            return _of_publication(result or {})
        case JobKind.INDEX | JobKind.REBUILD:
            return _of_indexing(result or {})
        case JobKind.VERIFY:
            return _of_verification(_key_sets(result), dry_run=dry_run)
        case JobKind.ERASE:
            return _of_erasure((result or {}).get("erasure"))
        case JobKind.REMOVE_ORPHAN_FILES:
            return _of_orphan_removal((result or {}).get("orphans"))
        case _:
            return None


def _of_orphan_removal(report: object) -> Caveat | None:
    failed = _number(report, "files_failed") if isinstance(report, Mapping) else 0
    if not isinstance(report, Mapping) or not failed:
        return None
    return Caveat(
        title=f"{counted(failed, 'orphan file')} could not be deleted",
        detail="The job's decisions name the cause.",
        remedy="Let the worker delete files in the table's location, and retry the job by its dry run.",
        did_nothing=not _number(report, "files_deleted"),
    )


def _of_conversion(result: Mapping[str, Any]) -> Caveat | None:
    refused = _objects(result.get("unconvertible"))
    if not refused:
        return None
    return Caveat(
        title=f"{counted(len(refused), 'equality delete file')} cannot be converted",
        detail=_first(refused),
        remedy=str(refused[0].get("remedy") or _GO_BY_REASON),
        did_nothing=not result.get("equality_delete_files_removed"),
    )


def _of_publication(result: Mapping[str, Any]) -> Caveat | None:
    stopped = result.get("stopped_at")
    if not isinstance(stopped, Mapping):
        return None
    return Caveat(
        title=f"Nothing is published from staged snapshot {stopped.get('snapshot_id')} on",
        detail=str(stopped.get("reason")),
        remedy=str(stopped.get("remedy") or _GO_BY_REASON),
        did_nothing=not result.get("staged_snapshots"),
    )


def _of_indexing(result: Mapping[str, Any]) -> Caveat | None:
    """Keys first: nothing is looked up by one that is not indexed."""
    key_sets = _objects(result.get("key_sets"))
    left_out = _objects(result.get("key_sets_not_indexed"))
    if left_out:
        are = "key is" if len(left_out) == 1 else "keys are"
        return Caveat(
            title=f"{len(left_out)} {are} not indexed",
            detail=f"Key set ({_columns(left_out[0])}): {left_out[0].get('reason')}",
            remedy=str(left_out[0].get("remedy") or _GO_BY_REASON),
            did_nothing=not key_sets,
        )
    number = max((_number(one, "files_unreadable") for one in key_sets), default=0)
    if not number:
        return None
    named = [each for one in key_sets for each in _objects(one.get("unreadable"))]
    are = "is" if number == 1 else "are"
    return Caveat(
        title=f"{counted(number, 'data file')} could not be read, and {are} not indexed",
        detail=_first(named) if named else "The job's decisions name them.",
        remedy="Restore what is missing or damaged, or have it removed from the table; then request an index "
        "job.",
        did_nothing=not any(_number(one, "files_indexed") for one in key_sets),
    )


def _of_verification(key_sets: list[Mapping[str, Any]], *, dry_run: bool) -> Caveat | None:
    number = sum(_number(one, "differences") for one in key_sets)
    if not number:
        return None
    examples = [example for one in key_sets for example in one.get("examples") or []]
    return Caveat(
        title=f"The index differs from the data files: {counted(number, 'difference')}",
        detail=str(examples[0]) if examples else "The job's decisions say more.",
        remedy="Request a verification, which rebuilds a wrong index."
        if dry_run
        else "The index was rebuilt. If that happens again, find out what writes to the index's place.",
        did_nothing=False,
    )


def _of_erasure(report: object) -> Caveat | None:
    if not isinstance(report, Mapping):
        return Caveat(
            title="What has become of the keys is not known",
            detail="The worker has not said what it saw.",
            remedy="Look at its log, and send the keys again as a new erasure.",
            did_nothing=False,
        )
    counts, keys = report.get("counts"), _number(report, "keys")
    left = keys - (_number(counts, "gone") if isinstance(counts, Mapping) else 0)
    if left <= 0:
        return None
    held = _objects(report.get("held"))
    return Caveat(
        title=f"{left:,} of {counted(keys, 'key')} {'is' if left == 1 else 'are'} not known to be gone",
        detail=str(held[0].get("reason")) if held else "The erasure's receipt says more.",
        remedy=str((held[0].get("remedy") if held else None) or "Go by the erasure's receipt."),
        did_nothing=False,
    )


def _key_sets(result: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    return _objects((result or {}).get("key_sets"))


def _objects(found: object) -> list[Mapping[str, Any]]:
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _number(one: Mapping[str, Any], name: str) -> int:
    value = one.get(name)
    return value if isinstance(value, int) else 0


def _first(named: list[Mapping[str, Any]]) -> str:
    """The cause first: lists cut long texts off."""
    return f"{named[0].get('reason')} ({named[0].get('file_path')})"


def _columns(one: Mapping[str, Any]) -> str:
    columns = one.get("columns")
    return ", ".join(map(str, columns)) if isinstance(columns, list) else ""
