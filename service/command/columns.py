"""What lists show of each item, on a terminal: the columns that people look for, by the call that lists.

A list that is not named here shows its plain fields.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from service.quantities import brief, sized

Json = dict[str, Any]
_LISTS = {
    "find_candidates": "table reads equality_deletes equality_delete_files oldest"
    " | bytes format_version table_id",
    "get_table_policy": "setting value level policy | place",
    "get_timeline": "table status most_pending longest_lag runs last_run ran_on waiting_jobs | table_id",
    "list_api_keys": "name role state used age | expires_at created_by prefix scopes id",
    "list_attachments": "policy level table catalog namespace | updated_at",
    "list_audit_entries": "at principal outcome action target | role request_id id",
    "list_catalogs": "name type status since tables latency paused age"
    " | answered requests max_running_jobs index_warehouse id",
    "list_deliveries": "id kind status age attempts | status_code next_attempt_at message_id",
    "list_erasures": "status id note age jobs keys | requested_by pattern",
    "list_history": "at status pending lag coverage | files entries sorted_runs dead_ratio unconvertible",
    "list_job_events": "at level kind | attempt job_id",
    "list_jobs": "table kind status progress age took id | branch dry_run trigger requested_by priority",
    "list_patterns": "pattern catalog enrolled matched age id | paused policy branch evaluated_at",
    "list_policies": "name built_in age | updated_at id",
    "list_senders": "name catalog heard last_refusal age | created_by id",
    "list_table_events": "at level kind | attempt job_id",
    "list_tables": "table status pending lag reads age"
    " | files policy branch paused measured_at format_version id",
    "list_webhooks": "name enabled pending dead delivered age | url id",
    "list_workers": "name alive seen age version | hostname pid job_id id",
    "replay_table_policy": "figure happened present edited off",
}
"""Before the bar those of `table`, after it those that `wide` has as well. On a narrow terminal, those are
left out for which the ones before them leave no room."""
_FIRST = ("at", "name", "catalog", "table", "kind", "type", "level", "status", "state")
"""Of a list that is not named above."""
_MOST = 8
OF_TABLES = ("key.", "row.")
"""Before the names of columns that are a table's own: those of keys and rows that were looked up."""
_REASONS = ("problem", "error", "disabled_because", "caveat", "waiting_for", "status_reason")
_WORDS = ("message", "description")
"""Where an item says why it is as it is, in words, or as a problem with its detail and remedy; and what it
says otherwise."""


@dataclass(frozen=True)
class Column:
    heading: str
    show: Callable[[Json], str | None]
    is_number: bool = False


def columns(operation_id: str, rows: Sequence[Json], *, wide: bool) -> list[Column]:
    """The columns of a list, the most important first, without the reason."""
    if operation_id in _LISTS:
        narrow, _, more = _LISTS[operation_id].partition(" | ")
        names = f"{narrow} {more}".split() if wide else narrow.split()
    else:
        plain = [name for name in rows[0] if _is_plain(name, rows)]
        names = [name for name in _FIRST if name in plain]
        names += [name for name in plain if name not in names]
        names = names if wide else names[:_MOST]
    # What no item has (a branch that is main, progress of jobs that have ended) is no column.
    return [one for name in names for one in [_column(name)] if wide or any(map(one.show, rows))]


def reason_of(row: Json) -> str | None:
    """Why something is as it is and what to do, or else its own words, as far as an item of a list tells."""
    for name in _REASONS + _WORDS:
        told = row.get(name) or (name == "error" and _of_health(name)(row))
        if isinstance(told, Mapping):
            title = f"{told['title']}: " if told.get("title") else ""
            told = title + " ".join(str(told[part]) for part in ("detail", "remedy") if told.get(part))
        if told and isinstance(told, str):
            return " ".join(told.split())
    return None


def reason_heading(rows: Sequence[Json]) -> str:
    """Of the column with `reason_of` each."""
    return next((name for name in _WORDS if name in rows[0]), "reason")


def table_name(row: Json) -> str | None:
    """As commands take it: with its catalog before it."""
    name = row.get("table") or row.get("name")
    return f"{row['catalog']}.{name}" if name and row.get("catalog") else name


