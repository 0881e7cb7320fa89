"""Claims that wait for a job: one look at the queue serves all of a process, in their order.

However many workers are idle, the database is asked as often as for one.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from service.db.database import Database, utc_now
from service.db.together import MOST_TOGETHER, Together
from service.jobs import claims, fair_share
from service.jobs.claims import Ask
from service.jobs.contract import Assignment
from service.jobs.queue import JOB_QUEUED
from service.settings import Settings

_LOOK_SECONDS = 0.1
"""For another process may have queued a job, or its time may have come."""
_PATIENCE_ALONE = 5
"""Times as long where no other process queues any. What this one queues is looked at at once."""


@dataclass(frozen=True, eq=False)
class _Waiting:
    ask: Ask
    is_gone: Callable[[], Awaitable[bool]]
    until: float
    """By the clock of the event loop."""
    answer: asyncio.Future[Assignment | None]
    """Cancelled once nobody waits for it."""
    context: Context
    """Of its request, which names it in the log."""

    def tell(self, assignment: Assignment | None) -> None:
        if not self.answer.done():
            self.answer.set_result(assignment)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class Claims:
    """The claims of one process; `wait` is for its event loop alone."""

    def __init__(self, database: Database, settings: Settings, stopping: threading.Event) -> None:
        self._database, self._stopping = database, stopping
        self._claims = Together[Ask, Assignment | None](
            database,
            lambda session, asks: claims.claim_together(session, settings, asks, utc_now()),
            lambda session, ask: claims.claim(session, settings, ask, utc_now()),
        )
        self._look_seconds = _LOOK_SECONDS * (_PATIENCE_ALONE if database.is_sqlite else 1)
        self._loop: asyncio.AbstractEventLoop | None = None
        """While anybody waits."""
        self._is_queued = asyncio.Event()
        database.after_commit[JOB_QUEUED] = self._wake
        self._waiting: deque[_Waiting] = deque()
        self._looks: asyncio.Task[None] | None = None

    def claim(self, ask: Ask) -> Assignment | None:
        """A job that waits by now; see `service.jobs.claims.claim`."""
        return self._claims.call(ask, ask.worker_id)

    async def claim_in_thread(self, ask: Ask) -> Assignment | None:
        return await self._database.in_thread(self.claim, ask)

    async def wait(
        self, ask: Ask, seconds: float, is_gone: Callable[[], Awaitable[bool]]
    ) -> Assignment | None:
        """A job that comes up within so many seconds, and while this process is not `stopping`.

        It holds neither a connection nor a thread meanwhile. A worker that `is_gone` gets none.
        """
        loop = asyncio.get_running_loop()
        mine = _Waiting(ask, is_gone, loop.time() + seconds, loop.create_future(), copy_context())
        self._waiting.append(mine)
        if self._looks is None or self._looks.done():
            self._looks = asyncio.create_task(self._look(), context=Context())  # it is of no request
        try:
            await asyncio.wait([mine.answer], timeout=seconds)
            if mine in self._waiting:
                return None
            return await mine.answer  # perhaps a job that it is given just now
        finally:
            mine.answer.cancel()
            if mine in self._waiting:
                self._waiting.remove(mine)

    async def _look(self) -> None:
        """Give out jobs as they come up, as long as anybody waits."""
        self._loop = asyncio.get_running_loop()
        seconds = _LOOK_SECONDS  # one may have been queued since the claim that found none
        while self._waiting and not self._stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_queued.wait(), seconds)
            self._is_queued.clear()
            seconds = self._look_seconds
            try:
                is_found = await run_in_threadpool(self._has_work)
                while is_found and self._waiting:
                    first = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_TOGETHER))]
                    is_found = await self._serve(first)
            except Exception as error:  # the database's, which all were told by a look of their own
                for each in self._waiting:
                    each.fail(error)
                self._waiting.clear()
        for each in self._waiting:
            each.tell(None)
        self._waiting.clear()
        self._loop = None

    def _wake(self) -> None:
        """Let whoever waits be served at once; by any thread."""
        if (loop := self._loop) is not None:
            with suppress(RuntimeError):  # the loop has just ended
                loop.call_soon_threadsafe(self._is_queued.set)

    async def _serve(self, first: Sequence[_Waiting]) -> bool:
        """Answer the claims that wait longest; False if there was nothing for one of them."""
        here: list[_Waiting] = []
        for each in first:
            try:
                if await each.is_gone():
                    each.tell(None)
                else:
                    here.append(each)
            except Exception as error:
                each.fail(error)
        asks = [(each.ask, each.ask.worker_id) for each in here]
        try:
            gets = await self._database.in_thread(self._claims.call_all, asks)
        except Exception as error:
            for each in here:
                each.fail(error)
            return True
        return all(await asyncio.gather(*map(self._tell, here, gets)))

    async def _tell(self, one: _Waiting, get: Callable[[], Assignment | None]) -> bool:
        try:
            assignment = await self._database.in_thread(one.context.run, get)
        except Exception as error:
            one.fail(error)
            return True
        is_waited_for = not one.answer.done() and one.until > asyncio.get_running_loop().time()
        if assignment is None and is_waited_for:
            # Another replica was faster, or its worker got a job by another call: let others go first.
            self._waiting.append(one)
        else:
            one.tell(assignment)
        return assignment is not None

    def _has_work(self) -> bool:
        with self._database.read() as session:
            return fair_share.has_claimable(session, utc_now())
