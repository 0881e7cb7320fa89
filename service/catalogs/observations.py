"""What is seen of catalogs whenever they are asked for something: whether they answer, and at what cost.

No request is made for it. Each replica keeps in memory what it sees until `service.scheduling.catalog_health`
takes it into the database.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from service.db.database import utc_now
from service.errors import IcestreamError, UnreachableError
from trust.bounds import is_ended


@dataclass
class Asking:
    """Something that a catalog is asked for, with as many requests as that takes."""

    requests: int = 0
    opened_after: int | None = None
    """So many requests it took to open it; while None, whatever fails does so for all of its tables."""
    error: IcestreamError | None = None
    told: IcestreamError | None = None
    """What has failed within, and was noted there."""

    def opened(self) -> None:
        self.opened_after = self.requests

    def fails_by(self, error: IcestreamError) -> bool:
        """Whether an error is the catalog's: not a table's, nor that of the store in which it lies."""
        if self.opened_after is None:
            return True
        is_own = isinstance(error, UnreachableError) and error.slug != "catalog-limit-exceeded"
        return is_own and self.requests > self.opened_after and error is not self.told


@dataclass
class Seen:
    """Of a catalog, since this was last taken."""

    requests: int = 0
    answered: int = 0
    """Of these, with what was read after them in `seconds`."""
    seconds: float = 0.0
    answered_at: datetime | None = None
    failures: int = 0
    """Since it answered last."""
    failed_at: datetime | None = None
    """The first of these."""
    error: dict[str, Any] | None = None
    """Of the last of these: `code`, `title`, `detail` and `remedy`."""


_asking: ContextVar[Asking | None] = ContextVar("asking", default=None)


def count_request() -> None:
    """One that is about to be sent; each kind of client says so."""
    if (asking := _asking.get()) is not None:
        asking.requests += 1


class Observations:
    """Of all catalogs that a process asks; thread-safe."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}
        self._well: set[str] = set()
        """Those that had answered when what was seen of them was taken last."""
        self._lock = threading.Lock()

    @property
    def has_news(self) -> bool:
        """Whether a catalog fails, or answers of which that was not told."""
        with self._lock:
            return any(seen.failures or one not in self._well for one, seen in self._seen.items())

    @contextmanager
    def of(self, catalog_id: str) -> Iterator[Asking]:
        """While a catalog is asked; what is asked within that counts for itself.

        It failed if it could not be opened, or if it was asked and could not be reached. A table that is not
        there, or that is too large, is an answer. What nobody waits for any more says nothing.
        """
        asking = Asking()
        token = _asking.set(asking)
        started = time.monotonic()
        try:
            yield asking
        except IcestreamError as error:
            if asking.fails_by(error):
                asking.error = error
            raise
        finally:
            _asking.reset(token)
            if asking.error is not None and (outer := _asking.get()) is not None:
                outer.told = asking.error
            if (asking.requests or asking.error is not None) and not (asking.error and is_ended()):
                self._note(catalog_id, asking, time.monotonic() - started)

    def take(self) -> dict[str, Seen]:
        """What was seen of each catalog since the last time, by its id."""
        with self._lock:
            taken, self._seen = self._seen, {}
            for catalog_id, seen in taken.items():
                (self._well.discard if seen.failures else self._well.add)(catalog_id)
        return taken

    def _note(self, catalog_id: str, asking: Asking, seconds: float) -> None:
        now, error = utc_now(), asking.error
        with self._lock:
            seen = self._seen.setdefault(catalog_id, Seen())
            seen.requests += asking.requests
            if asking.told is not None:
                return
            if error is None:
                seen.answered += asking.requests
                seen.seconds += seconds
                seen.answered_at, seen.failures, seen.failed_at, seen.error = now, 0, None, None
                return
            seen.failures += 1
            seen.failed_at = seen.failed_at or now
            seen.error = {
                "code": error.slug,
                "title": error.title,
                "detail": error.detail,
                "remedy": error.remedy,
            }
