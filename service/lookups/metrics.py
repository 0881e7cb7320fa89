"""How many questions about keys were asked, what became of them, and how long answers took."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from service.errors import IcestreamError

disable_created_metrics()  # type: ignore[no-untyped-call]  # a time for each series, which nobody asks for
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Outcome(StrEnum):
    """What became of a question."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """For what was asked, by whom, or what the table is like."""
    UNAVAILABLE = "unavailable"
    """For want of a server, a store or a catalog."""


class LookupMetrics:
    """Of one replica, since it started."""

    def __init__(self) -> None:
        self._questions = Counter(
            "icestream_lookups", "Questions about keys by what became of them.", ["status"], registry=None
        )
        for outcome in Outcome:
            self._questions.labels(outcome.value)
        self._keys = Counter(
            "icestream_lookup_keys", "Keys of the questions that were answered.", registry=None
        )
        self._seconds = Histogram(
            "icestream_lookup_seconds",
            "How long questions took that were answered.",
            buckets=_SECONDS,
            registry=None,
        )

    @contextmanager
    def counted(self, keys: int) -> Iterator[None]:
        """A question about so many keys, which is answered unless an error says otherwise."""
        began, outcome = time.monotonic(), Outcome.UNAVAILABLE
        try:
            yield
            outcome = Outcome.ANSWERED
            self._keys.inc(keys)
            self._seconds.observe(time.monotonic() - began)
        except IcestreamError as error:
            if error.status_code < 500:
                outcome = Outcome.REFUSED
            raise
        finally:
            self._questions.labels(outcome.value).inc()

    def register(self, registry: CollectorRegistry) -> None:
        """Shows them among others."""
        for figure in (self._questions, self._keys, self._seconds):
            registry.register(figure)
