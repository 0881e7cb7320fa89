"""How many questions a lookup server works on at once, and how much memory these hold together.

One more is refused at once: another server may take it, and in a queue a question would grow older than
whoever asked it waits.
"""

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from worker.process.memory import MemoryBudget, ServerBusyError

AT_ONCE = 32
"""Fewer than Starlette has threads, so that each of them is worked on."""
MEMORY_BYTES = 640 * 1024**2
"""Of all questions under way, beside what is kept."""
_WAIT_SECONDS = 2.0
"""For memory: the service asks another server some seconds later."""
RETRY_SECONDS = 1
_REFUSAL = ServerBusyError("It works on as many questions as it takes at once.").problem


class Admission:
    """Used from one event loop. A question is under way until its whole answer is sent."""

    def __init__(self, at_once: int = AT_ONCE, memory: MemoryBudget | None = None) -> None:
        self._left = at_once
        self._memory = memory or MemoryBudget(MEMORY_BYTES, _WAIT_SECONDS)

    @property
    def has_room(self) -> bool:
        return self._left > 0

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """The application, for the questions that are let in."""

        async def admit(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] != "/lookups":
                await app(scope, receive, send)
                return
            if not self.has_room:
                # Closed, so that the next question of this client may reach another server.
                headers = {"Retry-After": str(RETRY_SECONDS), "Connection": "close"}
                await JSONResponse(_REFUSAL, 503, headers)(scope, receive, send)
                return
            self._left -= 1
            try:
                with self._memory.shared():
                    await app(scope, receive, send)
            finally:
                self._left += 1

        return admit
