"""Calls that wait for each other anyway share a transaction.

What a transaction and its statements cost is paid once for all of them. Whoever comes while others are
answered is answered with all who came meanwhile, by a thread of one of them.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, NamedTuple, TypeVar

import psycopg
from sqlalchemy.exc import DBAPIError
from sqlmodel import Session

from service.db.database import Database
from service.errors import is_database_trouble

Ask = TypeVar("Ask")
Answer = TypeVar("Answer")
_MOST_TOGETHER = 16
"""In one transaction, for which all that write to SQLite wait."""


class NotTogetherError(Exception):
    """Some calls can't share a transaction."""


class _Call(NamedTuple, Generic[Ask, Answer]):
    ask: Ask
    key: str
    answer: Future[Answer]


class Together(Generic[Ask, Answer]):
    """One kind of call of a process.

    answer: all calls of a transaction, in their order. If it fails, each is answered in a transaction of its
    own, so that what is wrong with one of them harms no other.
    """

    def __init__(
        self, database: Database, answer: Callable[[Session, Sequence[Ask]], Sequence[Answer]]
    ) -> None:
        self._database, self._answer = database, answer
        self._turn = threading.Lock()
        """Of who answers those that have called."""
        self._calls: deque[_Call[Ask, Answer]] = deque()

    def call(self, ask: Ask, key: str) -> Answer:
        """The answer once it is committed. Of calls with one key, no two share a transaction.

        The thread waits: requests call by `Database.in_thread`.
        """
        mine = _Call[Ask, Answer](ask, key, Future())
        self._calls.append(mine)
        with self._turn:
            while not mine.answer.done():
                self._serve(self._next())
        return mine.answer.result()

    def _next(self) -> Sequence[_Call[Ask, Answer]]:
        """Those who came first."""
        taken = dict[str, _Call[Ask, Answer]]()
        while self._calls and len(taken) < _MOST_TOGETHER and self._calls[0].key not in taken:
            call = self._calls.popleft()
            taken[call.key] = call
        return list(taken.values())

    def _serve(self, calls: Sequence[_Call[Ask, Answer]]) -> None:
        try:
            with self._database.write() as session:
                answers = self._answer(session, [call.ask for call in calls])
                given = list(zip(calls, answers, strict=True))
        except Exception as error:
            if len(calls) == 1 or _is_told_all(error):
                for call in calls:
                    call.answer.set_exception(error)
            else:
                for call in calls:
                    self._serve([call])
        else:
            for call, answer in given:
                call.answer.set_result(answer)


def _is_told_all(error: Exception) -> bool:
    """Whether each of the calls would wait for the same trouble of the database, one after the other."""
    is_deadlock = isinstance(error, DBAPIError) and isinstance(error.orig, psycopg.errors.DeadlockDetected)
    return is_database_trouble(error) and not is_deadlock
