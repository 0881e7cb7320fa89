"""Where requests wait for catalogs: in threads of their own, so many at a time, no longer than their callers.

What else the service does (to live, to be ready, to answer about jobs) shares other threads. A catalog that
hangs takes a part of these at most, and the rest goes on with other catalogs.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from service.catalogs.iceberg import budget_seconds
from service.catalogs.service import find_catalog
from service.db.database import get_database
from service.errors import IcestreamError, UnreachableError
from service.records.tables import EnrolledTable
from service.settings import Settings
from trust.bounds import Budget

_AT_ONCE = 32
_OF_A_CATALOG = 8
_WAIT_SECONDS = 5.0
"""For a thread."""
_LOOK_SECONDS = 0.25
"""Whether the caller is still there."""
_LATE_SECONDS = 1.0
"""For a thread to notice that its budget is over, and to say of what."""
P = ParamSpec("P")
T = TypeVar("T")


class CatalogThreads:
    """The threads, and who may have one; of one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._threads = ThreadPoolExecutor(_AT_ONCE, "catalog")
        self._taken: dict[str, int] = defaultdict(int)
        self._budgets: set[Budget] = set()
        self._given_back = asyncio.Event()
        """Another one each time: who waits when it is set looks again."""

    async def run(self, request: Request, catalog: str, act: Callable[[], T]) -> T:
        """Do something slow, within a budget that ends with the caller. Raises what it raises, and
        IcestreamError if none becomes free.

        catalog: its id; requests that name none, or one that is not there, share theirs.
        """
        await self._take(catalog)
        budget = Budget(budget_seconds(self._settings))
        self._budgets.add(budget)
        loop = asyncio.get_running_loop()
        context = copy_context()

        def work() -> T:
            with budget:
                return act()

        def end(_: Future[T]) -> None:
            # The thread is taken as long as it works, whether anybody waits for it or not.
            loop.call_soon_threadsafe(partial(self._give_back, catalog, budget))

        future = self._threads.submit(context.run, work)
        future.add_done_callback(end)
        result = asyncio.wrap_future(future)
        try:
            while not (await asyncio.wait([result], timeout=_LOOK_SECONDS))[0]:
                if await request.is_disconnected():
                    budget.end()
                if budget.overdue_seconds > _LATE_SECONDS:
                    # The thread is in a call that no budget cuts: it stays taken, and the caller goes on.
                    raise UnreachableError(
                        "catalog-too-slow",
                        f"What was asked of catalog and store did not end within {budget.seconds:g} s.",
                        "Look at what is slow: the catalog, or the store with the metadata of its tables.",
                    )
            return result.result()
        finally:
            budget.end()
            result.cancel()

    def stop(self) -> None:
        """End what goes on."""
        for budget in list(self._budgets):
            budget.end()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _take(self, catalog: str) -> None:
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                while not self._is_free(catalog):
                    await self._given_back.wait()
        except TimeoutError:
            raise IcestreamError(
                "catalog-busy",
                f"{self._taken[catalog]} of at most {_OF_A_CATALOG} wait for this catalog, and "
                f"{sum(self._taken.values())} of at most {_AT_ONCE} for all catalogs.",
                "Send the request again in a while. If it goes on, look at why the catalog answers slowly.",
            ) from None
        self._taken[catalog] += 1

    def _is_free(self, catalog: str) -> bool:
        return self._taken[catalog] < _OF_A_CATALOG and sum(self._taken.values()) < _AT_ONCE

    def _give_back(self, catalog: str, budget: Budget) -> None:
        self._budgets.discard(budget)
        self._taken[catalog] -= 1
        if not self._taken[catalog]:
            del self._taken[catalog]
        # No task: this may be the last that the loop does.
        self._given_back.set()
        self._given_back = asyncio.Event()


def waits_for_catalog(
    named: Callable[[dict[str, Any]], str], *, is_table: bool = False
) -> Callable[[Callable[..., T]], Callable[..., Coroutine[Any, Any, T]]]:
    """Lets an endpoint, or a dependency of one, run where requests wait for catalogs. It takes the `request`.

    named: the name or id of its catalog, or the id of a table if `is_table`, among its arguments.
    """

    def decorate(endpoint: Callable[..., T]) -> Callable[..., Coroutine[Any, Any, T]]:
        @wraps(endpoint)
        async def run(request: Request, **given: Any) -> T:
            threads: CatalogThreads = request.app.state.catalog_threads
            catalog = await run_in_threadpool(_catalog_id, request, named(given), is_table)
            return await threads.run(request, catalog, partial(endpoint, request=request, **given))

        return run

    return decorate


def _catalog_id(request: Request, named: str, is_table: bool) -> str:
    with get_database(request).read() as session:
        if is_table:
            table = session.get(EnrolledTable, named)
            return "" if table is None else table.catalog_id
        found = find_catalog(session, named)
        return "" if found is None else found.id