def shown(name: str, value: Any) -> str | None:
    """A figure, time or word with the unit that its name tells; None for none. What a table's own columns
    have is shown as it is."""
    if value is None or value in ({}, []):
        return None
    if name.startswith(OF_TABLES):
        return value if isinstance(value, str) else json.dumps(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        words = name.split("_")
        if "seconds" in words:
            return brief(value)
        if "bytes" in words:
            return sized(value)
        if not {"coverage", "ratio"}.isdisjoint(words):
            return f"{value:.0%}"
        # Ids and numbers of versions have no thousands.
        is_id = "id" in words or name.endswith(("version", "pid", "attempt", "status_code"))
        return str(value) if is_id else f"{value:,}".removesuffix(".0")
    if name.endswith(("at", "since", "time", "until")) and (at := _moment(value)) is not None:
        return f"{at:%Y-%m-%d %H:%M:%S} UTC"
    between = "." if name in ("identifier", "namespace") else ", "
    return between.join(map(str, value)) if isinstance(value, list) else str(value)


def _column(name: str) -> Column:
    heading, show, is_number = _OWN.get(
        name, (name.replace("_", " "), lambda row: shown(name, row.get(name)), False)
    )
    return Column(heading, show, is_number)


def _since(name: str) -> Callable[[Json], str | None]:
    return lambda row: _ago(row.get(name))


def _ago(moment: Any) -> str | None:
    at = _moment(moment)
    return None if at is None else brief(max((datetime.now(UTC) - at).total_seconds(), 0))


def _took(row: Json) -> str | None:
    began, ended = _moment(row.get("started_at")), _moment(row.get("ended_at"))
    return None if began is None else brief(max(((ended or datetime.now(UTC)) - began).total_seconds(), 0))


def _lag(row: Json) -> str | None:
    return brief(row["lag_seconds"]) if row.get("lag_seconds") else None


def _of_health(name: str) -> Callable[[Json], Any]:
    """A field of a catalog's health."""
    return lambda row: (row.get("health") or {}).get(name)


def _status(row: Json) -> str | None:
    return shown("status", row.get("status") or _of_health("status")(row))


def _by_status(numbers: Mapping[str, int] | None) -> str | None:
    return ", ".join(f"{number:,} {name}" for name, number in (numbers or {}).items() if number) or None


def _read_cost(row: Json) -> str | None:
    """How many times as much a full read costs as it would without deletes and small files."""
    fresh = row.get("read_seconds", 0) - row.get("read_overhead_seconds", 0)
    return f"{row['read_seconds'] / fresh:.1f}x" if fresh > 0 else None


def progress(row: Json) -> str | None:
    """How far the stage of a job has come."""
    told = row.get("progress") or {}
    if not isinstance(told, Mapping) or not told.get("stage"):
        return None
    done = f" {told.get('done', 0):,}/{told['total']:,}" if told.get("total") else ""
    return f"{told['stage']}{done}"


def _most(name: str, unit: str) -> Callable[[Json], str | None]:
    """The greatest that was measured in a span of time."""
    return lambda row: shown(unit, max((one for one in row[name] if one is not None), default=None))


def _runs(row: Json) -> str | None:
    """How many attempts at jobs a span of time has."""
    return f"{len(row['runs']):,}{'+' if row['has_more_runs'] else ''}" if row["runs"] else None


def _last_run(row: Json) -> str | None:
    if not row["runs"]:
        return None
    last = row["runs"][-1]
    return f"{last['kind']} {last['status']} {_ago(last['ended_at'] or last['started_at'])} ago"


def _ran_on(row: Json) -> str | None:
    return ", ".join(dict.fromkeys(one["worker_name"] for one in row["runs"])) or None


def _count(*names: str) -> Callable[[Json], str | None]:
    """The first of these figures that an item has."""
    return lambda row: next((shown("", row[name]) for name in names if row.get(name) is not None), None)


_OWN: dict[str, tuple[str, Callable[[Json], str | None], bool]] = {
    "answered": ("answered", lambda row: _ago(_of_health("answered_at")(row)), True),
    "age": ("age", lambda row: _since("created_at")(row) or _since("registered_at")(row), True),
    "bytes": ("bytes", lambda row: shown("bytes", row.get("equality_delete_bytes", row.get("bytes"))), True),
    "delivered": ("delivered", _since("last_delivered_at"), True),
    "equality_delete_files": ("files", _count("equality_delete_files"), True),
    "equality_deletes": ("deletes", _count("equality_deletes"), True),
    "files": ("files", _count("pending_equality_delete_files", "files"), True),
    "heard": ("heard", _since("last_heard_at"), True),
    "jobs": ("jobs", lambda row: _by_status(row.get("jobs")), False),
    "keys": ("keys", _count("keys"), True),
    "lag": ("lag", _lag, True),
    "last_run": ("last run", _last_run, False),
    "latency": ("latency", lambda row: shown("seconds", _of_health("latency_seconds")(row)), True),
    "longest_lag": ("lag", _most("lag_seconds", "seconds"), True),
    "most_pending": ("pending", _most("pending_equality_deletes", ""), True),
    "oldest": ("oldest", _since("oldest_at"), True),
    "pending": ("pending", _count("pending_equality_deletes", "pending"), True),
    "progress": ("progress", progress, False),
    "ran_on": ("ran on", _ran_on, False),
    "requests": ("requests", lambda row: shown("", _of_health("requests")(row)), True),
    "runs": ("runs", _runs, True),
    "since": ("since", lambda row: _ago(_of_health("since")(row)), True),
    "status": ("status", _status, False),
    "tables": ("tables", lambda row: _by_status(_of_health("tables")(row)), False),
    "reads": ("reads", _read_cost, True),
    "seen": ("seen", _since("last_seen_at"), True),
    "table": ("table", table_name, False),
    "took": ("took", _took, True),
    "used": ("used", _since("last_used_at"), True),
    "waiting_jobs": ("waiting", _count("waiting_jobs"), True),
}
"""Columns that are no field as it stands: heading, value, and whether it is a figure."""


def _is_plain(name: str, rows: Sequence[Json]) -> bool:
    """Whether it gets a column: no lists, no ids of what is named, nothing the reason says."""
    if name in _REASONS + _WORDS or name.removesuffix("_id") in rows[0].keys() - {name}:
        return False
    if name == "catalog" and "table" in rows[0]:  # whose column has it
        return False
    return not any(isinstance(row.get(name), Mapping | list) for row in rows)


def _moment(value: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(value).astimezone(UTC)
    except (TypeError, ValueError):
        return None
