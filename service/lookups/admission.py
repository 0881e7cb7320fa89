"""Who asks about keys of a table: limited, let in and recorded, before anything is asked of anybody."""

from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from service.auth.models import Principal
from service.db.database import get_database
from service.lookups import service
from service.lookups.limits import KeyLimits
from service.records.catalogs import Catalog
from service.records.tables import EnrolledTable


async def admit(
    request: Request, caller: Principal, table_id: str, limited: int, **counts: int
) -> tuple[EnrolledTable, Catalog]:
    """limited: how many keys count for the caller's limit. counts: what the audit log tells.

    Raises a 429, NotFoundError, or ForbiddenError for a caller who may ask about other tables alone.
    """
    limits: KeyLimits = request.app.state.key_limits
    limits.take(caller, limited)

    def asked() -> tuple[EnrolledTable, Catalog]:
        with get_database(request).write() as session:
            return service.asked(session, caller, table_id, **counts)

    return await run_in_threadpool(asked)
