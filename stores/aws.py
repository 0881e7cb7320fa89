"""AWS's credentials: those of a record, or else those of this machine, found by botocore in one order.

Every program of AWS has a chain of its own, and no two are alike. So what speaks to AWS from Python is handed
what is found here, and renewed before it ends. Where credentials are asked for (STS, the container's or the
instance's service) is up to the environment: no record and no catalog names it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from botocore.config import Config
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    Credentials,
    DeferredRefreshableCredentials,
    ReadOnlyCredentials,
    RefreshableCredentials,
)
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session

if TYPE_CHECKING:
    from botocore.credentials import CredentialResolver

_CLIENT = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 3, "mode": "standard"})
"""Of what gives credentials."""
_KEPT_SECONDS = 60.0
"""For which what nothing renews is not looked for again: by then, its file may have others."""
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


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks: keys of a record or else this machine, perhaps as a profile, perhaps in a role."""

    key_id: str | None = None
    secret: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
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

        keyed = next((one for one in (service, "client") if properties.get(f"{one}.access-key-id")), "client")
        return Identity(
            first(f"{keyed}.access-key-id"),
            first(f"{keyed}.secret-access-key"),
            first(f"{keyed}.session-token"),
            first(f"{service}.profile-name", "client.profile-name"),
            first(f"{service}.role-arn", "client.role-arn", "client.assume-role.arn"),
            first(
                f"{service}.role-session-name", "client.role-session-name", "client.assume-role.session-name"
            ),
            first("client.assume-role.external-id"),
            first(f"{service}.region", "client.region"),
        )

    def keys(self) -> ReadOnlyCredentials:
        """What is good now: `access_key`, `secret_key`, of a session `token`. Raises CredentialsError."""
        if self.role is None and self.key_id and self.secret:
            return ReadOnlyCredentials(self.key_id, self.secret, self.token)
        try:
            found = _found(self)
            keys: ReadOnlyCredentials | None = found and found.get_frozen_credentials()
        except (BotoCoreError, ClientError) as error:
            raise CredentialsError(f"AWS's credentials could not be had: {_words(error)}.") from None
        if keys is None:
            raise CredentialsError("There are no credentials of AWS here.")
        return keys

    def region_of_machine(self) -> str | None:
        """The one that the record names, or else this machine does."""
        return self.region or os.environ.get("AWS_REGION") or _session(self).get_config_variable("region")


_lock = threading.Lock()
_kept: dict[tuple[Identity, tuple[tuple[str, str], ...]], tuple[float, Credentials]] = {}


def _found(identity: Identity) -> Credentials | None:
    """Of all that ask as the same, one is renewed for all."""
    environment = tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith("AWS_") or k == "HOME"))
    with _lock:
        at, found = _kept.get((identity, environment), (0.0, None))
        if not isinstance(found, RefreshableCredentials) and time.monotonic() > at + _KEPT_SECONDS:
            found = None
        if found is None and (found := _look_for(identity)) is not None:
            _kept[identity, environment] = (time.monotonic(), found)
        return found


def _look_for(identity: Identity) -> Credentials | None:
    session = _session(identity)
    if identity.key_id and identity.secret:
        source = Credentials(identity.key_id, identity.secret, identity.token)
    else:
        source = session.get_credentials()
    if identity.role is None or source is None:
        return source
    extra = {"RoleSessionName": identity.role_session, "ExternalId": identity.external_id}
    fetcher = AssumeRoleCredentialFetcher(
        session.create_client, source, identity.role, {name: value for name, value in extra.items() if value}
    )
    return DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")


def _session(identity: Identity) -> Session:
    session = Session(profile=identity.profile)
    session.set_default_client_config(_CLIENT)
    if region := identity.region or os.environ.get("AWS_REGION"):
        session.set_config_variable("region", region)
    chain: CredentialResolver = session.get_component("credential_provider")
    # Before the profile, as Java has it.
    methods = {provider.METHOD: provider for provider in chain.providers}
    if (web_identity := methods.get("assume-role-with-web-identity")) is not None:
        chain.remove(web_identity.METHOD)
        chain.insert_before("assume-role", web_identity)
    return session


def _words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")[:400]
