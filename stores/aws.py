"""AWS's credentials: those of a record, or else those of this machine, found by botocore in one order.

Every library of AWS has a chain of its own, and no two are alike. So what speaks to AWS from Python is handed
what is found here, and again when that was renewed. Where credentials are asked for (STS, the service of the
container or of the instance) is up to the environment: no record and no catalog names it.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # it takes a while, and nobody with keys of a record needs it
    from botocore.credentials import Credentials
    from botocore.session import Session

S3_SCHEMES = frozenset(("s3", "s3a", "s3n"))

_KEPT_SECONDS = 60.0
"""For which what nothing renews is not looked for again: by then, its file may have others."""
_MISSED_SECONDS = 5.0
"""For which none are looked for after none were found, which takes a second or more."""
_REMEDY = (
    "Give the record keys (`client.access-key-id`, `client.secret-access-key`) or this machine an identity: "
    "AWS_ACCESS_KEY_ID, a web identity, a profile, or the role of its container or instance. "
    "docs/deployment.md says what is tried in which order."
)


class CredentialsError(OSError):
    """There are no credentials, or what gives them refuses or does not answer; a retry can help."""

    def __init__(self, detail: str, remedy: str = _REMEDY) -> None:
        super().__init__(f"{detail} {remedy}")
        self.detail, self.remedy = detail, remedy


class Keys(NamedTuple):
    """As botocore names them. token: of a session."""

    access_key: str
    secret_key: str
    token: str | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks: keys of a record or else this machine, perhaps as a profile, perhaps in a role."""

    own_keys: Keys | None = field(default=None, repr=False)
    profile: str | None = None
    role: str | None = None
    role_session: str | None = None
    external_id: str | None = field(default=None, repr=False)
    region: str | None = None

    @staticmethod
    def of(properties: Mapping[str, Any], service: str) -> Identity:
        """As a record says it for a service (`s3`, `glue`, `rest`), or else for all of them (`client`).

        Keys that belong together have the same prefix. Roles may be spelled as in PyIceberg or in Iceberg's
        Java.
        """

        def first(*names: str) -> str | None:
            return next((properties[name] for name in names if properties.get(name)), None)

        keyed = service if properties.get(f"{service}.access-key-id") else "client"
        key_id, secret = (first(f"{keyed}.{name}") for name in ("access-key-id", "secret-access-key"))
        return Identity(
            Keys(key_id, secret, first(f"{keyed}.session-token")) if key_id and secret else None,
            first(f"{service}.profile-name", "client.profile-name"),
            first(f"{service}.role-arn", "client.role-arn", "client.assume-role.arn"),
            first(
                f"{service}.role-session-name", "client.role-session-name", "client.assume-role.session-name"
            ),
            first("client.assume-role.external-id"),
            first(f"{service}.region", "client.region"),
        )

    def keys(self) -> Keys:
        """What is good now, and for some minutes. Raises CredentialsError."""
        if self.own_keys is not None:
            if self.role is not None:
                raise CredentialsError(
                    "The record has keys and a role.",
                    "Take one of them out: a role is assumed by the identity of this machine. One for S3 "
                    "beside keys for the catalog alone is `s3.role-arn`.",
                )
            return self.own_keys
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            found = _found(self)
            frozen = found and found.get_frozen_credentials()
        except (BotoCoreError, ClientError) as error:
            _forget(self)  # what they are renewed by may be another by now
            words = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")[:400]
            raise CredentialsError(f"AWS's credentials could not be had: {words}.") from None
        if not frozen:
            raise CredentialsError("There are no credentials of AWS here.")
        return Keys(*frozen[:3])

    def region_of_machine(self) -> str | None:
        """The one that the record names, or else this machine does."""
        return self.region or os.environ.get("AWS_REGION") or _session(self).get_config_variable("region")

    def session(self) -> Session:
        """Of botocore, whose clients ask as this one. Raises CredentialsError."""
        session = _session(self)
        if self.own_keys is None:
            self.keys()
            session._credentials = _found(self)
        else:
            session.set_credentials(*self.keys())
        return session


_Asker = tuple[Identity, tuple[tuple[str, str], ...]]
"""With the environment in which it asks."""
_kept: dict[_Asker, tuple[float, Credentials | None]] = {}
_looking: dict[_Asker, threading.Lock] = {}


def _found(identity: Identity) -> Credentials | None:
    """Whoever asks as the same shares what is renewed."""
    environment = tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith("AWS_") or k == "HOME"))
    asker = identity, environment
    if (kept := _still_kept(asker)) is None:
        with _looking.setdefault(asker, threading.Lock()):  # threads that begin together look once
            kept = _still_kept(asker) or _keep(asker, _look_for(identity))
    return kept[1]


def _still_kept(asker: _Asker) -> tuple[float, Credentials | None] | None:
    kept = _kept.get(asker)
    return kept if kept is not None and time.monotonic() < kept[0] else None


def _keep(asker: _Asker, found: Credentials | None) -> tuple[float, Credentials | None]:
    from botocore.credentials import RefreshableCredentials

    kept_seconds = _KEPT_SECONDS if found else _MISSED_SECONDS
    is_renewed = isinstance(found, RefreshableCredentials)
    _kept[asker] = kept = math.inf if is_renewed else time.monotonic() + kept_seconds, found
    return kept


def _forget(identity: Identity) -> None:
    for known in [each for each in _kept if each[0] == identity]:
        _kept.pop(known, None)


def _look_for(identity: Identity) -> Credentials | None:
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials

    session = _session(identity)
    source = session.get_credentials()
    if identity.role is None or source is None:
        return source
    extra = {"RoleSessionName": identity.role_session, "ExternalId": identity.external_id}
    given = {name: value for name, value in extra.items() if value}
    fetcher = AssumeRoleCredentialFetcher(session.create_client, source, identity.role, given)
    return DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")


def _session(identity: Identity) -> Session:
    from botocore.config import Config
    from botocore.session import Session

    session = Session(profile=identity.profile)
    # Of what gives credentials; who asks for more sets bounds of its own.
    retries = {"total_max_attempts": 3, "mode": "standard"}
    session.set_default_client_config(Config(connect_timeout=5, read_timeout=10, retries=retries))
    if region := identity.region or os.environ.get("AWS_REGION"):
        session.set_config_variable("region", region)
    # Before the profile, as Java has it.
    chain = session.get_component("credential_provider")
    for provider in [one for one in chain.providers if one.METHOD == "assume-role-with-web-identity"]:
        chain.remove(provider.METHOD)
        chain.insert_before("assume-role", provider)
    return session
