"""The page of a table's indexes: an X-ray, drawn and in words. No index is opened for it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from fastapi import APIRouter, Request, Response

from service.auth.access import Viewer
from service.db.database import ReadSession, utc_now
from service.index_health.layouts import view_indexes
from service.index_health.models import AGE_LIMITS_SECONDS, IndexedKeySet, LookupCost, PendingAge
from service.records.reports import PartitionReport, SortedRunReport
from service.records.tables import get_table
from service.settings import CurrentSettings
from service.tables import service as tables
from service.ui.formats import columns, count, duration, percent, plural, size
from service.ui.pages import PageRoute, render
from service.ui.plot import Unit

router = APIRouter(prefix="/tables", route_class=PageRoute)
_AGES = tuple(
    zip(
        AGE_LIMITS_SECONDS,
        ("under 1 min", "under 10 min", "under 1 h", "under 6 h", "under 1 day", "under 7 days"),
        strict=True,
    )
)
_OLDER = "older"
_SECTIONS = 5
"""Key sets that are drawn; the API tells of all."""
ROWS_SHOWN = 30
"""Runs, and partitions, of each: so a page stays small."""

Part = tuple[float, str]
"""A value, and the colour of the style sheet that it is drawn in."""


@dataclass(frozen=True)
class BarRow:
    """Bars below each other, each of parts that follow each other; and the same in words."""

    name: str
    words: str
    bars: Sequence[Sequence[Part]]
    at: datetime | None = None
    """The moment that it is of, which the viewer sees in their zone."""


@dataclass(frozen=True)
class Bars:
    """What a chart of bars shows."""

    title: str
    unit: Unit
    rows: Sequence[BarRow]

    @property
    def data(self) -> str:
        """For the script, as JSON."""
        rows = [[row.name, row.at and row.at.timestamp(), row.words, *row.bars] for row in self.rows]
        return json.dumps({"unit": self.unit.value, "rows": rows}, separators=(",", ":"))


@dataclass(frozen=True)
class Section:
    """One key set, and what is drawn of it."""

    index: IndexedKeySet
    name: str
    runs: Bars
    partitions: Bars
    ages: Bars


@router.get("/{table_id}/index")
def show_index(
    request: Request, session: ReadSession, settings: CurrentSettings, reader: Viewer, table_id: str
) -> Response:
    row = get_table(session, table_id)
    shown = view_indexes(session, row)
    return render(
        request,
        "tables/index.html",
        reader,
        table=tables.view(session, settings, row),
        shown=shown,
        sections=[section_of(one) for one in shown.key_sets[:_SECTIONS]],
        more=max(len(shown.key_sets) - _SECTIONS, 0),
        lookups=_lookups(shown.lookups),
        now=utc_now(),
    )


def section_of(index: IndexedKeySet) -> Section:
    index = index.model_copy(
        update={"runs": index.runs[:ROWS_SHOWN], "partitions": index.partitions[:ROWS_SHOWN]}
    )
    name = columns(index.columns or [f"field {one}" for one in index.equality_field_ids])
    return Section(
        index,
        name,
        Bars(f"Sorted runs of {name}", Unit.BYTES, [_run(one) for one in index.runs]),
        Bars(f"Coverage of partitions by {name}", Unit.COUNT, [_partition(one) for one in index.partitions]),
        Bars(f"Pending deletes by {name} and age", Unit.COUNT, ages_of(index.pending)),
    )


def _run(run: SortedRunReport) -> BarRow:
    dead = run.bytes * run.dead_ratio
    words = (
        f"{size(run.bytes)} in {plural(run.files, 'file')}, {plural(run.entries, 'entry', 'entries')}, "
        f"{percent(run.dead_ratio)} of them dead"
    )
    return BarRow(f"Level {run.level}", words, [[(run.bytes - dead, "accent"), (dead, "bad")]])


def _partition(one: PartitionReport) -> BarRow:
    lacking = one.data_files - one.covered_data_files
    words = f"{count(one.covered_data_files)} of {plural(one.data_files, 'data file')} covered"
    bar = [(float(one.covered_data_files), "accent"), (float(lacking), "warn")]
    return BarRow(one.partition or "unpartitioned", words, [bar])


def ages_of(pending: Sequence[PendingAge]) -> list[BarRow]:
    """All ages up to the oldest, so that charts of several keys compare; none if nothing is pending."""
    files = dict.fromkeys([words for _, words in _AGES] + [_OLDER], 0)
    deletes = dict(files)
    for one in pending:
        words = next((words for limit, words in _AGES if one.age_seconds < limit), _OLDER)
        files[words] += one.files
        deletes[words] += one.deletes
    return [
        BarRow(
            words,
            f"{plural(deletes[words], 'delete')} in {plural(files[words], 'file')}",
            [[(float(deletes[words]), "accent")]],
        )
        for words in (files if pending else ())
    ]


def _lookups(lookups: Sequence[LookupCost]) -> Bars:
    """The latest first; of each, index and scan as predicted and as measured."""
    rows = [
        BarRow(
            columns(one.columns),
            f"{plural(one.keys, 'key')} by {one.source.replace('_', ' ')}; "
            f"index: {duration(one.predicted_index_seconds)} predicted, {_taken(one.index_seconds)}; "
            f"scan: {duration(one.predicted_scan_seconds)} predicted, {_taken(one.scan_seconds)}",
            [
                [(one.predicted_index_seconds, "accent-faint")],
                [(one.index_seconds, "accent")],
                [(one.predicted_scan_seconds, "warn-faint")],
                [(one.scan_seconds, "warn")],
            ],
            one.ended_at,
        )
        for one in lookups
    ]
    return Bars("What lookups and scans took", Unit.SECONDS, rows)


def _taken(seconds: float) -> str:
    return f"{duration(seconds)} measured" if seconds else "not used"
