"""Whoever calls too often waits, strangers sooner; nobody else notices, and workers are never held up."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from service.app import create_app, prepare
from service.auth import buckets
from service.auth.models import SYSTEM, ApiKeyRequest
from service.auth.principals import SESSION_COOKIE
from service.auth.rate_limits import RateLimits
from service.auth.service import create_api_key, create_login_link
from service.auth.tries import Tries
from service.errors import IcestreamError, UnauthenticatedError
from service.records.api_keys import Role
from service.settings import Settings
from tests.service.conftest import ADMIN_KEY, ManualTime, alike_on_both, run_apart, running

# Calls are counted in memory.
database_kind = alike_on_both

CALLS, FAILURES = 20, 5
Call = Callable[..., Awaitable[httpx.Response]]


class Limited:
    """The service without limits of its own behind limits whose clock a test sets."""

    def __init__(self, settings: Settings) -> None:
        prepare(settings)
        unlimited = {"requests_per_minute": 0, "failed_logins_per_minute": 0}
        self.app: FastAPI = create_app(settings.model_copy(update=unlimited))
        self.time = ManualTime()
        given = {"requests_per_minute": CALLS, "failed_logins_per_minute": FAILURES}
        limited = settings.model_copy(update=given)
        self.limits = RateLimits(self.app, limited, lambda: self.time.monotonic)
        self.tries = self.app.state.tries = Tries(limited, lambda: self.time.monotonic)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As within an application, which the limits are when the service runs."""
        await self.limits({**scope, "app": self.app, "state": {"request_id": "r"}}, receive, send)

    def key(self, role: Role) -> str:
        with self.app.state.database.write() as session:
            return create_api_key(session, SYSTEM, ApiKeyRequest(name=role.value, role=role)).key

    def call(
        self,
        path: str = "/api/v1/me",
        key: str | None = None,
        *,
        times: int = 1,
        address: str = "10.0.0.1",
        method: str = "GET",
        **options: object,
    ) -> list[httpx.Response]:
        """The answers to so many calls, one after the other."""

        async def call() -> list[httpx.Response]:
            transport = httpx.ASGITransport(self, client=(address, 4711))
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            async with httpx.AsyncClient(
                transport=transport, base_url="http://service", headers=headers
            ) as client:
                return [await client.request(method, path, **options) for _ in range(times)]  # type: ignore[arg-type]

        return run_apart(call())


@pytest.fixture
def limited(settings: Settings) -> Iterator[Limited]:
    limited = Limited(settings)
    yield limited
    limited.app.state.database.dispose()


def statuses(answers: list[httpx.Response]) -> list[int]:
    return [answer.status_code for answer in answers]


def test_who_calls_too_often_is_told_when_to_come_back(limited: Limited) -> None:
    answers = limited.call(key=ADMIN_KEY, times=CALLS + 2)
    refused = answers[-1]
    # The first call is counted by the address, the others by the key, which turned out to be good.
    assert statuses(answers) == [200] * (CALLS + 1) + [429]
    problem = refused.json()
    assert refused.headers["content-type"] == "application/problem+json"
    assert (problem["type"], problem["status"]) == ("/problems/too-many-requests", 429)
    wait = int(refused.headers["retry-after"])
    assert problem["retry_after_seconds"] == wait == 60 // CALLS
    limited.time.pass_by(wait)
    assert statuses(limited.call(key=ADMIN_KEY, times=2)) == [200, 429]
    limited.time.pass_by(3600)
    assert statuses(limited.call(key=ADMIN_KEY, times=CALLS + 1)) == [200] * CALLS + [429]


def test_everybody_is_counted_alone(limited: Limited) -> None:
    one, other = limited.key(Role.VIEWER), limited.key(Role.VIEWER)
    assert statuses(limited.call(key=other)) == [200]
    assert statuses(limited.call(key=one, times=CALLS + 2))[-1] == 429
    assert statuses(limited.call(key=other, times=CALLS)) == [200] * CALLS
    # Another address does not help who is counted by his key.
    assert statuses(limited.call(key=one, address="10.9.9.9")) == [429]


def test_strangers_are_counted_by_their_address(limited: Limited) -> None:
    answers = limited.call("/login", times=CALLS + 1)
    assert statuses(answers) == [200] * CALLS + [429]
    assert statuses(limited.call("/login", address="10.0.0.2")) == [200]
    assert statuses(limited.call(address="2001:db8::1", path="/login", times=CALLS)) == [200] * CALLS
    assert statuses(limited.call(address="2001:db8::ffff:1", path="/login")) == [429]
    assert statuses(limited.call(address="2001:db8:0:1::1", path="/login")) == [200]


