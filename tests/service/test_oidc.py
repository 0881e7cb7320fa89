"""Tokens of a real issuer: which are taken, for which role, and what its silence means."""

import base64
import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import ValidationError

from service.app import prepare
from service.auth.oidc import (
    KEEP_SECONDS,
    LEEWAY_SECONDS,
    PAUSE_SECONDS,
    REFRESH_SECONDS,
    IssuerUnreachableError,
    TokenVerifier,
)
from service.command import main as cli
from service.errors import ForbiddenError, StartError, UnauthenticatedError
from service.records.api_keys import Role
from service.settings import Settings
from tests.service.conftest import ADMIN_KEY, ManualTime, Running, running
from tests.service.oidc_issuer import AUDIENCE, Issuer, new_ec_key, new_rsa_key, public_jwk, running_issuer

ROLES = "lake-admins=admin, data-team=operator, readers=viewer, spark=worker, a=b=viewer"


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with running_issuer() as issuer:
        yield issuer


def trusting(settings: Settings, issuer: Issuer) -> Settings:
    given = {"oidc_issuer": issuer.url, "oidc_audience": AUDIENCE, "oidc_roles": ROLES}
    return Settings(**(settings.model_dump() | given))


@pytest.fixture
def oidc_settings(tmp_path: Path, issuer: Issuer) -> Settings:
    """Of no certain database: tokens are verified without one."""
    return trusting(Settings(data_dir=tmp_path, bootstrap_key=ADMIN_KEY), issuer)


@pytest.fixture
def service(settings: Settings, issuer: Issuer) -> Iterator[Running]:
    with running(trusting(settings, issuer)) as service:
        yield service


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Issuer]]:
    """A service and its issuer, for requests that change neither."""
    settings = Settings(
        data_dir=tmp_path_factory.mktemp("oidc"),
        bootstrap_key=ADMIN_KEY,
        background=False,
        failed_logins_per_minute=0,
    )
    with running_issuer() as issuer, running(trusting(settings, issuer)) as service:
        yield service, issuer


@pytest.fixture
def time_passing() -> ManualTime:
    return ManualTime()


@pytest.fixture
def verifier(oidc_settings: Settings, time_passing: ManualTime) -> TokenVerifier:
    return TokenVerifier(oidc_settings, lambda: time_passing.monotonic)


def get_me(service: Running, token: str) -> httpx.Response:
    return service.client_with({"Authorization": f"Bearer {token}"}).get("/me")


def test_a_token_of_the_issuer_is_as_good_as_a_key(service: Running, issuer: Issuer) -> None:
    assert get_me(service, issuer.token()).json() == {
        "name": "oidc:user-17",
        "role": "operator",
        "scopes": None,
        "kind": "oidc",
    }
    operator = service.client_with({"Authorization": f"Bearer {issuer.token()}"})
    assert operator.post("/policies", json={"name": "p", "settings": {}}).status_code == 201
    assert operator.post("/system/pause").status_code == 403
    entries = service.admin.get("/audit", params={"principal": "oidc:user-17"}).json()["items"]
    assert [(entry["action"], entry["outcome"]) for entry in entries] == [
        ("POST /system/pause", "denied"),
        ("policy.create", "allowed"),
    ]
    assert get_me(service, ADMIN_KEY).json()["role"] == "admin"


def test_wrong_keys_at_an_address_hold_up_no_token_from_there(settings: Settings, issuer: Issuer) -> None:
    limited = settings.model_copy(update={"failed_logins_per_minute": 1})
    with running(trusting(limited, issuer)) as service:
        assert [get_me(service, "wrong").status_code for _ in range(2)] == [401, 429]
        assert get_me(service, issuer.token()).status_code == 200


def test_without_an_issuer_a_token_is_no_credential(settings: Settings, issuer: Issuer) -> None:
    with running(settings) as service:
        answer = get_me(service, issuer.token())
    assert (answer.status_code, answer.json()["type"]) == (401, "/problems/invalid-api-key")
    assert issuer.asked == []


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256", "ES256"])
def test_asymmetric_algorithms_are_taken(verifier: TokenVerifier, issuer: Issuer, algorithm: str) -> None:
    issuer.keys["ec-1"] = new_ec_key()
    token = issuer.token(key_id="ec-1" if algorithm == "ES256" else "rsa-1", algorithm=algorithm)
    assert verifier.verify(token).role is Role.OPERATOR


