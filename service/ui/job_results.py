"""The result of a job as a person reads it: figures, a table of key sets, what differs, duplicates.

Pure. Results come from workers of any version, so nothing in them is taken for granted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from service.jobs.models import JobView
from service.ui import formats
from service.ui.formats import count, duration, plural, size


@dataclass(frozen=True)
class Figure:
    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class KeySetTable:
    """What a job on the index did for each key set: a row each, the key first, the other cells numbers."""

    labels: list[str]
    rows: list[tuple[str, list[str]]]


# By a field that only this kind of job reports: label, field, and how it is written.
_KEY_SET_COLUMNS: dict[str, list[tuple[str, str, Callable[[Any], str]]]] = {
    "rows_indexed": [
        ("Data files indexed", "files_indexed", count),
        ("Unreadable data files", "files_unreadable", count),
        ("Rows indexed", "rows_indexed", count),
        ("Written", "bytes_written", size),
        ("Sorted runs", "sorted_runs_written", count),
        ("Generation", "generation", count),
    ],
    "sorted_runs_after": [
        ("Sorted runs before", "sorted_runs_before", count),
        ("Sorted runs after", "sorted_runs_after", count),
        ("Entries before", "entries_before", count),
        ("Entries after", "entries_after", count),
        ("Written", "bytes_written", size),
        ("Files deleted", "files_deleted", count),
    ],
    "differences": [
        ("Differences", "differences", count),
        ("Entries checked", "entries_checked", count),
        ("Data files compared", "files_checked", count),
        ("Data files covered", "files_covered", count),
        ("Rows compared", "rows_checked", count),
        ("Unreadable data files", "files_unreadable", count),
    ],
    "duplicate_keys": [
        ("Keys with several live rows", "duplicate_keys", count),
        ("Live rows of these", "duplicate_rows", count),
        ("Rows looked at", "rows_checked", count),
        ("Data files looked at", "files_checked", count),
        ("Data files covered", "files_covered", count),
    ],
}


def key_set_table(job: JobView) -> KeySetTable | None:
    """None for a job whose result has no such table."""
    result = job.result or {}
    kind = _kind_of(result)
    if kind is None:
        return None
    columns = _KEY_SET_COLUMNS[kind]
    return KeySetTable(
        [label for label, _, _ in columns],
        [
            (
                formats.columns(keys.get("columns") or []),
                [write(keys.get(field)) for _, field, write in columns],
            )
            for keys in result["key_sets"]
        ],
    )


def _kind_of(result: dict[str, Any]) -> str | None:
    """The field that tells what kind of job on the index this is the result of."""
    key_sets = result.get("key_sets") or []
    if not all(isinstance(keys, dict) for keys in key_sets):
        return None
    return next((name for name in _KEY_SET_COLUMNS if key_sets and name in key_sets[0]), None)


def differences_of(job: JobView) -> list[str]:
    """Examples of what a verification found wrong, in words."""
    return [
        str(example)
        for keys in (job.result or {}).get("key_sets") or []
        for example in keys.get("examples") or []
    ]


@dataclass(frozen=True)
class Duplicate:
    """A key with more than one live row, and some of them."""

    key: str
    live_rows: str
    places: list[str]
    more: int
    """Further rows."""


@dataclass(frozen=True)
class Duplicates:
    """The first duplicates of a key set, and where the others are listed."""

    columns: str
    report: str
    more: int
    """Keys that only the report lists."""
    shown: list[Duplicate]


def duplicates_of(job: JobView) -> list[Duplicates]:
    """Of each key set that has any."""
    return [
        Duplicates(
            formats.columns(keys.get("columns") or []),
            str(keys["report"]),
            max(int(keys.get("duplicate_keys") or 0) - len(keys.get("duplicates") or []), 0),
            [_duplicate(one) for one in keys.get("duplicates") or []],
        )
        for keys in (job.result or {}).get("key_sets") or []
        if keys.get("report")
    ]


def _duplicate(one: Mapping[str, Any]) -> Duplicate:
    places = [f"{place['data_file']} row {place['position']}" for place in one["places"]]
    key = ", ".join(f"{name}: {'null' if value is None else value}" for name, value in one["key"].items())
    return Duplicate(key, count(one["live_rows"]), places, max(one["live_rows"] - len(places), 0))


def figures_of(job: JobView) -> list[Figure]:
    """The result in a handful of figures, the most wanted first; empty without a result."""
    return [*_time_figures(job.result), *_done_figures(job.result)] if job.result else []


def _time_figures(result: dict[str, Any]) -> list[Figure]:
    """How long the job would take that a dry run is of: by earlier ones, else as it has measured."""
    found, measured = result.get("estimate"), result.get("estimated_seconds")
    if found:
        by = "the last such job" if found["jobs"] == 1 else f"the last {found['jobs']} such jobs"
        factor = found.get("off_by")
        off = f"; half of such estimates were off by {factor:.1f} times at most" if factor else ""
        return [Figure("Would take about", duration(found["seconds"]), f"by {by} of this table{off}")]
    if measured is None or not result.get("equality_delete_files_removed"):
        return []
    amounts = f"reading {size(result.get('bytes_read'))}, writing {size(result.get('bytes_written'))}"
    return [Figure("Would take about", duration(measured), amounts)]


def _done_figures(result: dict[str, Any]) -> list[Figure]:
    if result.get("data_files"):  # first of all: such a job may have converted, too
        return _data_files_figures(result, result["data_files"])
    if result.get("erasure"):
        converted = result.get("equality_delete_files_removed")
        return [*_erasure_figures(result["erasure"]), *([_resolved_figure(result)] if converted else [])]
    if "equality_delete_files_removed" in result:
        return _convert_figures(result)
    if result.get("expiry"):
        return _expiry_figures(result["expiry"])
    if result.get("delete_files"):
        return _rewritten_figures(result["delete_files"], "delete_files")
    if result.get("manifests"):
        return _manifests_figures(result["manifests"])
    if result.get("orphans"):
        return _orphans_figures(result["orphans"])
    if "staged_snapshots" in result:
        return _publish_figures(result)
    if "rows_added" in result:
        return _write_figures(result)
    kind = _kind_of(result)
    if kind == "rows_indexed":
        return _index_figures(result)
    if kind == "differences":
        return _verify_figures(result)
    if kind == "duplicate_keys":
        return _duplicates_figures(result)
    return [
        Figure(name.replace("_", " ").capitalize(), count(value))
        for name, value in result.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and not name.endswith("_id")
    ]


def _write_figures(result: dict[str, Any]) -> list[Figure]:
    left_out = result.get("rows_left_out")
    added, touched = result.get("data_files_added"), result.get("data_files_touched")
    return [
        Figure("Rows added", count(result.get("rows_added")), f"in {plural(added, 'data file')}"),
        Figure("Rows deleted", count(result.get("rows_deleted")), f"in {plural(touched, 'data file')}"),
        *([Figure("Rows left out", count(left_out), "they exist, or are no newer")] if left_out else []),
        Figure("Delete files written", count(result.get("delete_files_added"))),
    ]


def _publish_figures(result: dict[str, Any]) -> list[Figure]:
    added, touched = result.get("data_files_added"), result.get("data_files_touched")
    skipped = result.get("skipped_snapshot_id")
    return [
        Figure("Snapshots published", count(result["staged_snapshots"]), str(result.get("staging_branch"))),
        *([Figure("Snapshots skipped", "1", str(skipped))] if skipped is not None else []),
        Figure("Rows added", count(result.get("rows_added")), f"in {plural(added, 'data file')}"),
        Figure("Rows deleted", count(result.get("rows_deleted")), f"in {plural(touched, 'data file')}"),
        Figure("Equality deletes resolved", count(result.get("equality_deletes_resolved"))),
        Figure("Delete files written", count(result.get("delete_files_added"))),
        Figure("Files taken off the staging branch", count(result.get("files_cleared"))),
    ]


def _expiry_figures(report: dict[str, Any]) -> list[Figure]:
    held = [one for one in report.get("held") or [] if isinstance(one, Mapping)]
    why = ", ".join(dict.fromkeys(str(one.get("name") or one.get("holder")) for one in held[:3]))
    return [
        Figure(
            "Snapshots expired",
            count(report.get("snapshots_expired")),
            f"{count(report.get('snapshots_left'))} are left",
        ),
        Figure("Old ones that are held", count(report.get("snapshots_held")), f"by {why}" if why else ""),
        Figure("Data files deleted", count(report.get("data_files_deleted"))),
        Figure("Delete files deleted", count(report.get("delete_files_deleted"))),
        Figure(
            "Manifests deleted",
            count(report.get("manifests_deleted")),
            f"and {plural(report.get('manifest_lists_deleted'), 'manifest list')}",
        ),
    ]


def _data_files_figures(result: dict[str, Any], report: dict[str, Any]) -> list[Figure]:
    left_out = report.get("data_files_left_out")
    converted = result.get("equality_delete_files_removed")
    return [
        *_rewritten_figures(report, "data_files"),
        *([_resolved_figure(result)] if converted else []),
        Figure("Delete files that went with them", count(report.get("delete_files_removed"))),
        *([Figure("Data files left as they are", count(left_out))] if left_out else []),
    ]


def _rewritten_figures(report: dict[str, Any], what: str) -> list[Figure]:
    added = report.get("bytes_added")
    return [
        Figure(
            f"{what.replace('_', ' ').capitalize()} rewritten",
            count(report.get(f"{what}_rewritten")),
            f"as {count(report.get(f'{what}_added'))}",
        ),
        Figure(
            "Size of these", size(report.get("bytes_rewritten")), f"{size(added)} afterwards" if added else ""
        ),
    ]


def _manifests_figures(report: dict[str, Any]) -> list[Figure]:
    return [
        Figure(
            "Manifests rewritten",
            count(report.get("manifests_rewritten")),
            f"as {count(report.get('manifests_added'))}",
        ),
        Figure("Size of these", size(report.get("bytes_rewritten"))),
        Figure("Manifests of the head", count(report.get("manifests_left"))),
    ]


def _orphans_figures(report: dict[str, Any]) -> list[Figure]:
    found = Figure("Orphan files", count(report.get("orphan_files")), size(report.get("orphan_bytes")))
    if "files" in report:
        listed = Figure("Listed", count(len(report["files"])), size(report.get("bytes_listed")))
        return [found, listed, Figure("Files in the location", count(report.get("files_in_location")))]
    return [
        found,
        Figure("Files deleted", count(report.get("files_deleted")), size(report.get("bytes_deleted"))),
        Figure("Listed files that stay", count(report.get("files_kept"))),
        *([Figure("Files not deleted", count(report["files_failed"]))] if report.get("files_failed") else []),
    ]


def _erasure_figures(report: dict[str, Any]) -> list[Figure]:
    counts = report.get("counts") or {}
    of_all = f"of {count(report.get('keys'))}"
    states = [state for state in ("gone", "held", "invisible", "unknown") if counts.get(state)]
    return [
        *(Figure(f"Keys {state}", count(counts[state]), of_all) for state in states),
        Figure("Rows deleted", count(report.get("rows_deleted"))),
        Figure(
            "Data files rewritten",
            count(report.get("data_files_rewritten")),
            f"{size(report.get('bytes_rewritten'))}, now {size(report.get('bytes_written'))}",
        ),
        Figure("Snapshots expired", count(report.get("snapshots_expired_count"))),
        Figure(
            "Files looked through",
            count(report.get("files_looked_through")),
            size(report.get("bytes_looked_through")),
        ),
    ]


def _resolved_figure(result: dict[str, Any]) -> Figure:
    return Figure(
        "Equality deletes resolved",
        count(result.get("equality_deletes_resolved")),
        f"in {plural(result.get('equality_delete_files_removed'), 'file')}",
    )


def _convert_figures(result: dict[str, Any]) -> list[Figure]:
    vectors, positions = result.get("deletion_vectors_added"), result.get("position_delete_files_added")
    written = [
        plural(amount, noun)
        for amount, noun in ((vectors, "deletion vector"), (positions, "position delete file"))
        if amount
    ]
    commits = result.get("commits")
    return [
        _resolved_figure(result),
        Figure("Rows deleted by position", count(result.get("rows_deleted"))),
        Figure(
            "Data files touched", count(result.get("data_files_touched")), "their contents stay as they are"
        ),
        Figure(
            "Delete files written",
            count(result.get("delete_files_added")),
            " and ".join(written) + (f" in {plural(commits, 'commit')}" if commits else ""),
        ),
        Figure(
            "Delete files merged",
            count(result.get("delete_files_removed")),
            "into those that were written",
        ),
        Figure("Bytes read", size(result.get("bytes_read")), _read(result)),
    ]


def _read(result: dict[str, Any]) -> str:
    """What the bytes were read for; the others are those of the equality deletes."""
    return f"{size(_total(result, 'bytes_read'))} of them to find rows, {_sources(result)}"


def _sources(result: dict[str, Any]) -> str:
    """Whether keys were looked up or data files scanned; the table of keys says why."""
    words = {"index": "by index", "scan": "by scan", "none": ""}
    used = dict.fromkeys(str(keys.get("source")) for keys in result.get("key_sets") or [])
    return " and ".join(filter(None, (words.get(source, source.replace("_", " ")) for source in used)))


def _total(result: dict[str, Any], name: str) -> int:
    return sum(int(key_set.get(name) or 0) for key_set in result.get("key_sets") or [])


def _verify_figures(result: dict[str, Any]) -> list[Figure]:
    rebuilt = sum(bool(key_set.get("rebuilt")) for key_set in result["key_sets"])
    return [
        Figure("Differences", count(_total(result, "differences")), "rebuilt at once" if rebuilt else ""),
        Figure("Index entries checked", count(_total(result, "entries_checked"))),
        Figure(
            "Rows compared",
            count(_total(result, "rows_checked")),
            f"of {plural(_total(result, 'files_checked'), 'data file')}",
        ),
    ]


def _duplicates_figures(result: dict[str, Any]) -> list[Figure]:
    return [
        Figure(
            "Keys with several live rows",
            count(_total(result, "duplicate_keys")),
            f"of {plural(len(result['key_sets']), 'key set')}",
        ),
        Figure("Live rows of these", count(_total(result, "duplicate_rows"))),
        Figure("Rows looked at", count(_total(result, "rows_checked")), "deleted ones, too"),
    ]


def _index_figures(result: dict[str, Any]) -> list[Figure]:
    rows, written_bytes = _total(result, "rows_indexed"), _total(result, "bytes_written")
    return [
        Figure("Rows indexed", count(rows), f"for {plural(len(result['key_sets']), 'key set')}"),
        Figure("Data files indexed", count(_total(result, "files_indexed"))),
        Figure(
            "Index written",
            size(written_bytes),
            f"{written_bytes / rows:.2f} bytes an entry" if rows else "",
        ),
        Figure("Sorted runs written", count(_total(result, "sorted_runs_written"))),
    ]
