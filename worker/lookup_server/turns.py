"""How many questions a lookup server works on at once, and how much memory these hold together.

Whoever finds all turns taken is refused at once: another server may have one, and in a queue a question would
grow older than whoever asked it waits.
"""

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from worker.process.room import NoRoomError, Room

AT_ONCE = 32
"""Fewer than Starlette has threads, so that each of them is worked on."""
ROOM_BYTES = 640 * 1024**2
"""Of all questions under way, beside what is kept."""
_WAIT_SECONDS = 2.0
"""For room: the service asks another server some seconds later."""
RETRY_SECONDS = 1
_REFUSAL = NoRoomError("It works on as many questions as it takes at once.").problem


class Turns:
    """Used from one event loop. A turn lasts until the whole answer is sent."""

    def __init__(self, at_once: int = AT_ONCE, room: Room | None = None) -> None:
        self._left = at_once
        self._room = room or Room(ROOM_BYTES, _WAIT_SECONDS)

    @property
    def are_left(self) -> bool:
        return self._left > 0

    def before(self, app: ASGIApp) -> ASGIApp:
        """The application, for whoever has a turn."""

        async def take_turn(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] != "/lookups":
                await app(scope, receive, send)
                return
            if not self.are_left:
                # Closed, so that the next question of this client may reach another server.
                headers = {"Retry-After": str(RETRY_SECONDS), "Connection": "close"}
                await JSONResponse(_REFUSAL, 503, headers)(scope, receive, send)
                return
            self._left -= 1
            try:
                with self._room.shared():
                    await app(scope, receive, send)
            finally:
                self._left += 1

        return take_turn