def unsigned(claims: dict[str, Any], header: dict[str, Any]) -> str:
    parts = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims))
    return b".".join([*parts, b""]).decode()


def test_no_other_algorithm_is_taken(verifier: TokenVerifier, issuer: Issuer) -> None:
    """Neither none at all, nor the issuer's public key as if it were a shared secret."""
    claims = jwt.decode(issuer.token(), options={"verify_signature": False})
    public = issuer.keys["rsa-1"].public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    forged = [
        unsigned(claims, {"alg": "none", "kid": "rsa-1"}),
        unsigned(claims, {"kid": "rsa-1"}),
        jwt.api_jws.PyJWS().encode(json.dumps(claims).encode(), "x" * 64, "HS256", {"kid": "rsa-1"}),
        jwt.api_jws.PyJWS().encode(
            json.dumps(claims).encode(), base64.b64encode(pem), "HS256", {"kid": "rsa-1"}
        ),
    ]
    for token in forged:
        with pytest.raises(UnauthenticatedError, match="is refused"):
            verifier.verify(token)


def test_a_published_shared_secret_is_no_key(verifier: TokenVerifier, issuer: Issuer) -> None:
    secret = base64.urlsafe_b64encode(b"s" * 64).rstrip(b"=").decode()
    issuer.published = [{"kty": "oct", "kid": "shared", "k": secret, "alg": "HS256"}]
    with pytest.raises(UnauthenticatedError):
        verifier.verify(issuer.token(key_id="shared", key="s" * 64, algorithm="HS256"))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        # Made when they are used, which may be hours after they were collected.
        (lambda: {"key": new_rsa_key()}, "Signature verification failed"),
        (lambda: {"aud": "another"}, "Audience doesn't match"),
        (lambda: {"aud": ["another"]}, "Audience doesn't match"),
        (lambda: {"without": ("aud",)}, 'missing the "aud" claim'),
        (lambda: {"iss": "https://elsewhere.example"}, "Invalid issuer"),
        (lambda: {"without": ("iss",)}, 'missing the "iss" claim'),
        (lambda: {"exp": time.time() - LEEWAY_SECONDS - 60}, "has expired"),
        (lambda: {"without": ("exp",)}, 'missing the "exp" claim'),
        (lambda: {"nbf": time.time() + 3600}, "not yet valid"),
        (lambda: {"without": ("sub",)}, 'missing the "sub" claim'),
        (lambda: {"key_id": "unknown", "key": new_rsa_key()}, "none of the issuer's"),
        (lambda: {"algorithm": "ES256", "key": new_ec_key()}, "refused"),
    ],
    ids=count(),
)
def test_a_token_that_is_not_valid_is_401_and_says_why(
    refusing: tuple[Running, Issuer], wrong: Callable[[], dict[str, Any]], reason: str
) -> None:
    service, issuer = refusing
    answer = get_me(service, issuer.token(**wrong()))
    assert (answer.status_code, answer.json()["type"]) == (401, "/problems/invalid-token")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert reason in answer.json()["detail"]


def test_clocks_may_be_apart_a_little(verifier: TokenVerifier, issuer: Issuer) -> None:
    late = issuer.token(exp=time.time() - 1)
    early = issuer.token(nbf=time.time() + LEEWAY_SECONDS / 2, iat=time.time() + LEEWAY_SECONDS / 2)
    assert verifier.verify(late) == verifier.verify(early)


def test_a_weak_key_signs_nothing(verifier: TokenVerifier, issuer: Issuer) -> None:
    issuer.keys["weak"] = new_rsa_key(1024)
    with pytest.warns(jwt.InsecureKeyLengthWarning):
        token = issuer.token(key_id="weak")
    with pytest.raises(UnauthenticatedError, match="below the minimum"):
        verifier.verify(token)


def test_a_token_without_a_key_id_is_taken_only_if_the_issuer_has_one_key(
    verifier: TokenVerifier, issuer: Issuer, time_passing: ManualTime
) -> None:
    token = issuer.token(key_id=None)
    assert verifier.verify(token).role is Role.OPERATOR
    issuer.keys["rsa-2"] = new_rsa_key()
    time_passing.pass_by(REFRESH_SECONDS + 1)
    with pytest.raises(UnauthenticatedError):
        verifier.verify(token)


