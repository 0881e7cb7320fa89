"""What a person wants to know of a job: its stages, and what happened when.

Pure. Results come from workers of any version, so nothing in them is taken for granted.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import accumulate
from typing import Any

from service.jobs.models import AttemptView, EventView, JobView
from service.records.jobs import AttemptStatus, JobStatus
from service.ui.formats import count, duration, plural, seconds_between, size

STAGE_WORDS = {
    "plan": "Plan: pin the snapshot, list files and deletes",
    "list": "List the files in the table's location",
    "search": "Search the table's files",
    "read": "Read the equality deletes",
    "lookup": "Look keys up in the index",
    "scan": "Scan key columns of data files",
    "shuffle": "Sort keys into ranges and look them up",
    "index": "Write index entries",
    "commit_index": "Commit the index",
    "deletes": "Write deletion vectors and position deletes",
    "rows": "Write data files with new rows",
    "clear": "Take what is published off the staging branch",
    "rewrite": "Rewrite files",
    "expire": "Let snapshots expire",
    "delete": "Delete files that no snapshot needs",
    "commit": "Commit to the Iceberg table",
    "compact": "Merge sorted runs",
    "clean_up": "Delete files that the index no longer needs",
    "check_dictionary": "Check the index's list of files",
    "check_index": "Read and check every index entry",
    "check_data_files": "Compare with the rows of data files",
    "find_differences": "Look for what differs",
    "explain": "Look for deletes that other readers apply wrongly",
    "verify": "Compare what index and scan find",
    "read_deletes": "Read position deletes and deletion vectors",
    "sort_rows": "Sort the keys of rows that the index does not have in order",
    "find_duplicates": "Compare keys, and tell live rows from deleted ones",
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
    began_seconds: float = 0.0
    """After the attempt began."""

    @property
    def per_second(self) -> float | None:
        """How fast it goes; None as long as nobody can tell."""
        return self.done / self.seconds if self.done and self.seconds >= 1 else None

    @property
    def seconds_left(self) -> float | None:
        """Until it ends, if it goes on like this."""
        if self.per_second is None or not self.total:
            return None
        return max(self.total - (self.done or 0), 0) / self.per_second


def stages_of(job: JobView, events: Sequence[EventView], now: datetime) -> list[Stage]:
    """The stages of the latest attempt in order; the worker's own times if it reported them.

    events: those of its progress at least, oldest first.
    """
    return _stages_of(job, job.attempts[-1], events, now) if job.attempts else []


def earlier_stages_of(job: JobView, events: Sequence[EventView], now: datetime) -> dict[int, list[Stage]]:
    """Those of the attempts before the latest one that are drawn, by the number of the attempt.

    events: as of `stages_of`.
    """
    return {one.attempt: _stages_of(job, one, events, now) for one in job.attempts[-_ATTEMPTS:-1]}


def _stages_of(job: JobView, attempt: AttemptView, events: Sequence[EventView], now: datetime) -> list[Stage]:
    is_last = attempt.attempt == job.attempts[-1].attempt
    reported: Sequence[Mapping[str, Any]] = [stage.model_dump() for stage in attempt.stages]
    if not reported and is_last:
        reported = (job.result or {}).get("stages") or []
    if reported:
        lengths = [float(stage["seconds"]) for stage in reported]
        begins = accumulate(lengths, initial=0.0)
        return [
            replace(_stage(str(stage["name"]), seconds, began), message=work_of(stage))
            for stage, seconds, began in zip(reported, lengths, begins, strict=False)
        ]
    seen = [event for event in events if event.kind == "job.progress" and event.attempt == attempt.attempt]
    ended_at = attempt.ended_at or now
    spent: dict[str, float] = {}
    begins_at: dict[str, float] = {}
    for number, event in enumerate(seen):
        until = seen[number + 1].at if number + 1 < len(seen) else ended_at
        name = str(event.fields["progress"]["stage"])
        spent[name] = spent.get(name, 0.0) + seconds_between(event.at, until)
        begins_at.setdefault(name, seconds_between(attempt.started_at, event.at))
    current = job.progress if job.status is JobStatus.RUNNING and is_last else None
    if current is not None:
        spent.setdefault(current["stage"], 0.0)
    return [
        _stage(
            name,
            seconds,
            begins_at.get(name, seconds_between(attempt.started_at, ended_at)),
            current if current is not None and current["stage"] == name else None,
        )
        for name, seconds in spent.items()
    ]


Item = tuple[float, float, str, str]
"""When something began and ended, in seconds after the job was made, its ink of the style sheet, and words.

