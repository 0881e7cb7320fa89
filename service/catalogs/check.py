"""Try a catalog step by step, and say in words what fails and what to do.

A step that fails ends the check of what rests on it; those are `skipped`. Nothing is written.
"""

import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pyarrow.fs import FileType
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    OAuthError,
    RESTError,
    UnauthorizedError,
)
from requests.exceptions import ConnectionError as RequestsConnectionError
from requests.exceptions import Timeout
from requests.utils import DEFAULT_CA_BUNDLE_PATH
from sqlalchemy.exc import OperationalError, ProgrammingError

from service.catalogs import iceberg, sqlite
from service.catalogs.allowlists import addresses_of
from service.catalogs.file_io import SETTINGS, GuardedFileIO
from service.catalogs.iceberg import DATABASE_REMEDY, TableSource, limit_of, name_inside, open_source, redact
from service.catalogs.models import CatalogCheck, CheckStep, StepName
from service.errors import IcestreamError
from service.records.catalogs import Catalog, CatalogType
from service.settings import Settings
from stores.aws import CredentialsError
from stores.catalog_properties import of_index
from stores.file_io import GOOGLE_SCHEMES
from stores.signatures import CannotSignError, refusal_of
from telemetry.plurals import counted
from trust.bounds import checked_names, holding, working
from trust.locations import is_absolute, parse_location
from trust.sessions import certificates

_CONNECT_SECONDS = 5.0
_SHOWN_TABLES = 50
_LISTED_NAMESPACES = 200
_ADDRESSES = ("uri", "oauth2-server-uri", "glue.endpoint", "s3.endpoint")
"""Properties that may name a server."""
_WITH_REQUESTS = frozenset(("uri", "oauth2-server-uri"))
"""Those that are asked through `requests`; the others trust certificates of their own."""
_PORTS = {"http": 80, "https": 443, "postgresql": 5432, "thrift": 9083}
_Identifier = tuple[str, ...]