@pytest.mark.parametrize(
    ("held", "role"),
    [
        (["lake-admins"], Role.ADMIN),
        (["spark"], Role.WORKER),
        (["readers", "unknown", "data-team"], Role.OPERATOR),
        (["spark", "readers"], Role.VIEWER),
        ("openid readers email", Role.VIEWER),
        (["a=b"], Role.VIEWER),
    ],
)
def test_the_highest_role_that_is_mapped_counts(
    verifier: TokenVerifier, issuer: Issuer, held: object, role: Role
) -> None:
    assert verifier.verify(issuer.token(roles=held)).role is role


def test_who_holds_nothing_that_is_mapped_has_no_role(service: Running, issuer: Issuer) -> None:
    """Nobody becomes an admin by a group that is called so: only the mapping counts."""
    anything: list[Any] = [[], ["admin"], "data-team-2", {"data-team": True}, None, 7, [["data-team"]]]
    for held in anything:
        answer = get_me(service, issuer.token(roles=held))
        assert (answer.status_code, answer.json()["type"]) == (403, "/problems/no-role"), held
        assert "none of it is mapped to a role" in answer.json()["detail"]
    entries = service.admin.get("/audit", params={"outcome": "denied"}).json()["items"]
    told = [(entry["principal"], entry["fields"]["reason"]) for entry in entries]
    assert told == [("oidc:user-17", "no-role")] * len(anything)


@pytest.mark.parametrize(
    ("claim", "claims"),
    [
        ("realm_access.roles", {"realm_access": {"roles": ["data-team"]}}),
        ("https://lake.example/roles", {"https://lake.example/roles": ["data-team"]}),
        ("groups", {"groups": "data-team"}),
    ],
)
def test_the_claims_of_role_and_name_are_settings(
    oidc_settings: Settings, issuer: Issuer, claim: str, claims: dict[str, Any]
) -> None:
    chosen = {"oidc_role_claim": claim, "oidc_name_claim": "email"}
    verifier = TokenVerifier(oidc_settings.model_copy(update=chosen))
    principal = verifier.verify(issuer.token(without=("roles",), **claims))
    assert (principal.name, principal.role) == ("oidc:user-17@example.org", Role.OPERATOR)
    with pytest.raises(ForbiddenError):
        verifier.verify(issuer.token())


def test_a_new_key_of_the_issuer_is_found_at_once(
    verifier: TokenVerifier, issuer: Issuer, time_passing: ManualTime
) -> None:
    verifier.verify(issuer.token())
    issuer.keys["rsa-2"] = new_rsa_key()
    time_passing.pass_by(PAUSE_SECONDS)
    assert verifier.verify(issuer.token(key_id="rsa-2")).role is Role.OPERATOR


def test_a_key_that_the_issuer_withdrew_is_refused_after_the_next_look(
    verifier: TokenVerifier, issuer: Issuer, time_passing: ManualTime
) -> None:
    token = issuer.token()
    verifier.verify(token)
    issuer.keys = {"rsa-2": new_rsa_key()}
    time_passing.pass_by(REFRESH_SECONDS + 1)
    with pytest.raises(UnauthenticatedError):
        verifier.verify(token)


def test_unknown_keys_do_not_make_us_ask_the_issuer_each_time(
    verifier: TokenVerifier, issuer: Issuer, time_passing: ManualTime
) -> None:
    verifier.verify(issuer.token())
    stranger = new_rsa_key()
    asked = len(issuer.asked)
    for number in range(50):
        with pytest.raises(UnauthenticatedError):
            verifier.verify(issuer.token(key_id=f"guess-{number}", key=stranger))
    assert len(issuer.asked) == asked
    time_passing.pass_by(PAUSE_SECONDS)
    for number in range(50):
        with pytest.raises(UnauthenticatedError):
            verifier.verify(issuer.token(key_id=f"guess-{number}", key=stranger))
    assert len(issuer.asked) == asked + 2


def test_many_tokens_at_once_ask_the_issuer_once(verifier: TokenVerifier, issuer: Issuer) -> None:
    token = issuer.token()
    with ThreadPoolExecutor(16) as pool:
        assert {principal.role for principal in pool.map(verifier.verify, [token] * 64)} == {Role.OPERATOR}
    assert len(issuer.asked) == 2


def test_an_issuer_that_is_down_is_503_and_not_401(service: Running, issuer: Issuer) -> None:
    issuer.is_down = True
    answer = get_me(service, issuer.token())
    assert (answer.status_code, answer.json()["type"]) == (503, "/problems/issuer-unavailable")
    assert int(answer.headers["retry-after"]) >= 1
    assert issuer.url in answer.json()["detail"]
    # Keys of the service's own need no issuer.
    assert get_me(service, ADMIN_KEY).status_code == 200


