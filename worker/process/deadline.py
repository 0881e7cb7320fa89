"""Until when an answer is wanted: what reads files for it stops at the next file or rows beyond that.

Invariant: what a thread starts by `worker.process.slots.Threads` is held to the same time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

R = TypeVar("R")

_until: ContextVar[float | None] = ContextVar("until", default=None)
"""By the monotonic clock; without any, there is time."""


class OutOfTimeError(TimeoutError):
    """Says nothing of what was read until then, as an error of the store says nothing."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """What is done here shall be over by then."""
    outer = _until.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _until.reset(outer)


def check_time() -> None:
    """Raises OutOfTimeError if the time of what is done here is over."""
    until = _until.get()
    if until is not None and time.monotonic() > until:
        raise OutOfTimeError("its time is over")


def result_in_time(asked: Future[R]) -> R:
    """What others were asked for. Raises OutOfTimeError if the time is over before, and asks no more."""
    until = _until.get()
    if until is not None and not wait([asked], max(0.0, until - time.monotonic())).done:
        asked.cancel()
        raise OutOfTimeError("its time is over")
    return asked.result()
