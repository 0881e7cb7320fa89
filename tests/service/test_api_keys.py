"""API keys: shown once, rotated with a grace, expired, revoked; and the sessions that they opened."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlmodel import Session, select

from service.auth.models import SYSTEM, ApiKeyRequest, RotationRequest
from service.auth.principals import SESSION_COOKIE
from service.auth.service import create_api_key, find_api_key_principal, log_in_with_key, rotate_api_key
from service.db.database import Database, utc_now
from service.http.routing import IdempotentAnswer
from service.records.api_keys import ApiKey, BrowserSession, Role
from tests.service.conftest import ADMIN_KEY, Running, alike_on_both

# Keys are rows that are found by their hash.
database_kind = alike_on_both


def make(service: Running, name: str = "k", **fields: Any) -> dict[str, Any]:
    answer = service.admin.post("/api-keys", json={"name": name, "role": "viewer"} | fields)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def rotate(service: Running, key: dict[str, Any], **fields: Any) -> httpx.Response:
    return service.admin.post(f"/api-keys/{key['id']}/rotate", json={"grace_seconds": 3600} | fields)


def is_good(service: Running, secret: str) -> bool:
    answer = service.client_with({"Authorization": f"Bearer {secret}"}).get("/me")
    assert answer.status_code in (200, 401)
    return answer.status_code == 200


def let_the_grace_pass(service: Running, key: dict[str, Any]) -> None:
    with service.database.write() as session:
        row = session.get_one(ApiKey, key["id"])
        assert row.previous_expires_at is not None
        row.previous_expires_at = utc_now()
        session.add(row)


def test_after_a_rotation_both_secrets_are_good_until_the_grace_is_over(service: Running) -> None:
    key = make(service)
    rotated = rotate(service, key).json()
    assert rotated["id"] == key["id"]
    assert rotated["key"] != key["key"]
    assert rotated["key"].startswith(rotated["prefix"])
    assert is_good(service, rotated["key"])
    assert is_good(service, key["key"])
    let_the_grace_pass(service, key)
    assert is_good(service, rotated["key"])
    assert not is_good(service, key["key"])


def test_without_grace_the_old_secret_ends_at_once(service: Running) -> None:
    key = make(service)
    rotated = rotate(service, key, grace_seconds=0).json()
    assert is_good(service, rotated["key"])
    assert not is_good(service, key["key"])


def test_a_second_rotation_ends_the_grace_of_the_first(service: Running) -> None:
    first = make(service)
    second = rotate(service, first).json()
    third = rotate(service, first).json()
    assert [is_good(service, key["key"]) for key in (first, second, third)] == [False, True, True]


def test_a_rotation_replaces_only_the_secret_that_was_seen(service: Running) -> None:
    key = make(service)
    second = rotate(service, key, prefix=key["prefix"]).json()
    refused = rotate(service, key, prefix=key["prefix"], grace_seconds=0)
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/api-key-rotated")
    assert second["prefix"] in refused.json()["detail"]
    assert is_good(service, key["key"])
    assert is_good(service, second["key"])
    assert rotate(service, key, prefix=second["prefix"]).status_code == 200


def test_revoking_a_rotated_key_ends_both_secrets(service: Running) -> None:
    key = make(service)
    rotated = rotate(service, key).json()
    service.admin.delete(f"/api-keys/{key['id']}")
    assert not is_good(service, rotated["key"])
    assert not is_good(service, key["key"])


def test_a_new_secret_is_shown_once_and_only_its_hash_is_stored(service: Running) -> None:
    key = make(service)
    rotated = service.admin.post(
        f"/api-keys/{key['id']}/rotate", json={"grace_seconds": 1}, headers={"Idempotency-Key": "once"}
    ).json()
    with service.database.read() as session:
        stored = "".join(row.model_dump_json() for row in session.exec(select(ApiKey)))
        stored += "".join(row.model_dump_json() for row in session.exec(select(IdempotentAnswer)))
    listed = service.admin.get("/api-keys").text + service.admin.get("/audit").text
    for secret in (key["key"], rotated["key"]):
        assert secret not in stored
        assert secret not in listed


def test_the_grace_must_be_named_and_is_bounded(service: Running) -> None:
    key = make(service)
    for body in ({}, {"grace_seconds": -1}, {"grace_seconds": 31 * 24 * 3600}):
        answer = service.admin.post(f"/api-keys/{key['id']}/rotate", json=body)
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["field"] == "body.grace_seconds"
    assert is_good(service, key["key"])


def test_a_rotation_may_name_a_new_end_of_the_key(service: Running) -> None:
    ends, later = utc_now() + timedelta(days=1), utc_now() + timedelta(days=90)
    key = make(service, expires_at=ends.isoformat())
    assert rotate(service, key).json()["expires_at"] == key["expires_at"]
    moved = rotate(service, key, expires_at=later.isoformat()).json()
    assert moved["expires_at"] > key["expires_at"]
    assert rotate(service, key, expires_at=None).json()["expires_at"] is None


def test_a_key_without_a_time_zone_in_its_end_is_refused(service: Running) -> None:
    body = {"name": "k", "role": "viewer", "expires_at": "2030-01-01T00:00:00"}
    answer = service.admin.post("/api-keys", json=body)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "body.expires_at")


def test_a_key_that_is_not_active_is_not_rotated(service: Running) -> None:
    expired = make(service, expires_at="2020-01-01T00:00:00Z")
    revoked = make(service)
    service.admin.delete(f"/api-keys/{revoked['id']}")
    for key, word in ((expired, "expired"), (revoked, "revoked")):
        answer = rotate(service, key)
        assert (answer.status_code, answer.json()["type"]) == (409, "/problems/api-key-not-active")
        assert word in answer.json()["detail"]
    assert rotate(service, {"id": "nope"}).json()["type"] == "/problems/api-key-not-found"


def test_the_key_of_the_setting_is_changed_by_the_setting(service: Running) -> None:
    """Else a restart would make the old secret, which is still the setting, a new admin key."""
    (bootstrap,) = service.admin.get("/api-keys").json()["items"]
    answer = rotate(service, bootstrap)
    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/api-key-given")
    assert is_good(service, ADMIN_KEY)


def test_it_is_known_when_a_key_was_used_last(service: Running) -> None:
    key = make(service)
    before = utc_now()
    assert key["last_used_at"] is None
    assert is_good(service, key["key"])
    (listed,) = [found for found in service.admin.get("/api-keys").json()["items"] if found["name"] == "k"]
    assert listed["last_used_at"] >= before.isoformat()[:19]


def log_in(service: Running, secret: str) -> tuple[httpx.Client, BrowserSession]:
    with service.database.write() as session:
        token = log_in_with_key(session, service.settings, secret)
    with service.database.read() as session:
        row = session.exec(select(BrowserSession)).all()[-1]
    return service.client_with({"Cookie": f"{SESSION_COOKIE}={token}"}), row


def test_a_session_ends_with_the_secret_that_opened_it(service: Running) -> None:
    key = make(service)
    browser, _ = log_in(service, key["key"])
    assert browser.get("/me").status_code == 200
    rotate(service, key, grace_seconds=0)
    assert browser.get("/me").status_code == 401


def test_a_session_that_the_old_secret_opens_ends_with_the_grace(service: Running) -> None:
    key = make(service)
    rotated = rotate(service, key, grace_seconds=60).json()
    browser, opened = log_in(service, key["key"])
    assert browser.get("/me").status_code == 200
    assert opened.expires_at.isoformat()[:19] == rotated["previous_expires_at"][:19]


def test_a_session_ends_when_its_key_expires(service: Running) -> None:
    ends = utc_now() + timedelta(minutes=5)
    key = make(service, expires_at=ends.isoformat())
    _, opened = log_in(service, key["key"])
    assert opened.expires_at == ends


def test_two_rotations_at_once_leave_one_new_secret_and_the_one_before(database: Database) -> None:
    with database.write() as session:
        key = create_api_key(session, SYSTEM, ApiKeyRequest(name="k", role=Role.VIEWER))

    def once(_: int) -> str:
        with database.write() as session:
            return rotate_api_key(session, SYSTEM, key.id, RotationRequest(grace_seconds=60)).key

    with ThreadPoolExecutor(4) as pool:
        secrets = [key.key, *pool.map(once, range(4))]
    good = [secret for secret in secrets if find_api_key_principal(database, secret)]
    assert len(good) == 2
    assert key.key not in good


@pytest.mark.parametrize(
    "secret", ["", " ", "ice_", "'; DROP TABLE api_keys; --", "x" * 100_000, "\N{SNOWMAN}"]
)
def test_nothing_but_a_secret_finds_a_key(database: Database, secret: str) -> None:
    with database.write() as session:
        create_api_key(session, SYSTEM, ApiKeyRequest(name="k", role=Role.ADMIN))
    assert find_api_key_principal(database, secret) is None
    with database.read() as session:
        assert len(_keys(session)) == 1


def _keys(session: Session) -> list[ApiKey]:
    return list(session.exec(select(ApiKey)))
