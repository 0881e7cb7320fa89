"""Who asks about keys of a table: limited and let in before anything is asked of anybody, and recorded before
anything is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Path, Request
from fastapi.concurrency import run_in_threadpool
from sqlmodel import Session

from service.auth.access import Access
from service.auth.models import Principal
from service.db.database import get_database
from service.errors import IcestreamError
from service.lookups import service
from service.lookups.key_limits import KeyLimits
from service.records.api_keys import Role
from service.records.catalogs import Catalog
from service.records.tables import EnrolledTable


@dataclass(frozen=True)
class _AccessToTable(Access):
    """Reads the table that the path names as well: waiting for another thread takes as long.

    That it is not there, or for others, `admitted` says: after all that is wrong with the call itself.
    """

    def check(self, request: Request) -> Principal:
        principal = super().check(request)
        if not hasattr(request.state, "asked_about"):
            with get_database(request).read() as session:
                request.state.asked_about = _asked_about(session, principal, request.path_params["table_id"])
        return principal


def _asked_about(
    session: Session, caller: Principal, table_id: str
) -> tuple[EnrolledTable, Catalog] | IcestreamError:
    try:
        return service.asked_about(session, caller, table_id)
    except IcestreamError as error:
        return error


Asking = Annotated[Principal, Depends(_AccessToTable(Role.VIEWER, reads=True))]
"""A viewer, by a call that reads though it is a POST."""
NamedTable = Annotated[
    str,
    Path(
        alias="table_id",
        description="The table is enrolled, and named by its id, or as `catalog.namespace.table`.",
    ),
]
"""For the OpenAPI document; `Asking` reads it."""


@asynccontextmanager
async def admitted(
    request: Request, caller: Principal, limited: int, **counts: int
) -> AsyncIterator[tuple[EnrolledTable, Catalog]]:
    """The table and its catalog, while the question about it is asked. The audit entry is written meanwhile,
    which takes as long as a lookup of one key; without it, nothing is answered nor refused.

    caller: let in as `Asking`. limited: how many keys count for the caller's limit. counts: what the audit
    log tells.

    Raises a 429, NotFoundError, or ForbiddenError for a caller who may ask about other tables alone.
    """
    limits: KeyLimits = request.app.state.key_limits
    limits.take(caller, limited)
    if isinstance(found := request.state.asked_about, IcestreamError):
        raise found
    table, catalog = found

    def record() -> None:
        with get_database(request).write() as session:
            service.record(session, caller, catalog, table, **counts)

    recording = asyncio.create_task(run_in_threadpool(record))
    is_given_up = False
    try:
        yield table, catalog
    except asyncio.CancelledError:
        is_given_up = True
        raise
    finally:
        await asyncio.wait([recording])
        failure = recording.exception()
        if failure is not None and not is_given_up:
            raise failure
