"""Who may call a route, as far as HTTP has to know: every route has a guard, or lets anyone in.

`service.auth.access` has the guards themselves.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Protocol

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant

IDEMPOTENCY_HEADER = "Idempotency-Key"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Caller(Protocol):
    @property
    def key(self) -> str:
        """One for each caller."""


class Guard(ABC):
    """A dependency that lets some callers through."""

    once_header: ClassVar[str] = IDEMPOTENCY_HEADER
    """What names a POST that may come again, and happens once."""
    signs_body: ClassVar[bool] = False
    """Whether who calls is known by a signature of the body, which is read before that is checked."""

    @property
    @abstractmethod
    def word(self) -> str:
        """Whom it lets through."""

    @abstractmethod
    def check(self, request: Request) -> Caller:
        """Who calls; raises IcestreamError for somebody who may not."""


def anyone() -> None:
    """The dependency of a route that needs no credentials."""


Anyone = Depends(anyone)


def calls_of(dependant: Dependant) -> Iterator[object]:
    """All that is called before a route."""
    for dependency in dependant.dependencies:
        yield dependency.call
        yield from calls_of(dependency)


def guard_of(dependant: Dependant) -> Guard | None:
    """What a route declares; None for one that needs no credentials."""
    return next((call for call in calls_of(dependant) if isinstance(call, Guard)), None)
