"""`icestream up`: the service and, as children in sessions of their own, a worker and a lookup server.

All of it on SQLite and local files.

Everything lies in one data directory, and the next start goes on from there:

    icestream.db            control database
    catalog.db, warehouse/  the Iceberg catalog named `embedded`
    index/                  indexes
    cache/, logs/           what the worker may lose, and what it said
    secrets/                what erased keys are hashed with, and what signs receipts

Invariant: one `up` per data directory (a locked file), and no child outlives it (service.command.processes).
"""

import asyncio
import fcntl
import importlib.util
import logging
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO

import typer
import uvicorn
from fastapi import FastAPI
from pydantic import SecretStr
from sqlalchemy.exc import OperationalError
from sqlmodel import col, select

from service.app import create_app, prepare
from service.auth.models import SYSTEM, ApiKeyRequest
from service.auth.service import create_api_key, create_login_link, provision_worker_key, revoke_api_key
from service.catalogs.service import register_embedded_catalog
from service.command.processes import Child, KeptAlive
from service.command.serving import Server, address_of
from service.db import private_files
from service.db.database import Database, utc_now
from service.errors import StartError
from service.jobs.events import events_after, latest_event_id
from service.jobs.models import EventView
from service.records.api_keys import ApiKey, Role
from service.records.tables import EnrolledTable
from service.records.workers import Worker
from service.settings import Settings
from service.webhooks.signing import new_secret
from telemetry.logs import JsonFormatter, LogFormat

logger = logging.getLogger(__name__)

_OLDEST_JAVA = 17
_SHUTDOWN_SECONDS = 2


@dataclass(frozen=True)
class Demo:
    """The demo's part of `icestream demo`; `exits`: end after its report instead of serving on."""

    exits: bool
    arguments: tuple[str, ...] = ()


def run(settings: Settings, *, browser: bool, demo: Demo | None = None) -> int:
    """Serve until Ctrl-C or SIGTERM (or, with a demo that exits, until its end); return the exit code.

    Raises StartError, in one sentence, for whatever stands in the way.
    """
    check_worker_can_run()
    with _only_one(settings.data_dir) as lock, _listening(settings) as listener:
        # `icestream login-link` reads it there.
        lock.write(f"\n{address_of(settings.host, listener.getsockname()[1])}\n")
        lock.flush()
        _make_directories(settings.data_dir)
        _log_in_short_lines(settings.data_dir / "logs" / "service.log" if demo else None, settings.log_format)
        private_files.tighten_data_directory(settings.data_dir)
        settings = with_erasure_secrets(settings)
        prepare(settings)
        return _Up(settings, listener, browser=browser, demo=demo).run()