def test_while_the_issuer_is_down_known_keys_serve_for_a_while(
    verifier: TokenVerifier, issuer: Issuer, time_passing: ManualTime
) -> None:
    token = issuer.token()
    verifier.verify(token)
    issuer.is_down = True
    time_passing.pass_by(REFRESH_SECONDS + 1)
    assert verifier.verify(token).role is Role.OPERATOR
    with pytest.raises(IssuerUnreachableError):
        verifier.verify(issuer.token(key_id="new", key=new_rsa_key()))
    time_passing.pass_by(KEEP_SECONDS)
    with pytest.raises(IssuerUnreachableError):
        verifier.verify(token)
    asked = len(issuer.asked)
    with pytest.raises(IssuerUnreachableError):
        verifier.verify(token)
    assert len(issuer.asked) == asked, "it was asked a moment ago"
    issuer.is_down = False
    time_passing.pass_by(PAUSE_SECONDS)
    assert verifier.verify(token).role is Role.OPERATOR


@pytest.mark.parametrize(
    "document",
    [
        {"issuer": "https://elsewhere.example"},
        {"jwks_uri": None},
        {"jwks_uri": "ftp://127.0.0.1/keys"},
        {"jwks_uri": "not an address"},
    ],
)
def test_a_discovery_document_that_makes_no_sense_is_not_followed(
    verifier: TokenVerifier, issuer: Issuer, document: dict[str, Any]
) -> None:
    issuer.document |= document
    with pytest.raises(IssuerUnreachableError):
        verifier.verify(issuer.token())


@pytest.mark.parametrize("published", [[{"kid": "rsa-1"}], [{"kid": "rsa-1", "kty": "RSA", "n": "x"}], ["x"]])
def test_keys_that_make_no_sense_verify_nothing(
    verifier: TokenVerifier, issuer: Issuer, published: list[Any]
) -> None:
    issuer.published = published
    with pytest.raises(UnauthenticatedError):
        verifier.verify(issuer.token())


def test_a_key_for_encryption_verifies_nothing(verifier: TokenVerifier, issuer: Issuer) -> None:
    issuer.published = [public_jwk(issuer.keys["rsa-1"]) | {"kid": "rsa-1", "use": "enc"}]
    with pytest.raises(UnauthenticatedError):
        verifier.verify(issuer.token())


@pytest.mark.parametrize("token", ["..", "a.b.c", "e30.e30.", "e30.e30.e30", "bnVsbA.bnVsbA.bnVsbA"])
def test_what_only_looks_like_a_token_is_401(refusing: tuple[Running, Issuer], token: str) -> None:
    assert get_me(refusing[0], token).status_code == 401


def test_an_admin_of_the_issuer_is_enough_for_a_public_address(oidc_settings: Settings) -> None:
    public = {"host": "0.0.0.0", "bootstrap_key": None}
    prepare(oidc_settings.model_copy(update=public))
    no_admin = {"oidc_roles": {"readers": Role.VIEWER}}
    with pytest.raises(StartError, match="without any admin"):
        prepare(oidc_settings.model_copy(update=public | no_admin))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"ISSUER": "https://id.example"}, "ICESTREAM_OIDC_AUDIENCE and ICESTREAM_OIDC_ROLES are missing."),
        (
            {"ISSUER": "https://id.example", "AUDIENCE": "icestream"},
            "ICESTREAM_OIDC_ISSUER, ICESTREAM_OIDC_AUDIENCE, ICESTREAM_OIDC_ROLES belong together, and "
            "ICESTREAM_OIDC_ROLES is missing.",
        ),
        ({"ROLES": "a=admin", "AUDIENCE": "x"}, "ICESTREAM_OIDC_ISSUER is missing."),
        ({"ROLES": "team=boss"}, "ICESTREAM_OIDC_ROLES is not valid: 'boss' is no role; write value=role"),
        ({"ROLES": "admin"}, "ICESTREAM_OIDC_ROLES is not valid: 'admin' is no role"),
        ({"ISSUER": "http://id.example"}, "ICESTREAM_OIDC_ISSUER is not valid: an issuer is an https:// URL"),
    ],
)
def test_half_a_configuration_does_not_start(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], sentence: str
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(f"ICESTREAM_OIDC_{name}", value)
    monkeypatch.setattr(sys, "argv", ["icestream", "serve"])
    with pytest.raises(ValidationError):
        Settings()
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert sentence in str(stopped.value)
