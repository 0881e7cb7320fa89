"""The service with faults at named points: tests.faults.forked runs it. Only tests start it.

It is the real application behind a wrapper that passes each request on. Its settings accept ICESTREAM_FAULTS,
which the real ones know nothing of. Files in the faults' directory move its time: `clock` has seconds by
which its clock is off, and while there is a file `hurry`, each pass of its scheduler finds that some of a
lease has passed, until as many attempts as the file says were given up for that. With a file `overdue`, that
goes for the time that policies give attempts, until one was ended. What the scheduler has watched is noted.
"""

import importlib
import re
import time
from collections.abc import Collection
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import service.db.database
from tests.faults.injection import Fault, Faults, InjectedError, InjectedTimeoutError
from tests.faults.recovery import WATCHED

HURRY, OVERDUE, PASSED = "hurry", "overdue", "passed"
_STEP = 0.2
"""Of a lease, that passes at once: less than the most that the scheduler believes in."""
_POINTS = {
    "register": r"/workers",
    "claim": r"/workers/[^/]+/claim",
    "heartbeat": r"/jobs/[^/]+/attempts/\d+/heartbeat",
    "address-ranges": r"/jobs/[^/]+/attempts/\d+/address-ranges",
    "finish": r"/jobs/[^/]+/attempts/\d+/finish",
    "request-job": r"/tables/[^/]+/jobs",
}
POINTS = tuple(_POINTS)


class Time:
    """The system's, moved as the files say."""

    def __init__(self) -> None:
        self.directory = Path()
        self._passed_seconds = self._overdue_seconds = 0.0
        self._real_now = service.db.database.utc_now

    def begin(self, directory: Path) -> None:
        """directory: of the faults. Goes on where an earlier process of the service was."""
        self.directory = directory
        with suppress(OSError, ValueError):
            self._passed_seconds = float((directory / PASSED).read_text())

    def now(self) -> datetime:
        off = 0.0
        with suppress(OSError, ValueError):
            off = float((self.directory / "clock").read_text())
        return self._real_now() + timedelta(seconds=self._passed_seconds + off)

    def monotonic(self) -> float:
        return time.monotonic() + self._passed_seconds

    def of_attempts(self) -> float:
        return time.monotonic() + self._overdue_seconds

    def hurry(self, lease_seconds: float) -> None:
        if (self.directory / OVERDUE).exists():
            self._overdue_seconds += _STEP * lease_seconds
        if (self.directory / HURRY).exists():
            self._passed_seconds += _STEP * lease_seconds
            (self.directory / PASSED).write_text(str(self._passed_seconds))

    def given_up(self, attempts: int) -> None:
        with suppress(OSError, ValueError):
            hurry = self.directory / HURRY
            missing = int(hurry.read_text()) - attempts
            hurry.write_text(str(missing))
            if missing <= 0:
                hurry.unlink()


_time = Time()


def load() -> None:
    """Import the service. Its clock comes first, since others take that over by name."""
    service.db.database.utc_now = _time.now
    for module in ("service.app", "service.command.serving"):
        importlib.import_module(module)


def main() -> None:
    load()

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    import service.app as app_module
    from service.app import create_app, prepare
    from service.catalogs.iceberg import IcebergCatalogs
    from service.command.serving import run
    from service.db.database import Database
    from service.jobs.attempts import RunningAttempt
    from service.jobs.leases import LeaseObserver
    from service.scheduling.background import Background, Clock
    from service.settings import Settings

    class TestSettings(Settings):
        faults: tuple[Fault, ...] = ()
        faults_dir: Path = Path()

    class Injecting:
        """Fires what is due before a call reaches the application, or once it is done but not answered."""

        def __init__(self, app: ASGIApp, faults: Faults) -> None:
            self.app, self.faults = app, faults

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            point = _point_of(scope) if scope["type"] == "http" else None
            if point is None:
                await self.app(scope, receive, send)
                return

            async def send_or_fail(message: Message) -> None:
                # The transaction is committed before the answer starts; 204 is a claim that got nothing.
                if message["type"] == "http.response.start" and message["status"] in (200, 201, 202):
                    self.faults.pass_through(point, "after")
                await send(message)

            try:
                self.faults.pass_through(point, "before")
                await self.app(scope, receive, send_or_fail)
            except InjectedTimeoutError:
                # The server closes the connection, since this is less than was announced.
                headers = [(b"content-length", b"1000")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            except InjectedError:
                await send({"type": "http.response.start", "status": 500, "headers": []})
                await send({"type": "http.response.body", "body": b""})

    class TestBackground(Background):
        def __init__(self, database: Database, settings: Settings, catalogs: IcebergCatalogs) -> None:
            super().__init__(database, settings, catalogs, Clock(_time.now, _time.monotonic))
            self._timeouts = LeaseObserver(settings.lease_seconds, _time.of_attempts)

        def tick(self) -> None:
            _time.hurry(settings.lease_seconds)
            super().tick()
            if self._renew_at is not None:  # it schedules
                with (settings.faults_dir / WATCHED).open("a") as watched:
                    for (job_id, attempt), (_, since) in self._attempts._since.items():
                        watched.write(f"{job_id} {attempt} {self._attempts._watched_seconds - since}\n")

        def _give_up(self, expired: dict[RunningAttempt, int]) -> None:
            super()._give_up(expired)
            _time.given_up(len(expired))

        def _time_out(self, overdue: Collection[RunningAttempt]) -> None:
            super()._time_out(overdue)
            (_time.directory / OVERDUE).unlink(missing_ok=True)

    settings = TestSettings()
    _time.begin(settings.faults_dir)
    prepare(settings)
    setattr(app_module, "Background", TestBackground)  # noqa: B010 - it is a type
    app = create_app(settings)
    run(Injecting(app, Faults(settings.faults, settings.faults_dir)), app.state.stopping, settings)


def _point_of(scope: "object") -> str | None:
    assert isinstance(scope, dict)
    if scope["method"] != "POST":
        return None
    path = scope["path"].removeprefix("/api/v1")
    return next((point for point, pattern in _POINTS.items() if re.fullmatch(pattern, path)), None)
