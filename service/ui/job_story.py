"""What a person wants to know of a job: its stages with their times, and its result in figures.

Pure. Results come from workers of any version, so nothing in them is taken for granted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from service.jobs.models import EventView, JobView
from service.jobs.status import JobStatus
from service.ui.formats import count, plural, seconds_between, size

_STAGE_WORDS = {
    "plan": "Plan: pin the snapshot, list files and deletes",
    "read": "Read the equality deletes",
    "lookup": "Look keys up in the index",
    "scan": "Scan key columns of data files",
    "shuffle": "Sort keys into ranges and look them up",
    "index": "Write index entries",
    "commit_index": "Commit the index",
    "deletes": "Write deletion vectors and position deletes",
    "commit": "Commit to the Iceberg table",
    "compact": "Merge sorted runs",
    "clean_up": "Delete files that the index no longer needs",
    "verify": "Compare index and scan",
    "drop": "Delete the index",
    "report": "Measure the index",
}


@dataclass(frozen=True)
class Stage:
    name: str
    words: str
    seconds: float
    is_current: bool = False
    done: int | None = None
    total: int | None = None
    """None while the amount of work is not known."""
    unit: str = ""
    message: str | None = None


@dataclass(frozen=True)
class Figure:
    label: str
    value: str
    detail: str = ""


def stages_of(job: JobView, events: Sequence[EventView], now: datetime) -> list[Stage]:
    """The stages of the latest attempt in order; the worker's own times if it reported them.

    events: all of the job, oldest first.
    """
    reported = (job.result or {}).get("stages") or []
    if reported:
        return [_stage(str(stage["name"]), float(stage["seconds"])) for stage in reported]
    if not job.attempts:
        return []
    attempt = job.attempts[-1]
    seen = [event for event in events if event.kind == "job.progress" and event.attempt == attempt.attempt]
    ended_at = attempt.ended_at or now
    spent: dict[str, float] = {}
    for number, event in enumerate(seen):
        until = seen[number + 1].at if number + 1 < len(seen) else ended_at
        name = str(event.fields["progress"]["stage"])
        spent[name] = spent.get(name, 0.0) + seconds_between(event.at, until)
    current = job.progress if job.status is JobStatus.RUNNING else None
    if current is not None:
        spent.setdefault(current["stage"], 0.0)
    return [
        _stage(name, seconds, current if current is not None and current["stage"] == name else None)
        for name, seconds in spent.items()
    ]


def _stage(name: str, seconds: float, progress: dict[str, Any] | None = None) -> Stage:
    words = _STAGE_WORDS.get(name, name.replace("_", " ").capitalize())
    if progress is None:
        return Stage(name, words, seconds)
    return Stage(
        name,
        words,
        seconds,
        is_current=True,
        done=progress.get("done"),
        total=progress.get("total") or None,
        unit=progress.get("unit") or "",
        message=progress.get("message"),
    )


def figures_of(job: JobView) -> list[Figure]:
    """The result in a handful of figures, the most wanted first; empty without a result."""
    result = job.result
    if not result:
        return []
    if "equality_delete_files_removed" in result:
        return _convert_figures(result)
    if "rows_indexed" in str(result.get("key_sets")):
        return _index_figures(result)
    return [
        Figure(name.replace("_", " ").capitalize(), count(value))
        for name, value in result.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and not name.endswith("_id")
    ]


def _convert_figures(result: dict[str, Any]) -> list[Figure]:
    vectors, positions = result.get("deletion_vectors_added"), result.get("position_delete_files_added")
    written = [
        plural(amount, noun)
        for amount, noun in ((vectors, "deletion vector"), (positions, "position delete file"))
        if amount
    ]
    return [
        Figure(
            "Equality deletes resolved",
            count(result.get("equality_deletes_resolved")),
            f"in {plural(result.get('equality_delete_files_removed'), 'file')}",
        ),
        Figure("Rows deleted by position", count(result.get("rows_deleted"))),
        Figure(
            "Data files touched", count(result.get("data_files_touched")), "their contents stay as they are"
        ),
        Figure(
            "Delete files written",
            count(result.get("delete_files_added")),
            " and ".join(written),
        ),
        Figure(
            "Delete files removed",
            count(result.get("delete_files_removed")),
            "equality deletes, and what they replace",
        ),
        Figure("Commits", count(result.get("commits"))),
    ]


def _index_figures(result: dict[str, Any]) -> list[Figure]:
    key_sets = result["key_sets"]

    def total(name: str) -> int:
        return sum(int(key_set.get(name) or 0) for key_set in key_sets)

    rows, written_bytes = total("rows_indexed"), total("bytes_written")
    return [
        Figure("Rows indexed", count(rows), f"for {plural(len(key_sets), 'key set')}"),
        Figure("Data files indexed", count(total("files_indexed"))),
        Figure(
            "Index written",
            size(written_bytes),
            f"{written_bytes / rows:.2f} bytes an entry" if rows else "",
        ),
        Figure("Sorted runs written", count(total("sorted_runs_written"))),
    ]
