"""The control database: SQLite or PostgreSQL, one transaction a request.

Invariant: a session that may write takes SQLite's write lock at its first statement (BEGIN IMMEDIATE).
A deferred transaction that turns into a writer fails at once when another one wrote in between, and no
busy timeout helps there.
"""

import math
import os
import select
import socket
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar, cast

import anyio
import psycopg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from anyio import to_thread
from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool
from psycopg.abc import PQGen
from sqlalchemy import (
    JSON,
    BigInteger,
    Connection,
    DateTime,
    Dialect,
    Engine,
    Integer,
    QueuePool,
    create_engine,
    event,
    inspect,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnectionError
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.types import TypeDecorator
from sqlmodel import Session, SQLModel

from service.db import private_files
from service.db.control_database import files_of
from service.errors import DatabaseError, StartError, is_trouble_of_all
from trust.bounds import ANSWER_BYTES, LimitExceededError, check_size, check_time, holding

Json = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
# SQLite numbers rows by itself only for INTEGER keys.
BigId = BigInteger().with_variant(Integer(), "sqlite")
P = ParamSpec("P")
T = TypeVar("T")
_URLS = "it must start with sqlite:/// or postgresql+psycopg://"
_MIGRATIONS = Path(__file__).parent / "migrations"
# Less than the 10 s for which a worker waits for an answer, so that it gets one.
_LOCK_SECONDS = 5
_POOL_SECONDS = 5
_KEPT_CONNECTIONS = 10
_MOST_CONNECTIONS = 45
"""To PostgreSQL, which allows 100 in all unless told otherwise: enough for two replicas."""
_REQUESTS_AT_ONCE = 40
"""That may hold a connection each: as many as have a thread. Fewer than there are connections, since those
that hold one wait for a thread again, to write their answer, while other threads wait for connections."""
_ANSWER_SECONDS = 6.0
_TURN_SECONDS = 4
_IDLE_SECONDS = 10
_REMEMBERED_SECONDS = 10.0
_FRESH_SECONDS = 1.0
_RETURNED_AT = "returned_at"
# Without these, a server that the network lost is waited for many minutes.
_TCP = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}


FOR_UPDATE = {"key_share": True}
"""Of a row that is read to be changed: PostgreSQL makes other writers wait, and they see the change then.

Whoever only refers to the row does not wait. On SQLite, writers take turns as a whole.
"""


def utc_now() -> datetime:
    return datetime.now(UTC)


def new_id() -> str:
    return str(uuid.uuid4())


def is_id(text: str) -> bool:
    """Whether `new_id` may have made it."""
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _from_sqlite(written: str | None) -> datetime | None:
    return None if written is None else datetime.fromisoformat(f"{written}+00:00")


