"""HTTP calls about keys of tables."""

import asyncio
import time
from functools import partial

from fastapi import APIRouter, Depends, Request, Response

from service.catalogs.threads import CatalogThreads
from service.errors import IcestreamError
from service.http.routing import ApiRoute
from service.lookups import history, service
from service.lookups.admission import Asking, NamedTable, admitted
from service.lookups.concurrency import ConcurrencyLimits
from service.lookups.metadata_locations import MetadataLocation, MetadataLocations
from service.lookups.metrics import LookupMetrics
from service.lookups.models import KeyHistory, KeyHistoryRequest, LookupAnswer
from service.lookups.questions import ANSWER, REQUEST_BODY, Asked, Question, check_names
from service.lookups.servers import ANSWER_SECONDS, Answered, LookupServers
from service.records.catalogs import Catalog
from service.records.tables import EnrolledTable
from service.settings import CurrentSettings, Settings

router = APIRouter(tags=["lookups"], route_class=ApiRoute)


class _PassedOn(Response):
    """What a lookup server has answered, which is under way until it is sent."""

    def __init__(self, answered: Answered) -> None:
        super().__init__(bytes(answered.content), media_type=answered.answer_type)
        self._answered = answered


@router.post(
    "/tables/{table_id}/lookups", response_model=LookupAnswer, responses=ANSWER, openapi_extra=REQUEST_BODY
)
async def look_up_keys(
    request: Request, settings: CurrentSettings, caller: Asking, _table: NamedTable, asked: Asked
) -> Response:
    """Tell where rows with given keys are, whether they are live, and what they hold.

    An answer is about all keys and all of a snapshot, or there is none. Keys come in JSON or as an Arrow IPC
    stream, whose columns are the key's and whose options stand in the query; answers go in either, too.
    """
    servers: LookupServers = request.app.state.lookup_servers
    figures: LookupMetrics = request.app.state.lookup_metrics
    shares: ConcurrencyLimits = request.app.state.lookup_concurrency
    if not servers.are_set_up:
        raise IcestreamError("lookups-not-set-up", "The service knows no lookup server.")
    count = asked.key_count
    with figures.counted(count):
        async with admitted(request, caller, count, keys=count) as (table, catalog), shares.of(caller):
            return await _answer(request, settings, catalog, table, asked)


@router.post("/tables/{table_id}/lookups/history", dependencies=[Depends(check_names)])
async def tell_key_history(
    request: Request,
    settings: CurrentSettings,
    caller: Asking,
    _table: NamedTable,
    body: KeyHistoryRequest,
) -> KeyHistory:
    """Tell what rows a key had in each of the newest snapshots, and what each snapshot did to them.

    What is told of a snapshot is about all of it. A snapshot of which nothing can be told says why; where
    that is so of all of them, the call is refused. Old snapshots may have data files that no index covers
    any more: these are scanned within the bounds of a lookup. After 30 seconds, no further snapshot is
    looked at.
    """
    figures: LookupMetrics = request.app.state.lookup_metrics
    with figures.counted(body.snapshots):
        asked = await history.begin(request, caller, body.snapshots)
        return await history.tell(request, settings, asked, body)


async def _answer(
    request: Request, settings: Settings, catalog: Catalog, table: EnrolledTable, asked: Question
) -> Response:
    servers: LookupServers = request.app.state.lookup_servers
    locations: MetadataLocations = request.app.state.metadata_locations
    began = time.monotonic()
    until = began + ANSWER_SECONDS

    async def location_of(max_age_seconds: float) -> MetadataLocation:
        name = f"{table.id} {catalog.version}"
        look = partial(_metadata_location, request, catalog, table)
        try:
            async with asyncio.timeout(until - time.monotonic()):
                return await locations.of(name, max_age_seconds, look, request.is_disconnected)
        except TimeoutError:
            told = f"The catalog did not name the table's head within {ANSWER_SECONDS:.0f} s."
            raise IcestreamError("out-of-time", told) from None

    async def ask(location: MetadataLocation) -> Response:
        question = service.question(settings, catalog, table, location, asked.request)
        return _PassedOn(await servers.ask_for(asked.answer_type, question, asked.stream, until))

    location = await location_of(asked.request.max_staleness_seconds)
    try:
        return await ask(location)
    except IcestreamError as error:
        if not service.may_know_too_little(error):
            raise
        # What is missing may have expired, or have been made, since the catalog was asked.
        newest = await location_of(time.monotonic() - began)
        if newest.metadata_location == location.metadata_location:
            raise
    return await ask(newest)


async def _metadata_location(request: Request, catalog: Catalog, table: EnrolledTable) -> str:
    threads: CatalogThreads = request.app.state.catalog_threads
    look = partial(service.metadata_location, request.app.state.catalogs, catalog, table)
    return await threads.run(request, catalog.id, look)