def test_a_worker_is_not_counted(limited: Limited) -> None:
    key = limited.key(Role.WORKER)
    assert statuses(limited.call(key=key, times=3 * CALLS)) == [200] * (3 * CALLS)


def test_probes_are_not_counted(limited: Limited) -> None:
    for probe in ("/livez", "/readyz"):
        assert statuses(limited.call(probe, times=2 * CALLS)) == [200] * (2 * CALLS)


GENERATED = "ice_" + 43 * "x"
LOGIN: dict[str, Any] = {"path": "/login", "method": "POST"}


@pytest.mark.parametrize(
    "attempt",
    [
        {"path": "/api/v1/jobs", "key": "guessed"},
        {"path": "/api/v1/jobs", "key": GENERATED},
        {**LOGIN, "data": {"api_key": "guessed"}},
        {**LOGIN, "data": {"api_key": GENERATED}},
        {"path": "/login?token=guessed"},
        {"path": "/api/v1/tables/x/pause", "method": "POST"},
    ],
)
def test_who_fails_to_sign_in_waits_sooner(limited: Limited, attempt: dict[str, str]) -> None:
    answers = limited.call(**attempt, times=FAILURES + 1)
    assert statuses(answers) == [401] * FAILURES + [429]
    assert "failed to sign in" in answers[-1].text
    wait = int(answers[-1].headers["retry-after"])
    assert wait == 60 // FAILURES
    # Every other guess from there waits too, though it may be right.
    assert statuses(limited.call(key=ADMIN_KEY)) == [429]
    assert statuses(limited.call("/login")) == [200]
    assert statuses(limited.call(key=ADMIN_KEY, address="10.0.0.2")) == [200]
    limited.time.pass_by(wait)
    assert statuses(limited.call(key=ADMIN_KEY)) == [200]


def test_nobody_is_locked_out_by_others_at_his_address(limited: Limited) -> None:
    known, new = ADMIN_KEY, limited.key(Role.VIEWER)
    assert statuses(limited.call(key=known)) == [200]
    link = create_login_link(limited.app.state.database, "")
    limited.call(**LOGIN, data={"api_key": "guessed"}, times=2 * FAILURES)
    assert statuses(limited.call(key="another-guess")) == [429]
    # A key that was good before, one that nobody can guess, and a login link: wherever they are looked at.
    for key in (known, new):
        assert statuses(limited.call(key=key)) == [200]
        assert statuses(limited.call(**LOGIN, data={"api_key": key})) == [303]
    (signed_in,) = limited.call(link)
    assert signed_in.status_code == 303
    cookie = {"Cookie": f"{SESSION_COOKIE}={signed_in.cookies[SESSION_COOKIE]}"}
    assert statuses(limited.call("/", headers=cookie)) == [200]


