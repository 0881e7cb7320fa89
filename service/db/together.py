"""Calls that wait for each other anyway share a transaction.

What a transaction and its statements cost is paid once for all of them. Whoever comes while others are
answered is answered with all who came meanwhile, by the thread of the one that came first.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Generic, NoReturn, TypeVar

import psycopg
from sqlalchemy.exc import DBAPIError
from sqlmodel import Session

from service.db.database import Database
from service.errors import IcestreamError, is_trouble_of_all

Ask = TypeVar("Ask")
Answer = TypeVar("Answer")
_log = logging.getLogger("icestream.together")
MOST_TOGETHER = 16
"""In one transaction, for which all that write to SQLite wait."""
_WAIT_FOR_NO_LOCK = "SET LOCAL lock_timeout = '200ms'"
"""While all wait: who needs one that is not free has its own time for it."""


class LostRaceError(Exception):
    """Another transaction was faster; the next one sees what that has done."""


class _Call(Generic[Ask, Answer]):
    def __init__(self, ask: Ask, key: str) -> None:
        self.ask, self.key = ask, key
        self.turn = threading.Event()
        """Set once it was told how to get its answer, or is to answer all who wait."""
        self.get: Callable[[], Answer] | None = None

    def tell(self, get: Callable[[], Answer]) -> None:
        self.get = get
        self.turn.set()


class Together(Generic[Ask, Answer]):
    """One kind of call of a process.

    share: answers to calls of one transaction by their keys, but for those that can't share it. What raises
    LostRaceError is done anew, once.
    alone: the answer to one of these, or to one whose shared transaction failed, in one of its own and beside
    all others. So what is wrong with a call, or holds it up, harms no other.
    """

    def __init__(
        self,
        database: Database,
        share: Callable[[Session, Sequence[Ask]], Mapping[str, Answer]],
        alone: Callable[[Session, Ask], Answer],
    ) -> None:
        self._database, self._share, self._alone = database, share, alone
        self._lock = threading.Lock()
        """Of the rest."""
        self._calls: deque[_Call[Ask, Answer]] = deque()
        self._is_led = False
        """Whether one of the threads answers calls."""

    def call(self, ask: Ask, key: str) -> Answer:
        """The answer once it is committed. Of calls with one key, no two share a transaction.

        The thread waits: requests call by `Database.in_thread`.
        """
        (get,) = self.call_all([(ask, key)])
        return get()

    def call_all(self, asks: Sequence[tuple[Ask, str]]) -> Sequence[Callable[[], Answer]]:
        """How to get the answers to some calls of one thread, in the order in which they come one after the
        other: those that don't share a transaction are to be answered yet."""
        mine = [_Call[Ask, Answer](ask, key) for ask, key in asks]
        with self._lock:
            self._calls.extend(mine)
            if not self._is_led:
                self._let_first_lead()
        return [self._get_of(call) for call in mine]

    def _get_of(self, call: _Call[Ask, Answer]) -> Callable[[], Answer]:
        call.turn.wait()
        if call.get is None:
            self._lead()
        assert call.get is not None
        return call.get

    def _let_first_lead(self) -> None:
        self._is_led = bool(self._calls)
        if self._calls:
            self._calls[0].turn.set()

    def _lead(self) -> None:
        with self._lock:
            calls = self._next()
        try:
            self._answer(calls)
        except BaseException as error:  # which ends this thread, whose call came first
            calls[0].tell(partial(_fail, error))
        with self._lock:
            self._let_first_lead()
        for call in calls:
            if call.get is None:
                call.tell(partial(self._answer_alone, call.ask))

    def _next(self) -> Sequence[_Call[Ask, Answer]]:
        """Those who came first."""
        taken = dict[str, _Call[Ask, Answer]]()
        while self._calls and len(taken) < MOST_TOGETHER and self._calls[0].key not in taken:
            call = self._calls.popleft()
            taken[call.key] = call
        return list(taken.values())

    def _answer(self, calls: Sequence[_Call[Ask, Answer]]) -> None:
        """Tell what came of calls in one transaction; nothing to those that are to be answered alone."""
        asks = [call.ask for call in calls]
        try:
            try:
                answers = self._answer_together(asks)
            except LostRaceError:
                answers = self._answer_together(asks)
        except Exception as error:
            if is_trouble_of_all(error):
                # Each would wait for the same, one after the other.
                for call in (*calls, *self._drain()):
                    call.tell(partial(_fail, error))
            elif not _is_of_some(error):
                _log.warning("%d calls failed together, and go on alone", len(calls), exc_info=error)
        else:
            for call in calls:
                if call.key in answers:
                    call.tell(partial(answers.__getitem__, call.key))

    def _drain(self) -> Sequence[_Call[Ask, Answer]]:
        """All who wait, who do so no more."""
        with self._lock:
            calls = list(self._calls)
            self._calls.clear()
        return calls

    def _answer_together(self, asks: Sequence[Ask]) -> Mapping[str, Answer]:
        with self._database.write() as session:
            if not self._database.is_sqlite:
                session.connection().exec_driver_sql(_WAIT_FOR_NO_LOCK)
            return self._share(session, asks)

    def _answer_alone(self, ask: Ask) -> Answer:
        with self._database.write() as session:
            return self._alone(session, ask)


def _fail(error: BaseException) -> NoReturn:
    raise error


def _is_of_some(error: Exception) -> bool:
    """Whether some of the calls are wrong, or in each other's or somebody's way, but the others are not."""
    of_locks = psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable
    is_of_locks = isinstance(error, DBAPIError) and isinstance(error.orig, of_locks)
    return isinstance(error, IcestreamError | LostRaceError) or is_of_locks