class _Up:
    """One run: the server in this thread, the children beside it, and the order in which they stop."""

    def __init__(
        self, settings: Settings, listener: socket.socket, *, browser: bool, demo: Demo | None
    ) -> None:
        self._lookup_token = secrets.token_urlsafe(32)
        # Kept here: calls wait in it while the lookup server starts, and nobody else can take its port.
        self._lookup_listener = None if settings.lookup_url else socket.create_server(("127.0.0.1", 0))
        if self._lookup_listener is not None:
            port = self._lookup_listener.getsockname()[1]
            known = {"lookup_url": f"http://127.0.0.1:{port}", "lookup_token": SecretStr(self._lookup_token)}
            settings = settings.model_copy(update=known)
        self._settings, self._listener = settings, listener
        self._browser, self._demo = browser, demo
        self._url = address_of(settings.host, listener.getsockname()[1])
        self._database = Database(settings.database_url)
        self._server = _Server(create_app(settings), self._start_children)
        self._teller = _Teller(self._database)
        self._stop = threading.Event()
        self._exit_code = 0
        self._worker: KeptAlive | None = None
        self._lookup_server: KeptAlive | None = None
        self._writer: Child | None = None

    def run(self) -> int:
        stopper = threading.Thread(target=self._stop_in_order, name="stops-in-order")
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        stopper.start()
        try:
            asyncio.run(self._server.serve(sockets=[self._listener]))
        finally:
            self._stop.set()
            stopper.join()
            self._database.dispose()
            if self._lookup_listener is not None:
                self._lookup_listener.close()
        return self._exit_code if self._server.started else 1

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stop.set()

    def _stop_in_order(self) -> None:
        """The children first, while the service still answers: the worker hands its job back."""
        self._stop.wait()
        if self._server.started:
            typer.echo("Stopping ...")
        # Whoever still waits for an answer, such as an open page, is cut off: nothing to tell about.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        if self._writer is not None:
            self._writer.stop()
        for kept in (self._worker, self._lookup_server):
            if kept is not None:
                kept.stop()
        self._teller.stop()
        self._server.should_exit = True

    def _start_children(self) -> None:
        """Called once the page is up."""
        with self._database.write() as session:
            register_embedded_catalog(session, self._settings)
            worker_key = provision_worker_key(session)
        link = create_login_link(self._database, self._url)
        data_dir = self._settings.data_dir
        place = "" if data_dir == Settings.default_data_dir() else f" --data-dir {shlex.quote(str(data_dir))}"
        login = f"icestream login-link{place}"
        typer.echo(
            f"\n  Icestream is at {self._url}\n  Log in once, within ten minutes, with {link}\n"
            f"  `{login}` prints another link.\n"
        )
        shared = {"ICESTREAM_URL": self._url, "ICESTREAM_DATA_DIR": str(data_dir)}
        worker = Child("worker", ["worker.agent.main"], {**shared, "ICESTREAM_API_KEY": worker_key}, data_dir)
        self._worker = KeptAlive(worker)
        self._worker.start()
        if self._lookup_listener is not None:
            self._lookup_server = KeptAlive(self._lookup_child(self._lookup_listener))
            self._lookup_server.start()
        self._teller.start()
        if self._demo is not None:
            arguments = ["worker.demo.story", "--login", login, *self._demo.arguments]
            environment = {**shared, "ICESTREAM_API_KEY": self._demo_key()}
            self._writer = Child("demo", arguments, environment, data_dir, speaks=True)
            process = self._writer.start()
            awaiting = threading.Thread(target=self._await_demo, args=[process, self._demo], daemon=True)
            awaiting.start()
        if self._browser and _has_desktop():
            threading.Thread(target=webbrowser.open, args=[link], daemon=True).start()

    def _lookup_child(self, listener: socket.socket) -> Child:
        environment = {
            "ICESTREAM_LOOKUP_TOKEN": self._lookup_token,
            "ICESTREAM_LOOKUP_FD": str(listener.fileno()),
        }
        arguments = ["worker.lookup_server.main"]
        return Child("lookup", arguments, environment, self._settings.data_dir, listener=listener)

    def _demo_key(self) -> str:
        with self._database.write() as session:
            for old in session.exec(
                select(ApiKey).where(ApiKey.name == "demo", col(ApiKey.revoked_at).is_(None))
            ):
                revoke_api_key(session, SYSTEM, old.id)
            return create_api_key(session, SYSTEM, ApiKeyRequest(name="demo", role=Role.ADMIN)).key

    def _await_demo(self, process: subprocess.Popen[bytes], demo: Demo) -> None:
        code = process.wait()
        if self._stop.is_set():
            return
        if code:
            typer.echo(f"The demo failed; {self._settings.data_dir / 'logs' / 'demo.log'} says more.")
        self._exit_code = 1 if code else 0
        if code or demo.exits:
            self._stop.set()


class _Teller:
    """Writes the log: what happens to jobs, from the events that the page and the API show too."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="teller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        with self._database.read() as session:
            last = latest_event_id(session)
        since = utc_now()
        while not self._stopping.wait(1):
            # A database that is locked or full for a moment is told about by whoever could not write to it.
            with suppress(OperationalError), self._database.read() as session:
                for worker in session.exec(select(Worker).where(col(Worker.registered_at) > since)):
                    since = max(since, worker.registered_at)
                    logger.info("The worker is ready")
                for event in events_after(session.connection(), last, 100):
                    last = event.id
                    if _is_told(event):
                        table = session.get(EnrolledTable, event.table_id)
                        name = table.name if table else "a table"
                        logger.info("%s, %s: %s", name, event.fields["job_kind"], event.message)


def _is_told(event: EventView) -> bool:
    """The turns of a job's life; not its progress, nor its reasoning, which the page shows."""
    return event.job_id is not None and event.kind not in (
        "job.running",
        "job.progress",
        "job.message",
        "job.log",
    )


