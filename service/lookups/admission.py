"""Who asks about keys of a table: limited and let in before anything is asked of anybody, and recorded before
anything is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Path, Request
from fastapi.concurrency import run_in_threadpool

from service.auth.access import Access
from service.auth.models import Principal
from service.db.database import get_database
from service.lookups import service
from service.lookups.limits import KeyLimits
from service.records.catalogs import Catalog
from service.records.keys import Role
from service.records.tables import EnrolledTable


@dataclass(frozen=True)
class _AccessToTable(Access):
    """Reads the table that the path names as well: waiting for another thread takes as long."""

    def check(self, request: Request) -> Principal:
        """Raises also NotFoundError, and ForbiddenError for a caller who may ask about other tables alone."""
        principal = super().check(request)
        if not hasattr(request.state, "asked_about"):
            with get_database(request).read() as session:
                table_id = request.path_params["table_id"]
                request.state.asked_about = service.asked_about(session, principal, table_id)
        return principal


Asking = Annotated[Principal, Depends(_AccessToTable(Role.VIEWER, reads=True))]
"""A viewer, by a call that reads though it is a POST."""
NamedTable = Annotated[str, Path(alias="table_id", description="The id names an enrolled table.")]
"""For the OpenAPI document; `Asking` reads it."""


@asynccontextmanager
async def admitted(
    request: Request, caller: Principal, limited: int, **counts: int
) -> AsyncIterator[tuple[EnrolledTable, Catalog]]:
    """The table and its catalog, while the question about it is asked. The audit entry is written meanwhile,
    which takes as long as a lookup of one key; without it, nothing is answered.

    caller: let in as `Asking`. limited: how many keys count for the caller's limit. counts: what the audit
    log tells.

    Raises a 429.
    """
    limits: KeyLimits = request.app.state.key_limits
    limits.take(caller, limited)
    table, catalog = request.state.asked_about

    def record() -> None:
        with get_database(request).write() as session:
            service.record(session, caller, table, **counts)

    recording = asyncio.create_task(run_in_threadpool(record))
    try:
        yield table, catalog
    finally:
        await recording
