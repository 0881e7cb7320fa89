"""The service with faults at named points: `python -m tests.faults.service_build`. Only tests start it.

It is the real application behind a wrapper that passes each request on. Its settings accept ICESTREAM_FAULTS,
which the real ones know nothing of. A file `clock` in the faults' directory moves its clock by some seconds,
and what its scheduler has watched is noted there.
"""

import re
from datetime import timedelta
from pathlib import Path

import service.db.database
from tests.faults.injection import Fault, Faults, InjectedError, InjectedTimeoutError
from tests.faults.recovery import WATCHED

_POINTS = {
    "register": r"/workers",
    "claim": r"/workers/[^/]+/claim",
    "heartbeat": r"/jobs/[^/]+/attempts/\d+/heartbeat",
    "address-ranges": r"/jobs/[^/]+/attempts/\d+/address-ranges",
    "finish": r"/jobs/[^/]+/attempts/\d+/finish",
    "request-job": r"/tables/[^/]+/jobs",
}
POINTS = tuple(_POINTS)


def main() -> None:
    # Before the rest of the service is imported, since it takes this function over by name.
    real_now = service.db.database.utc_now
    service.db.database.utc_now = lambda: real_now() + _clock_offset(settings.faults_dir)

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from service.app import create_app, prepare
    from service.command.serving import run
    from service.scheduling.background import Background
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

    settings = TestSettings()
    tick = Background.tick

    def noted_tick(background: Background) -> None:
        tick(background)
        observer = background._attempts
        if background._renew_at is not None:  # it schedules
            with (settings.faults_dir / WATCHED).open("a") as watched:
                for (job_id, attempt), (_, since) in observer._since.items():
                    watched.write(f"{job_id} {attempt} {observer._watched_seconds - since}\n")

    setattr(Background, "tick", noted_tick)  # noqa: B010 - its `self` has another name
    prepare(settings)
    app = create_app(settings)
    run(Injecting(app, Faults(settings.faults, settings.faults_dir)), app.state.stopping, settings)


def _point_of(scope: "object") -> str | None:
    assert isinstance(scope, dict)
    if scope["method"] != "POST":
        return None
    path = scope["path"].removeprefix("/api/v1")
    return next((point for point, pattern in _POINTS.items() if re.fullmatch(pattern, path)), None)


def _clock_offset(directory: Path) -> timedelta:
    try:
        return timedelta(seconds=float((directory / "clock").read_text()))
    except (OSError, ValueError):
        return timedelta()


if __name__ == "__main__":
    main()