@pytest.mark.parametrize("brings", ["cookie", "key"])
def test_a_good_credential_does_not_wash_wrong_ones_tried_beside_it(limited: Limited, brings: str) -> None:
    key = limited.key(Role.VIEWER)
    (signed_in,) = limited.call(**LOGIN, data={"api_key": key})
    headers = {
        "cookie": {"Cookie": f"{SESSION_COOKIE}={signed_in.cookies[SESSION_COOKIE]}"},
        "key": {"Authorization": f"Bearer {key}"},
    }[brings]
    found = []
    for number in range(FAILURES + 3):
        assert statuses(limited.call(headers=headers)) == [200]
        found += statuses(limited.call(**LOGIN, data={"api_key": f"guess {number}"}, headers=headers))
        assert statuses(limited.call(**LOGIN, data={"api_key": key})) == [303]
    assert found == [401] * FAILURES + [429] * 3
    # However many there were, the wait is that of one.
    limited.time.pass_by(60 // FAILURES)
    assert statuses(limited.call(key="guessed", times=2)) == [401, 429]


def test_whatever_comes_beside_a_credential_makes_no_other_caller_of_it(limited: Limited) -> None:
    key = limited.key(Role.VIEWER)
    (signed_in,) = limited.call(**LOGIN, data={"api_key": key})
    cookie = f"{SESSION_COOKIE}={signed_in.cookies[SESSION_COOKIE]}"
    for number in range(CALLS):
        headers = {"Cookie": cookie, "Authorization": f"Basic {number}"}
        limited.call(headers=headers, address=f"10.0.3.{number}")
    # One was counted by its address, since the session was not known then.
    assert statuses(limited.call(headers={"Cookie": cookie}, times=2)) == [200, 429]


def test_many_guesses_at_once_get_no_further_than_one_after_the_other(limited: Limited) -> None:
    async def guess(number: int) -> int:
        transport = httpx.ASGITransport(limited, client=("10.0.0.1", 4711))
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            headers = {"Authorization": f"Bearer guess {number}"}
            return (await client.get("/api/v1/me", headers=headers)).status_code

    async def guess_at_once() -> list[int]:
        return await asyncio.gather(*map(guess, range(3 * FAILURES)))

    assert sorted(run_apart(guess_at_once())) == [401] * FAILURES + [429] * 2 * FAILURES


@pytest.mark.parametrize(
    ("one", "other", "are_one"),
    [
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("64:ff9b::10.0.0.1", "64:ff9b::10.0.0.2", False),
        ("2001:db8::1", "2001:db8::2", True),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("", "10.0.0.1", False),
    ],
)
def test_who_shares_an_address_only_by_its_notation_is_not_one_stranger(
    one: str, other: str, are_one: bool
) -> None:
    assert (buckets.network_of(one) == buckets.network_of(other)) is are_one


def test_a_key_that_was_good_and_was_revoked_is_a_strangers(limited: Limited) -> None:
    with limited.app.state.database.write() as session:
        made = create_api_key(session, SYSTEM, ApiKeyRequest(name="v", role=Role.VIEWER))
    assert statuses(limited.call(key=made.key)) == [200]
    limited.call(f"/api/v1/api-keys/{made.id}", ADMIN_KEY, method="DELETE")
    answers = limited.call(key=made.key, times=FAILURES + 1)
    assert statuses(answers) == [401] * FAILURES + [429]


def test_strangers_fill_the_audit_log_no_faster_than_that(limited: Limited) -> None:
    limited.call("/api/v1/tables/x/pause", method="POST", times=10 * FAILURES)
    (answer,) = limited.call("/api/v1/audit?outcome=denied", ADMIN_KEY, address="10.0.0.2")
    assert len(answer.json()["items"]) == FAILURES


def test_memory_is_bounded(limited: Limited, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "REMEMBERED", 3)
    for number in range(10):
        limited.call(key=limited.key(Role.VIEWER), address=f"10.0.1.{number}")
        limited.call(key="guessed", address=f"10.0.2.{number}")
    limits, tries = limited.limits, limited.tries
    assert (len(limits.calls), len(limits.known), len(tries.failures), len(tries.good)) == (3, 3, 3, 3)


def test_zero_means_no_limit(settings: Settings) -> None:
    prepare(settings)
    limited = Limited(settings)
    unlimited = settings.model_copy(update={"requests_per_minute": 0, "failed_logins_per_minute": 0})
    limited.limits = RateLimits(limited.app, unlimited)
    limited.app.state.tries = Tries(unlimited)
    assert statuses(limited.call(key="guessed", times=50)) == [401] * 50
    assert statuses(limited.call(key=ADMIN_KEY, times=50)) == [200] * 50
    limited.app.state.database.dispose()


def test_the_settings_hold_in_the_running_service(settings: Settings) -> None:
    given = {"requests_per_minute": 6, "failed_logins_per_minute": 2}
    with running(settings.model_copy(update=given)) as service:
        stranger = service.client_with({"Authorization": "Bearer guessed"})
        answers = [stranger.get("/me") for _ in range(3)]
        assert statuses(answers) == [401, 401, 429]
        assert answers[-1].headers["x-request-id"]
        assert answers[-1].headers["x-content-type-options"] == "nosniff"


def test_behind_a_trusted_proxy_everybody_has_his_own_address(settings: Settings) -> None:
    given = {"failed_logins_per_minute": 1, "trusted_proxies": ("127.0.0.1",)}
    with running(settings.model_copy(update=given)) as service:
        stranger = service.client_with({"Authorization": "Bearer guessed"})
        for address in ("203.0.113.1", "203.0.113.2"):
            forwarded = {"X-Forwarded-For": address}
            assert stranger.get("/me", headers=forwarded).status_code == 401
            assert stranger.get("/me", headers=forwarded).status_code == 429


def test_the_networks_of_one_site_have_a_bound_together(limited: Limited) -> None:
    def guess(network: int, site: str = "2001:db8:1") -> str:
        try:
            with limited.tries.one(f"{site}:{network:x}::/64", "guess", can_be_guessed=True):
                raise UnauthenticatedError("invalid-api-key", "x")
        except IcestreamError as error:
            return error.slug

    assert [guess(network) for network in range(16 * FAILURES)] == ["invalid-api-key"] * 16 * FAILURES
    assert guess(0xFFFF) == "too-many-requests"
    assert guess(0, "2001:db8:2") == "invalid-api-key"
