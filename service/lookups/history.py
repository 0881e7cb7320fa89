"""What rows a key had in each of the newest snapshots: one question a snapshot, about the same metadata.

Invariant: what is told of a snapshot is what a lookup of it tells, or it is said why nothing is. Nothing is
inferred from another snapshot.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from fastapi import Request
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from service.auth.models import Principal
from service.catalogs.threads import CatalogThreads
from service.errors import IcestreamError
from service.lookups import service
from service.lookups.admission import admitted
from service.lookups.concurrency import ConcurrencyLimits
from service.lookups.metadata_locations import MetadataLocation
from service.lookups.models import (
    EarlierSnapshots,
    KeyChange,
    KeyHistory,
    KeyHistoryRequest,
    KeyInSnapshot,
    LookupAnswer,
    LookupRequest,
    Match,
    NotTold,
)
from service.lookups.servers import Allowance, LookupServers
from service.records.catalogs import Catalog
from service.records.tables import EnrolledTable
from service.settings import Settings

_SECONDS = 30.0
"""For all snapshots: what is not told by then is left out, and says so."""
_ANSWER_BYTES = 8 * 1024**2
"""Likewise, of what is read for all snapshots: in memory it takes many times as much."""
_OF_A_SNAPSHOT = frozenset(
    {"answer-too-large", "lookup-failed", "not-covered", "out-of-time", "unknown-columns"}
)
"""Refusals that hold for one snapshot, and not for others."""
_FIRST_SEQUENCE_NUMBER = 1
Answer = LookupAnswer | IcestreamError


@dataclass(frozen=True, slots=True)
class Asked:
    """A table that somebody may ask about, and its metadata as the catalog names it now."""

    caller: Principal
    table: EnrolledTable
    catalog: Catalog
    metadata: TableMetadata
    location: MetadataLocation


async def begin(request: Request, caller: Principal, snapshots: int) -> Asked:
    """Raises IcestreamError: no such table, no lookup server, too many keys, or trouble of the catalog."""
    servers: LookupServers = request.app.state.lookup_servers
    if not servers.are_set_up:
        raise IcestreamError("lookups-not-set-up", "The service knows no lookup server.")
    counts = {"keys": 1, "snapshots": snapshots}
    async with admitted(request, caller, snapshots, **counts) as (table, catalog):
        threads: CatalogThreads = request.app.state.catalog_threads
        asked_at = time.monotonic()
        load = partial(request.app.state.catalogs.load, catalog, tuple(table.identifier))
        loaded = await threads.run(request, catalog.id, load)
    return Asked(
        caller, table, catalog, loaded.metadata, MetadataLocation(loaded.metadata_location, asked_at)
    )


async def tell(request: Request, settings: Settings, asked: Asked, body: KeyHistoryRequest) -> KeyHistory:
    """Raises IcestreamError: what is wrong with the question, or why nothing is told of any snapshot."""
    servers: LookupServers = request.app.state.lookup_servers
    shares: ConcurrencyLimits = request.app.state.lookup_concurrency
    snapshots, earlier = _snapshots(asked, body)
    answers: list[Answer] = []
    # Without a snapshot, the servers say what is wrong with the branch, or that the table is empty.
    wanted: list[int | None] = [one.snapshot_id for one in snapshots]
    allowance = Allowance(time.monotonic() + _SECONDS, _ANSWER_BYTES)
    try:
        async with asyncio.timeout(_SECONDS), shares.of(asked.caller):
            for snapshot_id in wanted or [body.snapshot_id]:
                question = _question(settings, asked, body, snapshot_id)
                answers.append(await _answer(servers, question, allowance))
    except TimeoutError:
        late = IcestreamError("out-of-time", f"The lookups did not end within {_SECONDS:g} s.")
        answers += [late] * (max(len(snapshots), 1) - len(answers))
    told = [answer for answer in answers if isinstance(answer, LookupAnswer)]
    if not told:
        raise next(answer for answer in answers if isinstance(answer, IcestreamError))
    return KeyHistory(
        key=body.key,
        key_columns=told[0].key_columns,
        head_age_seconds=told[0].head_age_seconds,
        snapshots=describe(snapshots, answers, earlier),
        earlier_snapshots=earlier,
    )


def describe(
    snapshots: Sequence[Snapshot], answers: Sequence[Answer], earlier: EarlierSnapshots
) -> list[KeyInSnapshot]:
    """Each snapshot, newest first, with its answer and what it did to the rows before it."""
    rows = [
        answer.results[0].matches if isinstance(answer, LookupAnswer) else None
        for answer in answers[: len(snapshots)]
    ]
    before = [*rows[1:], [] if earlier is EarlierSnapshots.NONE else None]
    return [
        _described(snapshot, answer, now, then)
        for snapshot, answer, now, then in zip(snapshots, answers, rows, before, strict=False)
    ]


def _described(
    snapshot: Snapshot, answer: Answer, now: list[Match] | None, then: list[Match] | None
) -> KeyInSnapshot:
    told = answer if isinstance(answer, LookupAnswer) else None
    operation = snapshot.summary.operation.value if snapshot.summary is not None else None
    return KeyInSnapshot(
        snapshot_id=snapshot.snapshot_id,
        committed_at=_time(snapshot.timestamp_ms),
        operation=operation,
        change=None if now is None or then is None else _change(then, now, operation),
        matches=now,
        not_told=NotTold(code=answer.slug, detail=answer.detail)
        if isinstance(answer, IcestreamError)
        else None,
        data_files_from_index=told and told.data_files_from_index,
        data_files_scanned=told and told.data_files_scanned,
        rows_scanned=told and told.rows_scanned,
    )


def _change(then: Sequence[Match], now: Sequence[Match], operation: str | None) -> KeyChange:
    # Data files never change: the same place is the same row.
    before, after = ({(one.data_file, one.position) for one in rows if one.live} for rows in (then, now))
    if before == after:
        return KeyChange.UNCHANGED
    if not before:
        return KeyChange.APPEARED
    if not after:
        return KeyChange.DELETED
    if before < after:
        return KeyChange.ADDED
    if after < before:
        return KeyChange.REMOVED
    return KeyChange.MOVED if operation == "replace" else KeyChange.REPLACED


def _time(milliseconds: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # whoever wrote the metadata may say anything
        return None


def _snapshots(asked: Asked, body: KeyHistoryRequest) -> tuple[list[Snapshot], EarlierSnapshots]:
    """The snapshot that is asked about and its ancestors, as many as are wanted; none if it is not there."""
    known = {snapshot.snapshot_id: snapshot for snapshot in asked.metadata.snapshots}
    at = body.snapshot_id
    if at is None:
        reference = asked.metadata.refs.get(body.branch or asked.table.branch)
        at = None if reference is None else reference.snapshot_id
    found: list[Snapshot] = []
    # Each once: in metadata that someone made up, a snapshot may be its own ancestor.
    while at is not None and len(found) < body.snapshots and at in known:
        found.append(known.pop(at))
        at = found[-1].parent_snapshot_id
    if at is not None and at in known:
        return found, EarlierSnapshots.LEFT_OUT
    # Without a parent, it need not be the first one: PyIceberg's expiry takes it from the child.
    is_all = at is None and (not found or found[-1].sequence_number == _FIRST_SEQUENCE_NUMBER)
    return found, EarlierSnapshots.NONE if is_all else EarlierSnapshots.EXPIRED


async def _answer(servers: LookupServers, question: dict[str, Any], allowance: Allowance) -> Answer:
    try:
        return await servers.ask(question, allowance)
    except IcestreamError as error:
        if error.slug not in _OF_A_SNAPSHOT:
            raise
        return error


def _question(
    settings: Settings, asked: Asked, body: KeyHistoryRequest, snapshot_id: int | None
) -> dict[str, Any]:
    request = LookupRequest(
        keys=[body.key],
        key_columns=body.key_columns,
        branch=body.branch if snapshot_id is None else None,
        snapshot_id=snapshot_id,
        select=body.select,
    )
    return service.question(settings, asked.catalog, asked.table, asked.location, request)
