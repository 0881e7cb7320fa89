"""Bearer tokens of an OpenID Connect issuer: signature, issuer, audience, times, and the role they stand for.

Invariant: a token is good only if a key that the issuer publishes has signed it, with an asymmetric algorithm
that fits the key. What can't be known because the issuer does not answer is 503, never a 401.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import jwt

from service.auth.models import Principal
from service.errors import ForbiddenError, IcestreamError, UnauthenticatedError
from service.records.api_keys import Role
from service.settings import Settings

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
LEEWAY_SECONDS = 30
"""How far the clocks of issuer and service may be apart."""
REFRESH_SECONDS = 600.0
"""A key that the issuer no longer publishes is refused after so long at the latest, if it answers."""
KEEP_SECONDS = 3600.0
"""For so long known keys serve while the issuer does not answer."""
PAUSE_SECONDS = 5.0
"""Between two questions to the issuer, whatever tokens come: unknown keys must not make us ask for each."""
_MAX_DOCUMENT_BYTES = 1024**2
# Of several roles the first here counts.
_PRECEDENCE = (Role.ADMIN, Role.OPERATOR, Role.VIEWER, Role.WORKER)
_log = logging.getLogger("icestream.oidc")


class IssuerUnreachableError(IcestreamError):
    """The issuer's keys cannot be had now; the same call succeeds later."""

    status = 503