class StepFailed(Exception):  # noqa: N818
    """What was seen, and what to do about it."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.detail, self.remedy = detail, remedy


@dataclass
class _Seen:
    properties: dict[str, str] = field(default_factory=dict)
    source: TableSource | None = None
    namespaces: list[_Identifier] = field(default_factory=list)
    tables: list[_Identifier] = field(default_factory=list)


class CatalogProbe:
    """One check of one catalog."""

    def __init__(self, settings: Settings, catalog: Catalog, index_warehouse: str) -> None:
        self._settings, self._catalog, self._index_warehouse = settings, catalog, index_warehouse
        self._kind = CatalogType(catalog.type)
        self._seen = _Seen()
        self._steps: list[CheckStep] = []
        self._failed = False

    def run(self) -> CatalogCheck:
        """Take every step. Slow: call it outside any transaction."""
        with working(iceberg.budget_seconds(self._settings)):
            return self._run()

    def _run(self) -> CatalogCheck:
        started = time.monotonic()
        try:
            self._step("secrets", self._resolve)
            self._step("name_resolution", self._resolve_names)
            self._step("connect", self._connect)
            self._step("tls", self._shake_hands)
            self._step("credentials", self._open)
            self._step("permission", self._list)
            self._step("warehouse", self._read_warehouse)
        finally:
            if self._seen.source is not None:
                self._seen.source.close()
        # It does not rest on the catalog.
        self._failed = self._steps[0].status == "failed"
        self._step("index_warehouse", self._look_at_index_warehouse)
        return self._verdict(time.monotonic() - started)

    def _step(self, name: StepName, act: Callable[[], str | None]) -> None:
        started = time.monotonic()
        status: Literal["ok", "failed", "skipped"] = "skipped"
        detail, remedy = "An earlier step failed.", None
        if not self._failed:
            try:
                said = act()
                status, detail = ("ok", said) if said is not None else ("skipped", "There is nothing to do.")
            except StepFailed as error:
                status, detail, remedy = "failed", error.detail, error.remedy
            except IcestreamError as error:
                status, detail, remedy = "failed", error.detail, error.remedy
            except Exception as error:
                cause = explain(self._catalog, error)
                status, detail, remedy = "failed", cause.detail, cause.remedy
            self._failed = status == "failed"
        self._steps.append(
            CheckStep(
                name=name,
                status=status,
                detail=redact(detail, self._catalog),
                remedy=remedy,
                seconds=time.monotonic() - started,
            )
        )

    def _resolve(self) -> str | None:
        self._seen.properties = iceberg.resolve_allowed(self._settings, self._catalog)
        references = sum(
            self._catalog.properties[key] != value for key, value in self._seen.properties.items()
        )
        return f"{counted(references, 'reference')} resolved." if references else None

    @property
    def _servers(self) -> list[tuple[str, str, str, int]]:
        """(property, scheme, host, port) of each server that the record names."""
        found = []
        for key in _ADDRESSES:
            for uri in self._seen.properties.get(key, "").split(","):
                parts = urlsplit(uri)
                scheme = parts.scheme.partition("+")[0]
                if scheme in _PORTS and parts.hostname:
                    found.append((key, scheme, parts.hostname, parts.port or _PORTS[scheme]))
        return found

    def _resolve_names(self) -> str | None:
        found = {host: addresses_of(self._settings, host, port) for _, _, host, port in self._servers}
        return " ".join(f"{host} is {', '.join(addresses)}." for host, addresses in found.items()) or None

    def _connect(self) -> str | None:
        for key, _, host, port in self._servers:
            with self._connection(key, host, port):
                pass
        said = (f"{host} port {port} accepts connections." for _, _, host, port in self._servers)
        return " ".join(said) or None

    @contextmanager
    def _connection(self, key: str, host: str, port: int) -> Iterator[socket.socket]:
        """To the first address of a host that takes it."""
        failures: list[str] = []
        for address in addresses_of(self._settings, host, port):
            try:
                connection = socket.create_connection((address, port), _CONNECT_SECONDS)
            except TimeoutError:
                said = f"does not answer at port {port} within {_CONNECT_SECONDS:.0f} s"
                remedy = f"Check `{key}`; a firewall or network policy may drop what the service sends there."
            except OSError as error:
                said = f"refuses connections at port {port}: {error.strerror or error}"
                remedy = f"Check the port in `{key}`, and that the server is running."
            else:
                with connection:
                    yield connection
                return
            failures.append(f"{host} ({address}) {said}.")
        raise StepFailed(" ".join(failures), remedy)

    def _shake_hands(self) -> str | None:
        said = []
        for key, scheme, host, port in self._servers:
            if scheme != "https" or key not in _WITH_REQUESTS:
                continue
            bundle = certificates() or DEFAULT_CA_BUNDLE_PATH
            is_folder = Path(bundle).is_dir()
            context = ssl.create_default_context(
                cafile=None if is_folder else bundle, capath=bundle if is_folder else None
            )
            with self._connection(key, host, port) as connection, holding(connection):
                try:
                    with context.wrap_socket(connection, server_hostname=host) as secure:
                        said.append(f"{host} shows a valid certificate ({secure.version()}).")
                except ssl.SSLCertVerificationError as error:
                    raise StepFailed(
                        f"The certificate of {host} is not trusted: {error.verify_message}.",
                        "Give the service the certificate of its authority (REQUESTS_CA_BUNDLE names a file) "
                        "or give the server a certificate for this name.",
                    ) from None
                except (ssl.SSLError, OSError) as error:
                    raise StepFailed(
                        f"{host} port {port} does not speak TLS: {getattr(error, 'reason', None) or error}.",
                        f"Use http:// in `{key}` if the server has no TLS, or its TLS port.",
                    ) from None
        return " ".join(said) or None

    def _open(self) -> str | None:
        self._seen.source = open_source(self._settings, self._catalog)
        if self._kind is CatalogType.HADOOP:
            return None
        if self._kind in (CatalogType.SQL, CatalogType.GLUE):
            # Opening them asks them nothing.
            self._seen.source.namespaces()
        return "The catalog lets this service in."

    def _list(self) -> str:
        source = self._seen.source
        assert source is not None
        self._seen.namespaces = source.namespaces()
        self._seen.tables = list(
            checked_names(
                chain.from_iterable(map(source.tables, self._seen.namespaces[:_LISTED_NAMESPACES])), "tables"
            )
        )
        more = "at least " if len(self._seen.namespaces) > _LISTED_NAMESPACES else ""
        return (
            f"The catalog answers. It shows {more}{counted(len(self._seen.tables), 'table')} in "
            f"{counted(len(self._seen.namespaces), 'namespace')}."
        )

    def _read_warehouse(self) -> str | None:
        """A place that is named, and the metadata of one table."""
        said = []
        place = self._seen.properties.get("warehouse", "")
        if is_absolute(place):
            io = GuardedFileIO({**self._seen.properties, SETTINGS: self._settings})
            io.check(place)
            scheme, netloc, path = io.parse_location(place, io.properties)
            found = io.fs_by_scheme(scheme, netloc).get_file_info(path)
            if not found.is_file and found.type is FileType.NotFound and self._seen.tables:
                said.append(f"{place} does not exist yet; the tables lie elsewhere.")
            elif found.type is FileType.NotFound:
                raise StepFailed(
                    f"The warehouse {place} does not exist.",
                    "Check `warehouse`; the bucket or directory must be there, and visible to the service.",
                )
            else:
                said.append(f"{place} can be read.")
        source = self._seen.source
        assert source is not None
        for identifier in self._seen.tables[:1]:
            with suppress(NoSuchTableError, NoSuchNamespaceError):  # dropped meanwhile
                table = source.load(identifier)
                head = table.current_snapshot()
                if head is not None:
                    head.manifests(table.io)
                said.append(f"The metadata of {'.'.join(identifier)} can be read.")
        return " ".join(said) or None

    def _look_at_index_warehouse(self) -> str:
        """Writes nothing: that is up to jobs, and whether they can shows with the first one."""
        place = self._index_warehouse.rstrip("/")
        given = of_index(self._seen.properties, place) or self._seen.properties
        io = GuardedFileIO({**given, SETTINGS: self._settings})
        io.check(place)
        if (at := parse_location(place)).is_local:
            return self._look_at_local_index_warehouse(Path(at.path))
        try:
            scheme, netloc, path = io.parse_location(place, io.properties)
            filesystem = io.fs_by_scheme(scheme, netloc)
            is_there = filesystem.get_file_info(path).type is not FileType.NotFound
            bucket = path.partition("/")[0]
            # Who may write into a bucket of Google's need not be allowed to look at the bucket itself.
            is_known = is_there or scheme in GOOGLE_SCHEMES
            if not is_known and filesystem.get_file_info(bucket).type is FileType.NotFound:
                raise FileNotFoundError(f"there is no {bucket}")
        except CredentialsError as error:
            raise StepFailed(
                f"The index warehouse {place} cannot be used: {error.detail}", error.remedy
            ) from None
        except OSError as error:
            said = " ".join(str(error).split())[:400]
            cause = _explain_code(error, said)
            raise StepFailed(
                f"The index warehouse {place} cannot be used: {said}",
                "Let the service and the workers use it, or set another index_warehouse on the catalog."
                if cause is None
                else cause.remedy,
            ) from None
        seen = f"{place} can be read" if is_there else f"{place} is empty"
        return f"{seen}; whether workers may write there shows with the first job that indexes."

    def _look_at_local_index_warehouse(self, folder: Path) -> str:
        """Writes nothing: where a disk is not mounted, a file or a folder would lie below it."""
        existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            raise StepFailed(
                f"The index warehouse {folder} cannot be written to: this user may not write to {existing}.",
                "Let the service and the workers write there, or set another index_warehouse on the catalog.",
            )
        if existing == folder:
            return (
                f"{folder} is there, and its permissions let this user write; nothing was written. "
                "Whether workers may shows with the first job that indexes."
            )
        return f"{folder} does not exist yet; the first job that indexes makes it in {existing}."

    def _verdict(self, seconds: float) -> CatalogCheck:
        by_name = {step.name: step for step in self._steps}
        failed = next((step for step in self._steps if step.status == "failed"), None)
        listed = by_name["permission"]
        remedy: str | None = None
        status: Literal["ok", "warning", "unreachable", "unusable"] = "ok"
        explanation = listed.detail
        if failed is not None:
            explanation, remedy = failed.detail, failed.remedy
            status = "unusable" if listed.status == "ok" else "unreachable"
        elif not self._seen.tables:
            status, remedy = (
                "warning",
                "Nothing to enrol yet: check that this is the catalog that the writer uses.",
            )
            if self._kind is CatalogType.SQL:
                explanation, remedy = self._other_names(explanation, remedy)
        return CatalogCheck(
            ok=failed is None,
            status=status,
            explanation=explanation,
            remedy=remedy,
            namespaces=[".".join(namespace) for namespace in self._seen.namespaces],
            tables=[".".join(table) for table in self._seen.tables[:_SHOWN_TABLES]],
            table_count=len(self._seen.tables),
            seconds=seconds,
            steps=self._steps,
        )

    def _other_names(self, explanation: str, remedy: str) -> tuple[str, str]:
        own = name_inside(self._catalog)
        others = [
            name for name in iceberg.catalog_names_in_database(self._settings, self._catalog) if name != own
        ]
        if not others:
            return explanation, remedy
        return (
            f"{explanation} Its database holds catalogs with other names: {', '.join(others)}; this one "
            f"looks for {own!r}.",
            f"Set the property catalog_name to {others[0]!r} if that is the one.",
        )


_CODES = (
    (
        "AccessDeniedException",
        "The catalog knows the credentials, but forbids what is asked",
        "Grant this principal glue:GetDatabases, glue:GetTables and glue:GetTable.",
    ),
    (
        "UnrecognizedClientException|InvalidSignatureException",
        "The catalog refuses the credentials",
        "Check `glue.access-key-id`, `glue.secret-access-key` and `glue.session-token`, and the secrets that "
        "they refer to.",
    ),
    (
        "ExpiredTokenException",
        "The credentials have expired",
        "Renew `glue.access-key-id`, `glue.secret-access-key` and `glue.session-token` together.",
    ),
    (
        "NoCredentialsError",
        "There are no credentials",
        "Set `glue.access-key-id` and `glue.secret-access-key`, or give the service's machine a role.",
    ),
    (
        "EndpointConnectionError",
        "The catalog cannot be reached",
        "Check `glue.endpoint` or, without one, `glue.region`, and what the network lets through.",
    ),
    (
        "INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH",
        "The object store refuses the credentials",
        "Check `s3.access-key-id` and `s3.secret-access-key`, and the secrets that they refer to.",
    ),
    (
        "NETWORK_CONNECTION",
        "The object store cannot be reached",
        "Check `s3.endpoint` or, without one, `s3.region`, and what the network lets through.",
    ),
    (
        "TTransportException",
        "The metastore cannot be reached, or ended the connection",
        "Check `uri`, and that the metastore is running and wants neither TLS nor another way to sign in.",
    ),
)
"""What the libraries of AWS and Thrift call an error, or its class; in words; what to do."""


def _explain_code(error: Exception, said: str) -> StepFailed | None:
    for code, words, remedy in _CODES:
        if re.search(rf"\b({code})\b", f"{type(error).__name__} {said}"):
            return StepFailed(f"{words}: {said}", remedy)
    return None


_NOT_REST = "The server answers, but not as an Iceberg REST catalog does"


def explain(catalog: Catalog, error: Exception) -> StepFailed:
    """Words for what PyIceberg and its drivers raise, without the secrets that their messages may contain."""
    said = redact(" ".join(str(getattr(error, "orig", None) or error).split()), catalog)[:400]
    lowered = said.lower()
    if (limit := limit_of(error)) is not None:
        return StepFailed(redact(str(limit), catalog), limit.remedy)
    if isinstance(error, sqlite.DatabaseMissingError):
        return StepFailed(f"{said[0].upper()}{said[1:]}.", DATABASE_REMEDY)
    if isinstance(error, CannotSignError | CredentialsError):
        return StepFailed(redact(error.detail, catalog), error.remedy)
    if isinstance(error, RESTError) and (refusal := refusal_of(said)) is not None:
        return StepFailed(f"{refusal[0]}: {said}", refusal[1])
    if isinstance(error, UnauthorizedError | OAuthError | AuthorizationExpiredError):
        return StepFailed(
            f"The catalog refuses the credentials: {said}",
            "Check `credential` (id:secret), `token`, `scope` and `oauth2-server-uri`, and the secrets "
            "that they refer to.",
        )
    if isinstance(error, ForbiddenError):
        return StepFailed(
            f"The catalog knows the credentials, but forbids what is asked: {said}",
            "Grant this principal to list namespaces and tables, and to load tables.",
        )
    if isinstance(error, Timeout | TimeoutError):
        return StepFailed(
            "The catalog accepts the connection, but does not answer in time.",
            "Look at the catalog's own log; ICESTREAM_CATALOG_TIMEOUT_SECONDS says how long is waited.",
        )
    if re.search(r"RESTError 5\d\d|ServerError|ServiceUnavailable", f"{type(error).__name__} {said}"):
        return StepFailed(f"The catalog fails itself: {said}", "Look at the catalog's own log.")
    if isinstance(error, BadRequestError) and "invalid_client" in lowered:
        return explain(catalog, UnauthorizedError(said))
    if isinstance(error, RESTError | ValueError) and catalog.type == CatalogType.REST.value:
        return StepFailed(f"{_NOT_REST}: {said}", "Check the path in `uri`: it ends before /v1/config.")
    if (cause := _explain_code(error, said)) is not None:
        return cause
    if isinstance(error, RequestsConnectionError):
        return StepFailed(f"The connection broke: {said}", "Check `uri`, and that the catalog is running.")
    if isinstance(error, OperationalError | ProgrammingError):
        return _explain_database(said, lowered)
    if isinstance(error, FileNotFoundError):
        return StepFailed(said, "Check the path: it must be the one that the writer uses.")
    if isinstance(error, PermissionError) or "access denied" in lowered or "access_denied" in lowered:
        return StepFailed(
            f"Access is denied: {said}", "Let the service's user or credentials read that place."
        )
    return StepFailed(
        f"{type(error).__name__}: {said}",
        "Check that the properties of the catalog are right, and that the service can reach what they name.",
    )


def _explain_database(said: str, lowered: str) -> StepFailed:
    if "authentication failed" in lowered or "no password supplied" in lowered:
        return StepFailed(
            f"The database refuses the credentials: {said}", "Check user and password in the secret of `uri`."
        )
    if "permission denied" in lowered:
        return StepFailed(
            f"The database's user may not read the catalog: {said}",
            "Grant SELECT on iceberg_tables and iceberg_namespace_properties.",
        )
    if "no such table" in lowered or "does not exist" in lowered or "undefinedtable" in lowered:
        return StepFailed(
            f"The database answers, but holds no Iceberg catalog: {said}",
            "Check the database's name in `uri`.",
        )
    return StepFailed(f"The database cannot be used: {said}", "Check `uri`, and the database's own log.")