class UtcDateTime(TypeDecorator[datetime]):
    """Aware UTC in Python on every database; SQLite keeps no time zone of its own."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        if value is not None and value.tzinfo is None:
            raise ValueError("times are aware UTC")
        return value and value.astimezone(UTC)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        # A page reads thousands of them.
        return _from_sqlite if dialect.name == "sqlite" else super().result_processor(dialect, coltype)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        return value and value.astimezone(UTC)


class Database:
    """The engine and its two kinds of session."""

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            parsed = make_url(url)
            parsed.get_dialect().import_dbapi()
        except (SQLAlchemyError, ValueError, ImportError):
            raise StartError(f"ICESTREAM_DATABASE_URL is none that can be used; {_URLS}") from None
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        if not self.is_sqlite and parsed.get_backend_name() != "postgresql":
            raise StartError(f"ICESTREAM_DATABASE_URL names {parsed.get_backend_name()!r}; {_URLS}")
        if files := files_of(url):
            _keep_private(files)
        options: dict[str, Any] = {"pool_timeout": _POOL_SECONDS}
        if not self.is_sqlite:
            options |= {
                "poolclass": _FairPool,
                "pool_pre_ping": True,
                "pool_size": _KEPT_CONNECTIONS,
                "max_overflow": _MOST_CONNECTIONS - _KEPT_CONNECTIONS,
            }
        elif parsed.database:
            # As many as there are threads: those who wait for their turn to write hold one each.
            options |= {"max_overflow": -1}
        else:
            # In memory, which has no pool to wait for.
            options = {}
        # What a statement would write, such as keys to be erased, is told by no error, and so by no log.
        self.engine: Engine = create_engine(url, hide_parameters=True, **options)
        if self.is_sqlite:
            event.listen(self.engine, "connect", _configure_sqlite)
            lock = _SqliteWriteLock()
            event.listen(self.engine, "begin", lock.begin)
            event.listen(self.engine, "commit", lock.end)
            event.listen(self.engine, "rollback", lock.end)
        else:
            bound_waiting(self.engine, _ANSWER_SECONDS)
            event.listen(self.engine, "connect", _configure_postgresql)
        self.requests = anyio.Semaphore(_REQUESTS_AT_ONCE)
        """For those that work in a session of their own."""
        self.after_commit: dict[str, Callable[[], None]] = {}
        """What is called, by its thread, after each transaction whose `session.info` has the key."""
        self._write_failed_at: float | None = None
        self._write_failure = ""
        self._writing_engine = self.engine.execution_options(icestream_writes=True)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A short read-only session."""
        with Session(self.engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """One transaction: committed at the end, rolled back by any exception."""
        try:
            with Session(self._writing_engine, expire_on_commit=False) as session:
                yield session
                session.commit()
            self._write_failed_at = None
            for said, call in self.after_commit.items():
                if said in session.info:
                    call()
        except SQLAlchemyError as error:
            if is_trouble_of_all(error):
                self._write_failed_at, self._write_failure = time.monotonic(), str(DatabaseError(error))
            raise

    async def in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What a request does in a session of its own while it holds its thread.

        It has a place among the requests, so that those which hold what it waits for find a thread to end.
        """
        async with self.requests:
            return await run_in_threadpool(call, *args, **kwargs)

    def check(self) -> str | None:
        """Why the database cannot be used now, or None: it can be reached and is migrated."""
        with self.engine.connect() as connection:
            connection.execute(text("SELECT 1"))
            revision = MigrationContext.configure(connection).get_current_revision()
        scripts = _scripts(self.url)
        head = scripts.get_current_head()
        if revision == head:
            return None
        return (
            _newer(scripts, revision)
            or f"The database is at migration {revision}, this needs {head}: run `icestream migrate`."
        )

    def check_usable(self) -> str | None:
        """The same, and whether the last write succeeded: what is locked or full can still be read.

        Raises SQLAlchemyError if the database does not answer.
        """
        failed_at = self._write_failed_at
        if failed_at is not None and time.monotonic() - failed_at < _REMEMBERED_SECONDS:
            return f"The database could not be written to a moment ago: {self._write_failure}"
        return self.check()

    def check_start(self) -> None:
        """Raise StartError if the service can't start with this database now."""
        try:
            problem = self.check()
        except SQLAlchemyError as error:
            problem = f"The control database cannot be used: {DatabaseError(error)}"
        if problem is not None:
            raise StartError(problem)

    def dispose(self) -> None:
        """Close all connections; those that threads still hold, or yet ask for, once they give them back."""
        event.listen(self.engine, "checkin", lambda _connection, record: record.close())
        self.engine.dispose()


def _keep_private(files: Sequence[str]) -> None:
    """SQLite gives the files beside a database the mode that it has.

    Raises StartError where none can be.
    """
    database, *beside = map(Path, files)
    try:
        database.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        private_files.make_file(database)
    except OSError as error:
        raise StartError(
            f"The control database {database} can't be written to ({error.strerror}): ICESTREAM_DATA_DIR or "
            "ICESTREAM_DATABASE_URL names another place."
        ) from None
    for path in beside:
        private_files.tighten(path)


_INSERTS: dict[str, Callable[[Any], Any]] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def insert_into(session: Session, model: type[SQLModel]) -> Any:
    """A statement to which either database adds what happens to a row that is there already."""
    return _INSERTS[session.get_bind().dialect.name](model)


def upsert(model: type[SQLModel], changed: Callable[[Any], dict[str, Any]]) -> Callable[[Session, Any], None]:
    """What inserts one row or several, or changes those that are there: of the new ones, `changed` says how.

    Made once: putting a statement together takes longer than it takes to run.
    """
    keys, statements = inspect(model).primary_key, {}
    for dialect, insert in _INSERTS.items():
        row = insert(model)
        statements[dialect] = row.on_conflict_do_update(index_elements=keys, set_=changed(row.excluded))

    def execute(session: Session, rows: Any) -> None:
        connection = session.connection()
        connection.execute(statements[connection.dialect.name], rows)

    return execute


def insert_unless_there(model: type[SQLModel]) -> Callable[[Session, dict[str, Any]], bool]:
    """What inserts a row unless it, or one that excludes it, is there already; whether it did. Made once."""
    keys = inspect(model).primary_key
    statements = {
        dialect: insert(model).on_conflict_do_nothing().returning(*keys)
        for dialect, insert in _INSERTS.items()
    }

    def execute(session: Session, row: dict[str, Any]) -> bool:
        connection = session.connection()
        return connection.execute(statements[connection.dialect.name], row).first() is not None

    return execute


class _AnsweredConnection(psycopg.Connection[Any]):
    """Gives up a server that takes what it is sent and does not answer, which no option of TCP notices."""

    answer_seconds: float | None = None
    """None: waits for ever."""
    is_bounded = False
    """Whether its answers are those of a catalog, which are held to trust.bounds."""

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        seconds = timeout or self.answer_seconds
        try:
            if self.is_bounded:
                return self._wait_within_bounds(gen, interval, seconds)
            return super().wait(gen, interval, seconds)
        except psycopg.errors._WaitTimeout:
            self.close()
            raise psycopg.OperationalError(f"the server did not answer within {seconds:.0f} s") from None

    def _wait_within_bounds(self, gen: PQGen[T], interval: float, seconds: float | None) -> T:
        with socket.socket(fileno=os.dup(self.pgconn.socket)) as connection, holding(connection):
            before = _received_bytes(connection)

            def counted() -> PQGen[T]:
                """libpq keeps what it receives, however much that is."""
                wanted = next(gen)
                while True:
                    try:
                        wanted = gen.send((yield wanted))
                    except StopIteration as end:
                        return cast("T", end.value)
                    received = _received_bytes(connection) - before
                    check_size(received, ANSWER_BYTES, "An answer of the catalog's database")

            try:
                return super().wait(counted(), interval, seconds)
            except LimitExceededError:
                self.close()
                raise
            except psycopg.OperationalError:
                check_time()  # rather than that its connection was cut
                raise


_BYTES_RECEIVED = slice(128, 136)
"""In Linux's struct tcp_info."""


def _received_bytes(connection: socket.socket) -> int:
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or not hasattr(socket, "TCP_INFO"):
        return 0
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED.stop)
    return int.from_bytes(told[_BYTES_RECEIVED], sys.byteorder)