A moment ends at once.
"""
_ATTEMPT_INKS = {
    AttemptStatus.RUNNING: "accent-strong",
    AttemptStatus.SUCCEEDED: "good",
    AttemptStatus.FAILED: "bad",
    AttemptStatus.LOST: "warn",
}
_ATTEMPTS = _MOMENTS = 50
"""The latest ones, of a row; the lists of the page have more."""
_SAID = 120
"""Characters of what is said of a moment."""


@dataclass(frozen=True)
class JobTimeline:
    """What happened to a job on one axis of time: rows of items, each by when it began."""

    made_at: datetime
    from_seconds: float
    """The left edge: hours in a queue would hide what came after them."""
    end_seconds: float
    rows: list[tuple[str, list[Item]]]

    @property
    def data(self) -> str:
        """For the script, as JSON: times are seconds since the job was made."""
        told = {
            "began": self.made_at.timestamp(),
            "from": round(self.from_seconds, 3),
            "ends": round(self.end_seconds, 3),
            "rows": [[name, *items] for name, items in self.rows],
        }
        return json.dumps(told, separators=(",", ":"))


def timeline_of(
    job: JobView,
    events: Sequence[EventView],
    progress: Sequence[EventView],
    warnings: Sequence[EventView],
    now: datetime,
) -> JobTimeline | None:
    """None of a job that waits for its first attempt.

    events: what happened, in any order, without progress and lines of the log. progress: the oldest first.
    warnings: lines of the log.
    """
    if not job.attempts:
        return None

    def after(moment: datetime) -> float:
        return round((moment - job.created_at).total_seconds(), 3)

    ended = after(job.ended_at or now)
    waits: list[Item] = []
    attempts: list[Item] = []
    stages: dict[str, list[Item]] = {}
    drawn = job.attempts[-_ATTEMPTS:]
    since = after(job.attempts[-len(drawn) - 1].ended_at or now) if len(drawn) < len(job.attempts) else 0.0
    for attempt in drawn:
        began, end = after(attempt.started_at), after(attempt.ended_at or now)
        waits.append((since, began, "muted", f"{duration(began - since)} in the queue"))
        since = end
        told = f"Attempt {attempt.attempt} on {attempt.worker_name}: {attempt.status.value}"
        told += f", {duration(end - began)}"
        if attempt.error:
            told += f"; {attempt.error.get('title')}"
        attempts.append((began, end, _ATTEMPT_INKS.get(attempt.status, "muted"), told))
        for stage in _stages_of(job, attempt, progress, now):
            start = began + stage.began_seconds
            said = ", ".join(filter(None, (duration(stage.seconds), stage.message)))
            item = (round(start, 3), round(start + stage.seconds, 3), "accent", f"{stage.words}: {said}")
            stages.setdefault(stage.name.replace("_", " ").capitalize(), []).append(item)
    if ended > since and not job.status.is_final:
        waits.append((since, ended, "muted", f"{duration(ended - since)} in the queue"))
    grave = [event for event in events if event.level != "info"]
    calm = [event for event in events if event.level == "info"]
    moments = {
        "Decisions": ([event for event in calm if event.kind == "job.message"], "accent"),
        "Events": ([event for event in calm if event.kind != "job.message"], "muted"),
        "Warnings": ([event for event in [*grave, *warnings] if event.level == "warning"], "warn"),
        "Errors": ([event for event in [*grave, *warnings] if event.level == "error"], "bad"),
    }
    rows = [("Waiting", waits), ("Attempts", attempts), *stages.items()]
    for name, (found, ink) in moments.items():
        latest = sorted((after(event.at), event.message[:_SAID]) for event in found)[-_MOMENTS:]
        if latest:
            rows.append((name, [(at, at, ink, said) for at, said in latest]))
    end = max(end for _, items in rows for _, end, _, _ in items)
    first = after(drawn[0].started_at)
    return JobTimeline(job.created_at, max(0.0, first - max(2 * (end - first), 1.0)), end, rows)


def work_of(stage: Mapping[str, Any]) -> str | None:
    """Where the tasks of a stage ran and what they came to, in words; None of a stage without tasks."""
    on_spark, in_driver = stage.get("tasks_on_spark") or 0, stage.get("tasks_in_driver") or 0
    places = [
        f"{plural(tasks, 'task')} {place}"
        for tasks, place in ((on_spark, "on Spark"), (in_driver, "in the worker, without Spark"))
        if tasks
    ]
    if not places:
        return None
    told = [" and ".join(places)]
    if stage.get("failed_tasks"):
        told.append(f"{count(stage['failed_tasks'])} failed")
    told.append(f"{duration(float(stage.get('task_seconds') or 0))} of work")
    if stage.get("gc_seconds"):
        told.append(f"{duration(float(stage['gc_seconds']))} of garbage collection")
    told += [
        f"{size(stage[name])} {done}"
        for name, done in (("spilled_bytes", "spilled"), ("shuffled_bytes", "shuffled"))
        if stage.get(name)
    ]
    return ", ".join(told)


def _stage(name: str, seconds: float, began: float, progress: dict[str, Any] | None = None) -> Stage:
    words = STAGE_WORDS.get(name, name.replace("_", " ").capitalize())
    if progress is None:
        return Stage(name, words, seconds, began_seconds=began)
    return Stage(
        name,
        words,
        seconds,
        began_seconds=began,
        is_current=True,
        done=progress.get("done"),
        total=progress.get("total") or None,
        unit=progress.get("unit") or "",
        message=progress.get("message"),
    )
