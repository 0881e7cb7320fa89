"""Settings of the service, from `ICESTREAM_*` environment variables.

Whatever is derived (the default database, index warehouse and allowed locations) is derived here,
so that no other module invents a default.
"""

import ipaddress
from functools import cached_property
from pathlib import Path
from typing import Annotated, Self

from fastapi import Depends, Request
from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from service.errors import StartError
from service.locations import can_hold_index, is_under, normalize_location

MIN_KEY_CHARACTERS = 32


class Settings(BaseSettings):
    """Every setting has the environment variable `ICESTREAM_` + its name in upper case."""

    model_config = SettingsConfigDict(env_prefix="ICESTREAM_", extra="ignore")

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    data_dir: Path = Path("icestream-data")
    database_url: str = ""
    """SQLAlchemy URL; empty means `icestream.db` in the data directory."""
    index_warehouse: str = ""
    """Where indexes go unless their catalog says otherwise; empty means `index/` in the data directory."""
    allowed_locations: Annotated[tuple[str, ...], NoDecode] = ()
    """URI prefixes that catalogs, tables and indexes may name beyond the data directory."""
    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = ()
    """Addresses and networks whose X-Forwarded-For and X-Forwarded-Proto are believed."""
    bootstrap_key: SecretStr | None = None
    """The first admin API key."""
    bootstrap_worker_key: SecretStr | None = None
    """The first key of the role `worker`, so that workers can be deployed together with the service."""

    poll_interval_seconds: float = Field(default=10, gt=0)
    lease_seconds: float = Field(default=30, gt=0)
    scheduler_interval_seconds: float = Field(default=1, gt=0)
    background: bool = True
    """False: this replica polls no catalogs and schedules nothing."""
    poller_threads: int = Field(default=8, ge=1)
    polls_per_catalog: int = Field(default=4, ge=1)
    """At most this many tables of one catalog are polled at a time."""
    session_hours: float = Field(default=12, gt=0)
    history_days: float = Field(default=30, gt=0)
    """How long health samples are kept."""
    job_history_days: float = Field(default=90, ge=2)
    """How long ended jobs are kept, with their attempts and events, and the events of tables."""
    audit_history_days: float = Field(default=400, gt=0)
    """How long audit entries are kept."""
    answer_days: float = Field(default=7, gt=0)
    """How long a request with an Idempotency-Key may be repeated."""

    @field_validator("allowed_locations", "trusted_proxies", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return (
            tuple(part.strip() for part in value.split(",") if part.strip())
            if isinstance(value, str)
            else value
        )

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

    @field_validator("index_warehouse")
    @classmethod
    def _check_store(cls, value: str) -> str:
        if value and not can_hold_index(value):
            raise ValueError("an index can lie on a file system, S3 or Google Cloud Storage only")
        return value

    @model_validator(mode="after")
    def _derive(self) -> Self:
        self.data_dir = self.data_dir.expanduser().absolute()
        if not self.database_url:
            self.database_url = f"sqlite:///{self.data_dir / 'icestream.db'}"
        if not self.index_warehouse:
            self.index_warehouse = f"file://{self.data_dir / 'index'}"
        return self

    @cached_property
    def location_roots(self) -> tuple[str, ...]:
        """Normalised places that catalogs, tables and indexes may lie under."""
        roots = (str(self.data_dir), self.index_warehouse, *self.allowed_locations)
        return tuple(normalize_location(root) for root in roots)

    def allows_location(self, location: str) -> bool:
        return any(is_under(location, root) for root in self.location_roots)

    @property
    def is_public(self) -> bool:
        """Whether the bind address can be reached from other machines."""
        if self.host == "localhost":
            return False
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return True

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


def _get_settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


CurrentSettings = Annotated[Settings, Depends(_get_settings)]