class _Server(Server):
    """Uvicorn without its own signal handling: the children stop before the service does."""

    def __init__(self, app: FastAPI, on_started: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                proxy_headers=False,
                timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
                lifespan="on",
            ),
            app.state.stopping,
        )
        self._on_started = on_started

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            await asyncio.to_thread(self._on_started)


def check_worker_can_run() -> None:
    """Raise StartError if Spark cannot be started here."""
    if missing := [
        name for name in ("pyspark", "pypaimon", "pyroaring") if importlib.util.find_spec(name) is None
    ]:
        raise StartError(
            f"The worker needs {', '.join(missing)}: run `make install`, "
            "or install icestream with the extra `worker`."
        )
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if java is None:
        where = f"JAVA_HOME is {home}, where there is none" if home else "there is none in PATH"
        raise StartError(
            f"Spark needs Java {_OLDEST_JAVA} or newer, and {where}: "
            f"install it (Debian's openjdk-{_OLDEST_JAVA}-jre-headless) or set JAVA_HOME."
        )
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    # openjdk version "17.0.15" 2025-04-15; before Java 9 it said "1.8.0_422".
    version = re.search(r'version "(\d+)', answer.stderr)
    if version is None or int(version[1]) < _OLDEST_JAVA:
        found = version[1] if version else "one that does not tell its version"
        raise StartError(
            f"Spark needs Java {_OLDEST_JAVA} or newer, and {java} is {found}: set JAVA_HOME to a newer one."
        )


@contextmanager
def _only_one(data_dir: Path) -> Iterator[IO[str]]:
    """Hold the lock on the data directory; the kernel lets go of it however this process ends."""
    with _can_be_written(data_dir):
        data_dir.mkdir(parents=True, mode=0o700, exist_ok=True)
        lock = private_files.open_file(data_dir / "lock", "a+")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            owner = lock.readline().strip() or "another process"
            raise StartError(
                f"{data_dir} is in use by {owner}: stop that, or name another with --data-dir."
            ) from None
        lock.truncate(0)
        lock.write(f"`icestream` with process id {os.getpid()}")
        lock.flush()
        yield lock


def _make_directories(data_dir: Path) -> None:
    with _can_be_written(data_dir):
        for name in ("index", "cache", "logs", "secrets"):
            (data_dir / name).mkdir(mode=0o700, exist_ok=True)
        (data_dir / "warehouse").mkdir(exist_ok=True)
        private_files.make_file(data_dir / "logs" / "service.log")


def with_erasure_secrets(settings: Settings) -> Settings:
    """With those that the environment does not give: hashes and signatures hold as long as they are kept."""
    makers: dict[str, Callable[[], str]] = {
        "erasure_secret": partial(secrets.token_urlsafe, 32),
        "receipt_secret": new_secret,
    }
    made = {}
    with _can_be_written(settings.data_dir):
        for name, make in makers.items():
            if getattr(settings, name) is None:
                made[name] = SecretStr(private_files.kept_text(settings.data_dir / "secrets" / name, make))
    return settings.model_copy(update=made)


@contextmanager
def _can_be_written(data_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        named = error.filename or data_dir
        raise StartError(
            f"The data directory {data_dir} can't be written to ({named}: {error.strerror})."
        ) from None


@contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    """The socket to serve on, bound before anything else is started."""
    try:
        listener = socket.create_server(
            (settings.host, settings.port), family=socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        )
    except OSError as error:
        raise StartError(
            f"Can't listen on {settings.host} port {settings.port} ({error.strerror or error}): "
            "name another with --port, or --port 0 for any."
        ) from None
    with listener:
        yield listener


def _has_desktop() -> bool:
    """Whether a browser would open a window; without one it would take over the terminal."""
    return sys.platform == "darwin" or any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _log_in_short_lines(file: Path | None, log_format: LogFormat) -> None:
    """To the terminal, or to a file when the terminal is the demo's."""
    handler = logging.FileHandler(file) if file else logging.StreamHandler()
    short = logging.Formatter("%(asctime)s  %(message)s", "%H:%M:%S")
    handler.setFormatter(JsonFormatter() if log_format == "json" else short)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("service").setLevel(logging.INFO)