def bound_waiting(engine: Engine, answer_seconds: float, *, is_bounded: bool = False) -> None:
    """Let no connection and no statement wait for PostgreSQL for longer than this, whatever its server or the
    network does.

    is_bounded: the database is a catalog's, whose answers are held to trust.bounds.
    """

    def connect(_dialect: Dialect, _record: Any, arguments: list[str], options: dict[str, Any]) -> Any:
        bounds = {**_TCP, "connect_timeout": math.ceil(answer_seconds)}
        connection = _AnsweredConnection.connect(*arguments, **{**bounds, **options})
        connection.answer_seconds, connection.is_bounded = answer_seconds, is_bounded
        return connection

    if engine.dialect.name == "postgresql" and engine.dialect.driver == "psycopg":
        event.listen(engine, "do_connect", connect)


def _configure_sqlite(connection: Any, _record: Any) -> None:
    # The driver must not begin transactions by itself: see the module's invariant.
    connection.isolation_level = None
    busy_timeout = f"busy_timeout={_LOCK_SECONDS * 1000}"
    for pragma in ("journal_mode=WAL", busy_timeout, "foreign_keys=ON", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {pragma}")


def _configure_postgresql(connection: Any, _record: Any) -> None:
    """Neither a lock nor a replica that stands still in a transaction may hold up the others for long.

    Further processes for one statement take longer to begin than any statement of ours takes without them.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = '{_LOCK_SECONDS}s'")
        cursor.execute(f"SET idle_in_transaction_session_timeout = '{_IDLE_SECONDS}s'")
        cursor.execute("SET max_parallel_workers_per_gather = 0")
    connection.commit()


class _FairSemaphore:
    """Lets some threads go on at a time, in the order in which they came.

    A lock of Python's wakes any of those who wait, and whoever gives it back may get it again before them.
    """

    def __init__(self, at_once: int) -> None:
        self._lock = threading.Lock()
        self._free = at_once
        self._waiting: deque[threading.Event] = deque()

    def acquire(self, seconds: float) -> bool:
        """Wait for so long at most; whoever gets it releases it."""
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            turn = threading.Event()
            self._waiting.append(turn)
        if turn.wait(seconds):
            return True
        with self._lock:
            if turn.is_set():
                return True
            self._waiting.remove(turn)
            return False

    def release(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1


class _SqliteWriteLock:
    """Lets the writers of this process take turns.

    SQLite's own wait looks now and then whether the lock is free: of many threads, some never get it in time.
    """

    def __init__(self) -> None:
        self._semaphore = _FairSemaphore(1)

    def begin(self, connection: Connection) -> None:
        if not connection.get_execution_options().get("icestream_writes", False):
            connection.exec_driver_sql("BEGIN")
            return
        # Who waited in vain still gets what SQLite says about it.
        is_held = self._semaphore.acquire(_TURN_SECONDS)
        try:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        except BaseException:
            if is_held:
                self._semaphore.release()
            raise
        connection.info["holds_write_lock"] = is_held

    def end(self, connection: Connection) -> None:
        if connection.info.pop("holds_write_lock", False):
            self._semaphore.release()


class _FairPool(QueuePool):
    """Gives its connections to threads in the order in which they came.

    From SQLAlchemy's own, a thread that returns one gets it again before those who wait.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._semaphore = _FairSemaphore(self.size() + self._max_overflow)

    def _do_get(self) -> ConnectionPoolEntry:
        if not self._semaphore.acquire(self.timeout()):
            raise NoConnectionError(f"none of the connections was free for {self.timeout():g} s")
        try:
            record: Any = super()._do_get()
        except BaseException:
            self._semaphore.release()
            raise
        # Then it is not asked whether it still answers, which takes as long as a statement.
        record.fresh = record.fresh or _has_just_answered(record)
        return cast("ConnectionPoolEntry", record)

    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        record.info[_RETURNED_AT] = time.monotonic()
        try:
            super()._do_return_conn(record)
        finally:
            self._semaphore.release()


def _has_just_answered(record: ConnectionPoolEntry) -> bool:
    """Whether a connection was in use a moment ago, and its server has said nothing since."""
    connection = record.dbapi_connection
    returned_at = record.info.get(_RETURNED_AT, -math.inf)
    if not isinstance(connection, psycopg.Connection) or connection.closed:
        return False
    if time.monotonic() - returned_at > _FRESH_SECONDS:
        return False
    said = select.poll()
    said.register(connection.fileno(), select.POLLIN)
    return not said.poll(0)


def _alembic_config(url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["url"] = url
    return config


def _scripts(url: str) -> ScriptDirectory:
    return ScriptDirectory.from_config(_alembic_config(url))


def migrate(url: str, down_to: str | None = None) -> None:
    """Bring the database at `url` to this version's schema; safe to run from several replicas at once.

    down_to: an older revision to go back to instead, which drops what that one does not have.
    Raises StartError for one that is not older, and for a database of a newer version.
    """
    database = Database(url)
    try:
        with database._writing_engine.connect() as connection:
            if not database.is_sqlite:
                _wait_for_ever(connection)
                # Replicas that start together migrate one after the other.
                connection.execute(text("SET lock_timeout = 0"))
                connection.execute(text("SELECT pg_advisory_lock(727074)"))
                connection.commit()
            config = _alembic_config(url)
            config.attributes["connection"] = connection
            current = MigrationContext.configure(connection).get_current_revision()
            connection.commit()  # migrations begin a transaction of their own
            if problem := _newer(ScriptDirectory.from_config(config), current):
                raise StartError(problem)
            if down_to is None:
                command.upgrade(config, "head")
            else:
                _downgrade(config, current or "base", down_to)
            if not database.is_sqlite:
                connection.execute(text("SELECT pg_advisory_unlock(727074)"))
            connection.commit()
    finally:
        database.dispose()


def _wait_for_ever(connection: Connection) -> None:
    raw = connection.connection.driver_connection
    assert isinstance(raw, _AnsweredConnection)
    raw.answer_seconds = None


def _newer(scripts: ScriptDirectory, revision: str | None) -> str | None:
    """What to do about a database that a newer version of the service has migrated; None if none has."""
    known = [script.revision for script in scripts.walk_revisions()]
    if revision is None or revision in known:
        return None
    return (
        f"The database is at migration {revision}, of a newer version than this one, which knows {known[0]}"
        f" at last: start the newer one, or run its `icestream migrate --down-to {known[0]}` first."
    )


def _downgrade(config: Config, current: str, revision: str) -> None:
    scripts = ScriptDirectory.from_config(config)
    behind = [script.revision for script in scripts.iterate_revisions(current, "base")]
    if revision not in behind[1:]:
        older = ", ".join(reversed(behind[1:])) or "none"
        raise StartError(f"The database is at migration {current}; it can go back to these: {older}.")
    command.downgrade(config, revision)


def get_database(request: Request) -> Database:
    database: Database = request.app.state.database
    return database


@asynccontextmanager
async def _ended_in_thread(sessions: AbstractContextManager[Session]) -> AsyncIterator[Session]:
    """As FastAPI's `contextmanager_in_threadpool`, which begins in a thread as well: a new session has not
    asked the database for anything."""
    # Of its own: those that wait for a thread may wait for what is held here.
    limiter = anyio.CapacityLimiter(1)
    session = sessions.__enter__()
    try:
        yield session
    except BaseException as error:
        with anyio.CancelScope(shield=True):
            ended = error.__class__, error, error.__traceback__
            is_dealt_with = await to_thread.run_sync(sessions.__exit__, *ended, limiter=limiter)
        if not is_dealt_with:
            raise
    else:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(sessions.__exit__, None, None, None, limiter=limiter)


async def _read_session(request: Request) -> AsyncIterator[Session]:
    database = get_database(request)
    async with database.requests, _ended_in_thread(database.read()) as session:
        yield session


async def write_session(request: Request) -> AsyncIterator[Session]:
    database = get_database(request)
    async with database.requests, _ended_in_thread(database.write()) as session:
        # The answer of an idempotent POST is stored in the same transaction (service.http.routing).
        request.state.session = session
        yield session


# Function scope: the transaction ends before the answer is sent, so an answer never runs ahead of its commit.
ReadSession = Annotated[Session, Depends(_read_session, scope="function")]
WriteSession = Annotated[Session, Depends(write_session, scope="function")]


async def _current_database(request: Request) -> Database:
    # Not async, each request would wait for a thread.
    return get_database(request)


CurrentDatabase = Annotated[Database, Depends(_current_database)]