class TokenVerifier:
    """Verifies the tokens of one issuer; safe to use from many threads."""

    def __init__(self, settings: Settings, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._issuer, self._audience = settings.oidc_issuer, settings.oidc_audience
        self._role_claim, self._name_claim = settings.oidc_role_claim, settings.oidc_name_claim
        self._roles = settings.oidc_roles
        self._monotonic = monotonic
        self._decoder = jwt.PyJWT({"enforce_minimum_key_length": True})
        self._asking = threading.Lock()
        self._keys: dict[str | None, dict[str, Any]] = {}
        self._fetched_at: float | None = None
        self._asked_at: float | None = None
        self._failure = ""

    def verify(self, token: str) -> Principal:
        """Whose token this is.

        Raises UnauthenticatedError for one that is not valid, ForbiddenError for one that stands for no role,
        IssuerUnreachableError if the issuer's keys cannot be had.
        """
        try:
            header = jwt.get_unverified_header(token)
            algorithm = header.get("alg")
            if algorithm not in ALGORITHMS:
                raise jwt.InvalidAlgorithmError(f"it is signed with {algorithm!r}")
            claims = self._decoder.decode(
                token,
                jwt.PyJWK(self._find_key(header.get("kid")), algorithm),
                algorithms=[algorithm],
                audience=self._audience,
                issuer=self._issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except (jwt.PyJWTError, TypeError, ValueError) as error:
            raise _invalid_token(str(error) or type(error).__name__) from error
        return self._principal(claims)

    def _principal(self, claims: dict[str, Any]) -> Principal:
        subject = str(claims["sub"])
        name = f"oidc:{claims.get(self._name_claim) or subject}"
        held = _values(claims, self._role_claim)
        roles = {self._roles[value] for value in held if value in self._roles}
        for role in _PRECEDENCE:
            if role in roles:
                return Principal("oidc", f"{self._issuer}#{subject}", name, role)
        words = ", ".join(repr(value) for value in held[:20]) or "nothing"
        raise ForbiddenError(
            "no-role",
            f"{name} holds {words} in the claim {self._role_claim!r}, and none of it is mapped to a role.",
            principal=name,
        )

    def _find_key(self, key_id: object) -> dict[str, Any]:
        """The key with this id; for a token that names none, the only key. Raises PyJWTError without one."""
        keys = self._current_keys()
        if key_id is not None and key_id not in keys:
            # Perhaps the issuer has a new key since it was asked.
            keys = self._refresh(wait=True)
        if isinstance(key_id, str) and key_id in keys:
            return keys[key_id]
        if key_id is None and len(keys) == 1:
            return next(iter(keys.values()))
        raise jwt.InvalidKeyError(f"its key {key_id!r} is none of the issuer's")

    def _current_keys(self) -> dict[str | None, dict[str, Any]]:
        age = self._age()
        if age is None or age > KEEP_SECONDS:
            return self._refresh(wait=True)
        if age > REFRESH_SECONDS:
            return self._refresh(wait=False)
        return self._keys

    def _refresh(self, *, wait: bool) -> dict[str | None, dict[str, Any]]:
        """Ask the issuer, unless it was asked a moment ago; `wait` for another thread that is asking.

        Raises IssuerUnreachableError if it did not answer when it was asked last, and the keys known before
        are too old or not the ones that are looked for (`wait`).
        """
        if self._asking.acquire(blocking=wait):
            try:
                now = self._monotonic()
                if self._asked_at is None or now - self._asked_at >= PAUSE_SECONDS:
                    self._ask()
            finally:
                self._asking.release()
        if self._failure and wait:
            raise IssuerUnreachableError(
                "issuer-unavailable",
                f"The keys of {self._issuer} cannot be had: {self._failure}.",
                "Try again in some seconds, or use an API key.",
            )
        return self._keys

    def _ask(self) -> None:
        try:
            keys = _fetch_keys(self._issuer)
        except (httpx.HTTPError, ValueError) as error:
            self._failure = str(error) or type(error).__name__
            _log.warning("%s does not tell its keys: %s", self._issuer, self._failure)
        else:
            self._keys, self._failure = keys, ""
            self._fetched_at = self._monotonic()
        self._asked_at = self._monotonic()

    def _age(self) -> float | None:
        return None if self._fetched_at is None else self._monotonic() - self._fetched_at


def looks_like_token(credential: str) -> bool:
    """Whether a bearer credential is a signed token, and so no API key."""
    if credential.count(".") != 2:
        return False
    try:
        jwt.get_unverified_header(credential)
    except jwt.PyJWTError:
        return False
    return True


def _fetch_keys(issuer: str) -> dict[str | None, dict[str, Any]]:
    """The issuer's public keys for signatures, by id. Raises HTTPError, or ValueError for an odd document."""
    with httpx.Client(timeout=5, follow_redirects=False) as client:
        document = _get(client, f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if document.get("issuer") != issuer:
            raise ValueError(f"its discovery document is of the issuer {document.get('issuer')!r}")
        address = document.get("jwks_uri")
        if not isinstance(address, str):
            raise ValueError("its discovery document names no jwks_uri")
        if httpx.URL(address).scheme != httpx.URL(issuer).scheme:
            raise ValueError(f"its keys are at {address}, which is not as safe as the issuer")
        keys = _get(client, address).get("keys")
    if not isinstance(keys, list):
        raise ValueError(f"{address} holds no keys")
    return {
        key.get("kid"): key
        for key in keys
        if isinstance(key, dict) and key.get("kty") != "oct" and key.get("use", "sig") == "sig"
    }


def _get(client: httpx.Client, address: str) -> dict[str, Any]:
    with client.stream("GET", address) as answer:
        if answer.status_code != 200:
            raise ValueError(f"{address} answered {answer.status_code}")
        content = b""
        for part in answer.iter_bytes():
            content += part
            if len(content) > _MAX_DOCUMENT_BYTES:
                raise ValueError(f"{address} answered with more than {_MAX_DOCUMENT_BYTES:,} bytes")
    document = httpx.Response(200, content=content).json()
    if not isinstance(document, dict):
        raise ValueError(f"{address} answered with no object")
    return document


def _values(claims: dict[str, Any], claim: str) -> list[str]:
    """What a claim holds: a list, or words with spaces in between; `a.b` is also found as b within a."""
    found: Any = claims.get(claim)
    if found is None:
        found = claims
        for part in claim.split("."):
            found = found.get(part) if isinstance(found, dict) else None
    if isinstance(found, str):
        return found.split()
    return [value for value in found if isinstance(value, str)] if isinstance(found, list) else []


def _invalid_token(reason: str) -> UnauthenticatedError:
    return UnauthenticatedError("invalid-token", f"It is refused: {reason}.")
