"""What the answers of a REST catalog may decide, and what its record alone decides.

A catalog tells its clients where to go and by what: another address of itself, a server for tokens, endpoints
of stores, credentials. Here each answer is taken apart before PyIceberg or Java sees it. What is not named
below is left out, and what the record holds goes only where the record says.

The settings of files that a catalog gives for all tables are handed on with each table, where it is known
whose credentials would be used with them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trust.egress import origin

SESSION_END = "s3.session-token-expires-at-ms"
"""When keys of S3 that a catalog vends are over, in ms since the epoch."""
GIVE_AS_URI = "If that is where the catalog is, give it as `uri`."
_SESSIONS = (
    ("s3.session-token", SESSION_END),
    ("gcs.oauth2.token", "gcs.oauth2.token-expires-at"),
    ("adls.sas-token.", "adls.sas-token-expires-at-ms."),
)
"""By store, what a catalog vends for a time, and when that is over, in ms since the epoch. Behind a dot at
the end stands the account or host of Azure's that it is for."""

_OF_CATALOG = frozenset(
    (
        "namespace-separator",
        "prefix",
        "rest-metrics-reporting-enabled",
        "rest-page-size",
        "snapshot-loading-mode",
        "view-endpoints-supported",
    )
)
"""What a catalog may say of itself, beside its `uri`."""
_OF_FILES = frozenset(
    (
        "client.region",
        "gcs.project-id",
        "s3.force-virtual-addressing",
        "s3.path-style-access",
        "s3.region",
        "s3.sse.key",
        "s3.sse.md5",
        "s3.sse.type",
        *(f"{store}refresh-credentials-enabled" for store in ("adls.", "client.", "gcs.oauth2.")),
    )
)
RENEWALS = frozenset(f"{store}refresh-credentials-endpoint" for store in ("adls.", "client.", "gcs.oauth2."))
_JAVA_RENEWS = (
    ("client.refresh-credentials-endpoint", ("s3.session-token", SESSION_END)),
    ("gcs.oauth2.refresh-credentials-endpoint", ("gcs.oauth2.token", "gcs.oauth2.token-expires-at")),
)
"""Where Java has anew what is vended, which it does for what comes with all of these."""
_REGIONS = ("client.region", "s3.region")
_MOMENT = re.compile(r"\d{1,15}", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Store:
    """endpoint: the property that names its server; beside: what goes with that. vended: credentials that a
    catalog may give; needed: of these, those without which others would be used. others: a record's.
    file_keys: that files are encrypted with, and that each request takes along."""

    endpoint: str
    beside: tuple[str, ...]
    vended: tuple[str, ...]
    needed: tuple[str, ...]
    others: tuple[str, ...] = ()
    file_keys: tuple[str, ...] = ()

    @property
    def server(self) -> tuple[str, ...]:
        return self.endpoint, *self.beside

    @property
    def credentials(self) -> tuple[str, ...]:
        return *self.vended, *self.others


_KEYS = ("access-key-id", "secret-access-key", "session-token")
_STORES = (
    _Store(
        "s3.endpoint",
        ("s3.path-style-access", "s3.force-virtual-addressing"),
        tuple(f"s3.{key}" for key in _KEYS),
        ("s3.access-key-id", "s3.secret-access-key"),
        (
            *(f"client.{key}" for key in _KEYS),
            "s3.role-arn",
            "client.role-arn",
            "client.assume-role.arn",
            "client.assume-role.external-id",
        ),
        ("s3.sse.key",),
    ),
    _Store(
        "gcs.service.host",
        (),
        ("gcs.oauth2.token",),
        ("gcs.oauth2.token",),
        file_keys=("gcs.encryption-key", "gcs.decryption-key"),
    ),
)
_TOGETHER = (*(group for store in _STORES for group in (store.server, store.credentials)), _REGIONS)
_NAMES = _OF_FILES.union(*((store.endpoint, *store.vended) for store in _STORES))


class SentElsewhereError(Exception):
    """A catalog's answer would take what its record holds to a host that the record does not name; final."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(f"{detail} {remedy}")
        self.detail, self.remedy = detail, remedy


class UnreadableAnswerError(ValueError):
    """What a catalog answered is not JSON, so that nobody can tell what it would decide; final."""

    def __init__(self) -> None:
        super().__init__("What it answered is not what a catalog says.")


class RestAnswers:
    """The answers of one catalog.

    record: its properties, secrets resolved. check_hosts: raises for settings of files that name a host which
    is not allowed. gateway_url: of what stands in for the catalog, once it does.
    """

    def __init__(
        self, record: Mapping[str, Any], check_hosts: Callable[[Mapping[str, str]], None] = lambda _: None
    ) -> None:
        self._record, self._check_hosts = record, check_hosts
        self._uri = str(record["uri"])
        self._of_all_tables: dict[str, str] = {}
        self.gateway_url: str | None = None

    def harmless(self, content: bytes, renewal_url: Callable[[str], str] | None = None) -> bytes:
        """The body of an answer, with only what the catalog may decide.

        renewal_url: where what it vends for S3 or Google's store is had again, if the catalog does not say
        where: of a table as such, or of locations that begin like this.
        Raises SentElsewhereError, UnreadableAnswerError, and what `check_hosts` raises.
        """
        try:
            said = json.loads(content)
        except (ValueError, RecursionError):
            raise UnreadableAnswerError from None
        if not isinstance(said, dict):
            return content
        if "defaults" in said or "overrides" in said:
            self._configure(said)
        if "metadata" in said or "config" in said or "storage-credentials" in said:
            self._equip(said, renewal_url)
        # Written anew: another parser could find something else in what came.
        return json.dumps(said).encode()

    def _configure(self, said: dict[str, Any]) -> None:
        defaults, overrides = _texts(said.get("defaults")), _texts(said.get("overrides"))
        uri = overrides.get("uri", self._record["uri"])
        if uri != self._record["uri"] and (origin(uri) is None or origin(uri) != origin(self._record["uri"])):
            raise SentElsewhereError(
                f"The catalog at {self._record['uri']} says that it is at {uri[:500]}. It is not asked "
                "there: the credentials would go there too.",
                GIVE_AS_URI,
            )
        self._uri = uri
        named = {name for group in _TOGETHER if not self._record.keys().isdisjoint(group) for name in group}
        unnamed = {name: value for name, value in defaults.items() if name not in named}
        self._of_all_tables = {
            name: value for name, value in self._of_files(unnamed).items() if name not in self._record
        } | self._of_files(overrides)
        said["defaults"] = {name: value for name, value in defaults.items() if name in _OF_CATALOG}
        said["overrides"] = {name: value for name, value in overrides.items() if name in _OF_CATALOG}
        if self.gateway_url is None and "uri" in overrides:
            said["overrides"]["uri"] = uri

    def _equip(self, said: dict[str, Any], renewal_url: Callable[[str], str] | None) -> None:
        """With what opens the files of a table."""
        vended = said.get("storage-credentials")
        places = [one for one in vended if _is_place(one)] if isinstance(vended, list) else []
        given = self._of_all_tables | self._of_files(_texts(said.get("config")))
        equipped = [given | self._of_files(_texts(one.get("config"))) for one in places]
        prefixes = ("", *(one["prefix"] for one in places))
        for prefix, settings in zip(prefixes, (given, *equipped), strict=True):
            for renewal, needed in _JAVA_RENEWS:
                if renewal_url and all(settings.get(name) for name in needed):
                    settings.setdefault(renewal, renewal_url(prefix))
        for settings in equipped or [given]:
            if (store := self._astray(settings)) is not None:
                own = "with no credentials for it. Those of the record or of this machine are"
                if keys := self._file_keys(store, settings):
                    own = f"and the record does not. What it holds as {' and '.join(keys)} is"
                raise SentElsewhereError(
                    f"The catalog names {settings[store.endpoint][:500]} as the store ({store.endpoint}), "
                    f"{own} not sent there.",
                    f"If they are for that store, set {store.endpoint} in the record.",
                )
        # Beyond those places, an endpoint of its choice is for nobody's credentials.
        while (astray := self._astray(given)) is not None:
            given = {name: value for name, value in given.items() if name not in astray.server}
        for settings in (given, *equipped):
            self._check_hosts({name: value for name, value in settings.items() if name not in RENEWALS})
        for place, settings in zip(places, equipped, strict=True):
            place["config"] = self._instead(settings)
        if "storage-credentials" in said:
            said["storage-credentials"] = places
        if given or "config" in said:
            said["config"] = self._instead(given)

    def _astray(self, settings: Mapping[str, str]) -> _Store | None:
        """A store whose endpoint, of the catalog's choice, would get what the catalog has not given."""
        for store in _STORES:
            endpoint, own = settings.get(store.endpoint), self._record.get(store.endpoint)
            if endpoint is None or endpoint == own or (own and origin(endpoint) == origin(own) is not None):
                continue
            if not all(settings.get(name) for name in store.needed) or self._file_keys(store, settings):
                return store
        return None

    def _file_keys(self, store: _Store, settings: Mapping[str, str]) -> list[str]:
        """Those of the record that would go where the settings lead."""
        if store.endpoint == "s3.endpoint":
            sse = settings.get("s3.sse.type", self._record.get("s3.sse.type", ""))
            if sse.lower() != "custom":  # of other types, it is the name of a key or unused
                return []
        return [name for name in store.file_keys if self._record.get(name) and not settings.get(name)]

    def _instead(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Settings over the record's: an empty one says that what the record has is not to be used."""
        result = dict(settings)
        for store in _STORES:
            if settings.keys().isdisjoint(store.vended) or self._record.keys().isdisjoint(store.credentials):
                continue
            for name in store.credentials:
                # Java has those of a record under the names of those that are vended.
                if name in store.vended or name in self._record:
                    result.setdefault(name, "")
        return result

    def _of_files(self, given: Mapping[str, str]) -> dict[str, str]:
        kept = {
            name: value
            for name, value in given.items()
            if name in _NAMES or any(_is(name, known) for session in _SESSIONS for known in session)
        }
        for name in _REGIONS:
            # A part of the host's name.
            if not re.fullmatch(r"[A-Za-z0-9-]{1,64}", kept.get(name, "region")):
                raise SentElsewhereError(
                    f"The catalog names {kept[name][:100]!r} as the region, which is none.",
                    "Correct it in the catalog.",
                )
        for store in _STORES:
            if (endpoint := kept.get(store.endpoint)) and origin(endpoint) is None:
                raise SentElsewhereError(
                    f"The catalog names {endpoint[:500]!r} as the store ({store.endpoint}), which not all "
                    "programs take for the same host.",
                    "Correct it in the catalog, such as to https://host:port: without a user, a query and a "
                    "fragment.",
                )
        for name in [name for name in kept if any(_is(name, end) for _, end in _SESSIONS)]:
            if not _MOMENT.fullmatch(kept[name]):
                del kept[name]  # nobody knows then
        for name in RENEWALS & given.keys():
            if (path := self._own_path(given[name])) is not None:
                kept[name] = path
        return kept

    def _own_path(self, url: str) -> str | None:
        """Where a catalog renews what it vends, which is nowhere else than there."""
        own = self._uri.rstrip("/")
        if "://" not in url:
            return url
        if not url.startswith(f"{own}/"):
            return None
        return (self.gateway_url or own) + url.removeprefix(own)


def with_vended(record: Mapping[str, Any], vended: Mapping[str, Any]) -> dict[str, Any]:
    """A record's properties, and over them those of an answer that is harmless by now. Nobody renews them."""
    together = {**record, **vended}
    return {
        name: value
        for name, value in together.items()
        if (value or name not in vended) and name not in RENEWALS
    }


def session_ends(properties: Mapping[str, str]) -> list[float | None]:
    """When what properties of files hold for a time is over, in seconds since the epoch; None: not told.

    Of a store with one end, none is missing: a token may stand there for an account and for its host.
    """
    ends: list[float | None] = []
    for session, end in _SESSIONS:
        told = [value for name, value in properties.items() if _is(name, end) and _MOMENT.fullmatch(value)]
        ends += [int(value) / 1000 for value in told]
        if not told and any(value and _is(name, session) for name, value in properties.items()):
            ends.append(None)
    return ends


def _is(name: str, known: str) -> bool:
    """Whether a property is the one that is known, or one for an account."""
    return name.startswith(known) if known.endswith(".") else name == known


def _is_place(given: object) -> bool:
    """Whether it says which locations it is for."""
    return isinstance(given, dict) and isinstance(given.get("prefix"), str)


def _texts(given: object) -> dict[str, str]:
    """What is no text configures PyIceberg itself."""
    if not isinstance(given, Mapping):
        return {}
    return {name: value for name, value in given.items() if isinstance(value, str)}
