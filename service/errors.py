"""Errors that callers see, each of a `type` that service.problems lists.

    IcestreamError
    ├── UnauthenticatedError 401
    ├── ForbiddenError       403
    ├── NotFoundError        404
    ├── ConflictError        409
    ├── PreconditionError    412 / 428
    ├── InvalidError         422
    ├── UnreachableError     502
    └── DatabaseError        503
    StartError               the process cannot start; never travels over HTTP

Each says what happened (`detail`) and what to do about it (`remedy`), in words that are right on a page and
in an answer to a program: only service.problems names calls and headers.
"""

import sqlite3
from typing import Any, ClassVar

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionError

from service.problems import PROBLEM_PATH, PROBLEMS

_OF_WHAT_WAS_ASKED = "40", "54", "55", "57014"
"""SQLSTATEs of locks that somebody else has, and of statements that are too large or take too long."""


class StartError(Exception):
    """The service must not start like this; the text says why and what to change."""


class IcestreamError(Exception):
    """Base of every error that is answered with a problem document.

    Its title is that of its slug in service.problems; so is its status, unless there are several, and its
    remedy, unless more is known where it is raised.
    """

    status: ClassVar[int] = 500

    def __init__(
        self,
        slug: str,
        detail: str,
        remedy: str | None = None,
        *,
        status: int | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(detail)
        known = PROBLEMS[slug]
        self.slug, self.detail, self.extra = slug, detail, extra
        self.title, self.remedy = known.title, remedy or known.remedy
        self.status_code = status or (known.status[0] if len(known.status) == 1 else self.status)

    @property
    def type(self) -> str:
        """The `type` of the problem document."""
        return f"{PROBLEM_PATH}{self.slug}"


class UnauthenticatedError(IcestreamError):
    status = 401


class ForbiddenError(IcestreamError):
    """`action` and `target` go to the audit log."""

    status = 403


class NotFoundError(IcestreamError):
    status = 404


class ConflictError(IcestreamError):
    status = 409


class PreconditionError(IcestreamError):
    status = 412


class InvalidError(IcestreamError):
    status = 422


class UnreachableError(IcestreamError):
    status = 502


class DatabaseError(IcestreamError):
    """The control database is locked, full, restarting or out of reach; the same call succeeds later."""

    status = 503

    def __init__(self, cause: BaseException) -> None:
        super().__init__(
            "database-unavailable",
            str(getattr(cause, "orig", None) or cause),
            "Try again in some seconds. /readyz says whether the database can be used.",
        )


def is_database_trouble(error: BaseException) -> bool:
    """Whether the database, and not the request or this program, is why something failed."""
    return isinstance(error, OperationalError | InterfaceError | NoConnectionError) or (
        isinstance(error, DBAPIError) and error.connection_invalidated
    )


def is_trouble_of_all(error: BaseException) -> bool:
    """Whether whoever asks the database for anything now fares alike."""
    if not is_database_trouble(error):
        return False
    cause = getattr(error, "orig", None)
    if isinstance(cause, sqlite3.Error):
        return getattr(cause, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_ERROR
    return not (getattr(cause, "sqlstate", None) or "").startswith(_OF_WHAT_WAS_ASKED)
