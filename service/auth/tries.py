"""How often somebody may try credentials that are not valid, wherever they are looked at.

A try counts for the address that it came from, whatever other credentials the request has: a session that is
good says nothing about the key in a login form. Nothing but time makes up for one that failed.

Nobody is locked out by others at his address: credentials that were good before, and those that are too long
to be guessed, are looked at even when the address has to wait.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fastapi import Request

from service.auth.buckets import Bucket, Recent, digest_of, network_of, site_of, too_many
from service.auth.service import KEY_PREFIX
from service.errors import IcestreamError, UnauthenticatedError
from service.settings import Settings

_GENERATED_KEY = re.compile(re.escape(KEY_PREFIX) + r"[A-Za-z0-9_-]{43}")
"""256 random bits. The first keys are settings, which people may choose."""
_NETWORKS_OF_SITE = 16
"""A /48 of IPv6 has as many tries as so many of its 65,536 networks (/64): not all need be one person's."""


class Tries:
    """Of one replica, in its memory; safe to use from many threads."""

    def __init__(self, settings: Settings, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = settings.failed_logins_per_minute
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self.failures: Recent[Bucket] = Recent()
        self.good: Recent[bool] = Recent()

    @contextmanager
    def one(self, address: str, credential: str | None, *, can_be_guessed: bool) -> Iterator[None]:
        """Around a look at a credential, which raises UnauthenticatedError for one that is not valid.

        credential: None for a change that somebody tries without any. Raises a 429 instead of looking at what
        may be a guess, and instead of telling that something was wrong, once the address has to wait.
        """
        if not self._per_minute:
            yield
            return
        digest = digest_of(credential) if credential is not None else ""
        # Taken in advance: many at once get no further than one after the other.
        wait_seconds = self._take(address)
        if wait_seconds and can_be_guessed and not self._was_good(digest):
            raise self._refusal(wait_seconds)
        try:
            yield
        except UnauthenticatedError as error:
            self._forget(digest)
            if wait_seconds:
                raise self._refusal(wait_seconds) from error
            raise
        except BaseException:
            if not wait_seconds:
                self._give_back(address)
            raise
        if not wait_seconds:
            self._give_back(address)
        with self._lock:
            self.good.put(digest, True)

    def _refusal(self, wait_seconds: float) -> IcestreamError:
        return too_many("Somebody at your address failed to sign in", self._per_minute, wait_seconds)

    def _take(self, address: str) -> float:
        """Count a try, and 0; or how long the address has to wait before one counts again."""
        now = self._monotonic()
        with self._lock:
            counted = []
            for network, per_minute in self._networks(address):
                failures = self.failures.get(network)
                if failures is None:
                    failures = self.failures.put(network, Bucket(per_minute, now))
                counted.append(failures)
            wait_seconds = max(one.wait_seconds(now) for one in counted)
            if not wait_seconds:
                for one in counted:
                    one.take()
            return wait_seconds

    def _give_back(self, address: str) -> None:
        with self._lock:
            for network, _ in self._networks(address):
                if (failures := self.failures.get(network)) is not None:
                    failures.give_back()

    def _networks(self, address: str) -> Iterator[tuple[str, int]]:
        """What a try counts for, and how many a minute that may be."""
        yield address, self._per_minute
        if (site := site_of(address)) is not None:
            yield site, self._per_minute * _NETWORKS_OF_SITE

    def _was_good(self, digest: str) -> bool:
        with self._lock:
            return self.good.get(digest) is not None

    def _forget(self, digest: str) -> None:
        with self._lock:
            self.good.forget(digest)


@contextmanager
def one_try(
    request: Request, credential: str | None, *, can_be_guessed: bool | None = None
) -> Iterator[None]:
    """Around the look at a credential of a request: `Tries.one` of the application.

    can_be_guessed: None asks whether it looks like an API key that was chosen and not generated.
    """
    tries: Tries = request.app.state.tries
    if can_be_guessed is None:
        can_be_guessed = credential is None or _GENERATED_KEY.fullmatch(credential) is None
    address = network_of(request.client.host if request.client else "")
    with tries.one(address, credential, can_be_guessed=can_be_guessed):
        yield
