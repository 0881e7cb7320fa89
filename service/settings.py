"""Settings of the service, from `ICESTREAM_*` environment variables.

Whatever is derived (the default database, index warehouse and allowed locations) is derived here,
so that no other module invents a default.
"""

import ipaddress
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from fastapi import Depends, Request
from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from service.db.control_database import files_of, is_database_of
from service.errors import StartError
from service.records.api_keys import Role
from telemetry.logs import LogFormat
from trust.egress import Egress
from trust.locations import (
    AmbiguousLocationError,
    Places,
    can_hold_index,
    is_any_azure_account,
    parse_location,
)
from trust.secrets import is_own_setting, may_read

MIN_KEY_CHARACTERS = 32


class Settings(BaseSettings):
    """Every setting has the environment variable `ICESTREAM_` + its name in upper case."""

    model_config = SettingsConfigDict(env_prefix="ICESTREAM_", extra="ignore", use_attribute_docstrings=True)

    host: str = "127.0.0.1"
    """The address to listen at. A public one needs an admin: by a key, or by OpenID Connect."""
    port: int = Field(default=8000, ge=0, le=65535)
    """The port to listen at; 0 takes a free one."""
    data_dir: Path = Path("icestream-data")
    """The directory of everything that is kept locally."""
    database_url: str = ""
    """The control database: `postgresql+psycopg://user:password@host/name`, or SQLite's. Without it, it is
    `icestream.db` in the data directory."""
    index_warehouse: str = ""
    """Where indexes go, unless their catalog says otherwise: a file system, S3, Google Cloud Storage or Azure
    (`abfss`). Without it, they go to `index/` in the data directory."""
    allowed_locations: Annotated[tuple[str, ...], NoDecode] = ()
    """URI prefixes that catalogs, tables and indexes may name beyond the data directory and the index
    warehouse, with commas in between."""
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """Hosts that catalogs and webhooks may connect to: names, `*.domain`, addresses and networks, with commas
    in between; `*` is every address that is not internal to a machine. Without it, it is `*`, and loopback
    too if only this machine is served."""
    allowed_secrets: Annotated[tuple[str, ...], NoDecode] = ()
    """Beginnings of the references that catalogs may use, such as `env:LAKE_` or `file:/run/secrets/lake`,
    with commas in between. Without it, it is `env:CATALOG_`, and whatever this user can read if only this
    machine is served."""
    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = ()
    """Addresses and networks, with commas in between, whose `X-Forwarded-For` and `X-Forwarded-Proto` are
    believed."""
    bootstrap_key: SecretStr | None = None
    """The first admin API key, of 32 characters or more."""
    bootstrap_worker_key: SecretStr | None = None
    """The first key of the role `worker`, so that workers can be deployed together with the service."""

    requests_per_minute: int = Field(default=6000, ge=0)
    """How many requests one caller may make in a minute; workers are not counted. 0 is no limit."""
    failed_logins_per_minute: int = Field(default=20, ge=0)
    """How many wrong credentials may come from one address in a minute. 0 is no limit."""
    oidc_issuer: str = ""
    """The OpenID Connect issuer whose tokens are taken, exactly as it calls itself. Without it, only API keys
    are."""
    oidc_audience: str = ""
    """What the `aud` of a token must name."""
    oidc_roles: Annotated[dict[str, Role], NoDecode] = {}
    """Which role a value of the role claim stands for, as in `lake-admins=admin,data-team=operator`."""
    oidc_role_claim: str = Field(default="roles", min_length=1)
    """The claim that tells roles, such as `realm_access.roles`, `groups` or `scope`."""
    oidc_name_claim: str = Field(default="sub", min_length=1)
    """The claim by which the audit log calls the holder of a token."""

    log_format: LogFormat = "text"
    """How each line of the log is written: `text`, or `json` for an object each line."""
    log_requests: bool = False
    """Whether each request is a line of the log, except those of probes."""
    poll_interval_seconds: float = Field(default=10, gt=0)
    """How often a table's catalog is asked; `icestream demo` takes 2 unless it is set. Where each table costs
    a request, quiet ones wait up to twelve times as long."""
    lease_seconds: float = Field(default=30, gt=0)
    """A worker that sends no heartbeat for this long loses its job."""
    scheduler_interval_seconds: float = Field(default=1, gt=0)
    """How often the service looks for what is due: polls, patterns, lost jobs and webhooks."""
    background: bool = True
    """Whether this replica does what is due. With `false`, it only answers requests."""
    lookup_url: str = ""
    """Where lookup servers answer, such as `http://icestream-lookup:8020`. Without it, nobody can ask for
    keys."""
    lookup_token: SecretStr | None = Field(default=None, min_length=16)
    """What the service shows its lookup servers, of 16 characters or more."""
    lookup_keys_per_minute: int = Field(default=600_000, ge=0)
    """How many keys one caller may ask about in a minute, of each replica of the service. A call of more keys
    counts as a minute's. 0 is no limit."""
    erasure_secret: SecretStr | None = Field(default=None, min_length=32)
    """The secret that turns erased keys into keyed hashes, of 32 characters or more: with it, one can tell
    whether a receipt is about a key. Without it and the next one, nothing can be erased."""
    receipt_secret: SecretStr | None = None
    """What signs the receipts of erasures, as webhooks are signed: `whsec_` and 24 to 64 bytes in base64.
    Several, separated by spaces, all sign."""
    catalog_timeout_seconds: float = Field(default=30, gt=0)
    """How long a catalog may let the service wait between two bytes of an answer. All that a request asks of
    it may take four times as long, and a poll twenty times."""
    pattern_interval_seconds: float = Field(default=60, gt=0)
    """How often a standing pattern is compared with its catalog; each time it enrols 50 tables at most."""
    polls_per_catalog: int = Field(default=4, ge=1)
    """How many tables of one catalog are polled at a time; other catalogs don't wait for them."""
    max_tasks_per_job: int = Field(default=0, ge=0)
    """How many tasks a policy may let a job run at a time; 0 is any number."""
    max_memory_fraction: float = Field(default=1, ge=1 / 64, le=1)
    """The share of what a job usually holds in memory that a policy may let it hold."""
    webhook_timeout_seconds: float = Field(default=10, gt=0)
    """How long the receiver of a webhook may take to answer."""
    webhook_attempts: int = Field(default=12, ge=1)
    """A delivery is given up after this many attempts: by default, a bit more than a day after the event."""
    webhook_pause_seconds: float = Field(default=5, gt=0)
    """The pause before the second attempt. Each further one is three times as long, six hours at most."""
    webhook_history_days: float = Field(default=30, gt=0)
    """How long deliveries are kept, also those that wait for a webhook that is switched off."""
    session_hours: float = Field(default=12, gt=0)
    """After how long a browser has to sign in again."""
    fine_history_days: float = Field(default=2, gt=0)
    """How long every health sample of a table is kept."""
    history_days: float = Field(default=30, gt=0)
    """How long the last sample of each hour is kept, and the progress of jobs."""
    daily_history_days: float = Field(default=730, gt=0)
    """How long the last sample of each day is kept."""
    job_history_days: float = Field(default=90, ge=2)
    """How long ended jobs are kept, with their attempts and events, and the events of tables."""
    audit_history_days: float = Field(default=400, gt=0)
    """How long audit entries are kept."""
    answer_days: float = Field(default=7, gt=0)
    """How long a request with an `Idempotency-Key` may be repeated."""

    @field_validator(
        "allowed_locations", "allowed_hosts", "allowed_secrets", "trusted_proxies", mode="before"
    )
    @classmethod
    def _split(cls, value: object) -> object:
        return (
            tuple(part.strip() for part in value.split(",") if part.strip())
            if isinstance(value, str)
            else value
        )

    @field_validator("allowed_locations")
    @classmethod
    def _check_roots(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for root in value:
            if is_any_azure_account(root):
                raise ValueError(
                    f"{root!r} would let whoever names a location choose the host that gets the credentials; "
                    "write abfss://container@account.dfs.core.windows.net"
                )
            _check_place(root)
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _check_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for part in value:
            try:
                ipaddress.ip_network(part)
            except ValueError as error:
                raise ValueError(
                    f"{part!r} is neither an address nor a network such as 10.0.0.0/8"
                ) from error
        return value

    @field_validator("allowed_secrets")
    @classmethod
    def _check_references(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for rule in value:
            if not rule.startswith(("env:", "file:/")):
                raise ValueError(f"{rule!r} is neither env:NAME nor file:/directory")
            if rule.startswith("file:/"):
                _check_place(rule)
        return value

    @field_validator("index_warehouse")
    @classmethod
    def _check_store(cls, value: str) -> str:
        if value:
            _check_place(value)
        if value and not can_hold_index(value):
            raise ValueError(
                "an index can lie on a file system, S3, Google Cloud Storage or Azure (abfss) only, and in no"
                " bucket of S3 Tables"
            )
        return value

    @field_validator("oidc_roles", mode="before")
    @classmethod
    def _split_roles(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        pairs = [part.strip().rpartition("=") for part in value.split(",") if part.strip()]
        if wrong := [word for group, _, word in pairs if not group or word.strip() not in list(Role)]:
            raise ValueError(
                f"{wrong[0].strip()!r} is no role; write value=role with commas in between, such as "
                f"data-team=operator, where a role is one of {', '.join(Role)}"
            )
        return {group.strip(): Role(word.strip()) for group, _, word in pairs}

    @field_validator("oidc_issuer")
    @classmethod
    def _check_issuer(cls, value: str) -> str:
        parts = urlsplit(value)
        if (
            value
            and parts.scheme != "https"
            and not (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost"))
        ):
            raise ValueError("an issuer is an https:// URL, since its keys decide who gets in")
        return value

    @model_validator(mode="after")
    def _check_oidc(self) -> Self:
        needed = {
            "ICESTREAM_OIDC_ISSUER": self.oidc_issuer,
            "ICESTREAM_OIDC_AUDIENCE": self.oidc_audience,
            "ICESTREAM_OIDC_ROLES": self.oidc_roles,
        }
        missing = [name for name, value in needed.items() if not value]
        if 0 < len(missing) < len(needed):
            raise ValueError(
                f"{', '.join(needed)} belong together, and {' and '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} missing"
            )
        return self

    @model_validator(mode="after")
    def _check_lookup_servers(self) -> Self:
        if self.lookup_url and not self.lookup_url.startswith(("http://", "https://")):
            raise ValueError(f"ICESTREAM_LOOKUP_URL {self.lookup_url!r} is no URL of http or https")
        if self.lookup_url and self.lookup_token is None:
            raise ValueError("ICESTREAM_LOOKUP_URL needs the servers' ICESTREAM_LOOKUP_TOKEN as well")
        self.lookup_url = self.lookup_url.rstrip("/")
        return self

    @model_validator(mode="after")
    def _derive(self) -> Self:
        self.data_dir = self.data_dir.expanduser().absolute()
        if ".." in self.data_dir.parts:
            self.data_dir = self.data_dir.resolve()
        if not self.database_url:
            self.database_url = f"sqlite:///{self.data_dir / 'icestream.db'}"
        if not self.index_warehouse:
            self.index_warehouse = f"file://{self.data_dir / 'index'}"
        return self

    @staticmethod
    def default_data_dir() -> Path:
        """Where everything is kept unless somebody says otherwise."""
        return Path(Settings.model_fields["data_dir"].default).absolute()

    @property
    def location_roots(self) -> tuple[str, ...]:
        """Places that catalogs, tables and indexes may lie under.

        Of the data directory, a service that others can reach gives only what it keeps there for catalogs.
        """
        own = ("warehouse", "catalog.db") if self.is_public else (".",)
        return (
            *(str(self.data_dir / name) for name in own),
            self.index_warehouse,
            *self.allowed_locations,
        )

    @property
    def places(self) -> Places:
        """Where catalogs, tables and indexes may lie."""
        return Places(self.location_roots, self.own_files)

    @cached_property
    def own_files(self) -> tuple[str, ...]:
        """Files and folders that are no catalog's, nor a secret of one: the control database, wherever it
        lies, and what the service writes for itself."""
        return (
            *files_of(self.database_url),
            *(str(self.data_dir / name) for name in ("cache", "lock", "logs", "secrets")),
        )

    def is_control_database(self, uri: str, *, resolve: bool = False) -> bool:
        """Whether a uri names the PostgreSQL database that the service keeps its own tables in.

        resolve: also by another name of its host, for which name servers are asked.
        """
        return is_database_of(self.database_url, uri, resolve=resolve)

    @property
    def host_rules(self) -> tuple[str, ...]:
        """In lower case."""
        default = ("*",) if self.is_public else ("*", "127.0.0.0/8", "::1")
        return tuple(rule.lower() for rule in self.allowed_hosts or default)

    @property
    def egress(self) -> Egress:
        """The hosts that catalogs and webhooks may connect to."""
        return Egress(self.host_rules)

    def allows_secret(self, reference: str) -> bool:
        """Whether a catalog may refer to this."""
        return not is_own_setting(reference) and may_read(reference, self.secret_rules)

    @property
    def secret_rules(self) -> tuple[str, ...]:
        """Beginnings of references that catalogs may use."""
        return self.allowed_secrets or (("env:CATALOG_",) if self.is_public else ("env:", "file:/"))

    @property
    def is_public(self) -> bool:
        """Whether the bind address can be reached from other machines."""
        return not _is_loopback(self.host)

    def check_bootstrap_keys(self) -> None:
        """Raise StartError if one of the first keys is too weak, or both are the same."""
        keys = (
            ("ICESTREAM_BOOTSTRAP_KEY", self.bootstrap_key),
            ("ICESTREAM_BOOTSTRAP_WORKER_KEY", self.bootstrap_worker_key),
        )
        for name, key in keys:
            if key is not None and len(key.get_secret_value()) < MIN_KEY_CHARACTERS:
                raise StartError(
                    f"{name} has {len(key.get_secret_value())} characters; it needs at least "
                    f"{MIN_KEY_CHARACTERS}. Make one with: "
                    "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
                )
        if self.bootstrap_key is not None and self.bootstrap_key == self.bootstrap_worker_key:
            raise StartError(
                "ICESTREAM_BOOTSTRAP_KEY and ICESTREAM_BOOTSTRAP_WORKER_KEY are the same; "
                "workers need a key of their own, since that of an admin may do anything."
            )


@cache  # each claim asks
def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_place(location: str) -> None:
    try:
        parse_location(location)
    except AmbiguousLocationError as error:
        raise ValueError(str(error)) from None


async def _get_settings(request: Request) -> Settings:
    # Not async, each request would wait for a thread.
    settings: Settings = request.app.state.settings
    return settings


CurrentSettings = Annotated[Settings, Depends(_get_settings)]
