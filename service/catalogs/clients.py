"""PyIceberg's catalogs, held to what the operator allows, whatever a catalog answers, or if it never does.

PyIceberg trusts what a catalog says: a REST catalog's configuration may name classes to load and certificates
to read, where to send secrets; a table's properties may name the FileIO or its endpoint, a redirect may lead
anywhere. None of that gets through: `trust.rest_answers` says what does.
And it waits for ever: a server that accepts connections and never answers would keep a thread for good.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog as PyIcebergCatalog
from pyiceberg.catalog.rest import _RETRY_ARGS, Endpoints, RestCatalog, TableResponse
from pyiceberg.catalog.rest.response import _handle_non_200_response
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.typedef import EMPTY_DICT, Properties
from requests import HTTPError, PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from sqlalchemy import Engine, NullPool, create_engine
from sqlalchemy.engine import URL, make_url
from tenacity import retry
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from service.catalogs.file_io import SETTINGS, GuardedFileIO
from service.catalogs.models import CatalogType
from service.catalogs.reach import addresses_of
from service.database import bound_waiting
from service.errors import UnreachableError
from service.settings import Settings
from trust.locations import sqlite_path
from trust.rest_answers import RestAnswers, SentElsewhereError, with_vended

FILE_IO = f"{GuardedFileIO.__module__}.{GuardedFileIO.__name__}"
_CONNECT_SECONDS = 5
# What libpq knows of those that a record may have; the others are JDBC's.
_LIBPQ = frozenset(("sslmode", "connect_timeout", "application_name"))
_GLUE_RETRIES = 3


class _Guarded:
    """A catalog whose tables read only what the operator allows."""

    properties: Properties

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:  # noqa: ARG002
        # The properties are a table's, whose writers choose no store for the record's credentials.
        return GuardedFileIO(self.properties)


class GuardedSqlCatalog(_Guarded, SqlCatalog):
    """Of a database; its properties were checked."""

    def _init_catalog(self) -> None:
        # Of the engine that PyIceberg made, a pooled connection would fail after a restart of the database.
        self.engine = open_engine(self.properties[SETTINGS], self.properties["uri"])
        super()._init_catalog()


class GuardedRestCatalog(_Guarded, RestCatalog):
    """Behind HTTP: connects to addresses that are allowed, follows no redirect, believes few answers."""

    def __init__(self, name: str, **properties: Any) -> None:
        self._answers = RestAnswers(properties)
        super().__init__(name, **properties)

    def _config_headers(self, session: Session) -> None:
        # The first that happens to each new session, before a token is fetched through it.
        super()._config_headers(session)
        settings: Settings = self.properties[SETTINGS]
        for adapter in session.adapters.values():
            _guard(adapter, settings)
        session.hooks["response"] += [_refuse_redirect, self._take_apart]
        session.request = partial(  # type: ignore[method-assign]
            session.request, timeout=(_CONNECT_SECONDS, settings.catalog_timeout_seconds)
        )

    def _init_sigv4(self, session: Session) -> None:
        super()._init_sigv4(session)
        for adapter in session.adapters.values():
            _guard(adapter, self.properties[SETTINGS])

    @retry(**_RETRY_ARGS)  # type: ignore[call-overload,untyped-decorator]
    def load_if_changed(self, identifier: tuple[str, ...], tag: str | None) -> Response:
        """The server's answer with a table's metadata, of which only the heads of branches and tags are asked
        for; 304 if its ETag is still `tag` and the server knows ETags. Raises what `load_table` raises."""
        headers: Any = {
            "If-None-Match": tag,
            # What compresses an answer may change its tag, and not know it again (Jetty does so).
            "Accept-Encoding": "identity",
            # No credentials for the store: making them costs some servers more than all the rest.
            "X-Iceberg-Access-Delegation": None,
        }
        path = self._split_identifier_for_path(identifier)
        url = self.url(Endpoints.load_table, prefixed=True, **path)
        answer = self._session.get(url, params={"snapshots": "refs"}, headers=headers)
        try:
            answer.raise_for_status()
        except HTTPError as error:
            _handle_non_200_response(error, {404: NoSuchTableError})
        return answer

    def _take_apart(self, response: Response, *_: Any, **__: Any) -> None:
        """Before anybody reads it."""
        if response.ok and response.content:
            try:
                response._content = self._answers.harmless(response.content)
            except SentElsewhereError as error:
                raise UnreachableError(
                    "catalog-redirects", "The catalog sends callers elsewhere", error.detail, error.remedy
                ) from None
            response.encoding = "utf-8"

    def _response_to_table(self, identifier_tuple: tuple[str, ...], table_response: TableResponse) -> Table:
        place = table_response.metadata_location
        credentials = self._resolve_storage_credentials(table_response.storage_credentials, place)
        return Table(
            identifier_tuple,
            table_response.metadata,
            place,  # type: ignore[arg-type]  # of a table that exists
            GuardedFileIO(with_vended(self.properties, {**table_response.config, **credentials})),
            self,
        )


def open_catalog(
    settings: Settings, kind: CatalogType, name: str, properties: Mapping[str, str]
) -> PyIcebergCatalog:
    """Open a catalog. properties: resolved and checked. Raises whatever PyIceberg and its drivers raise."""
    given: dict[str, Any] = {**properties, "type": kind.value, "py-io-impl": FILE_IO, SETTINGS: settings}
    if kind is CatalogType.REST:
        return GuardedRestCatalog(name, **given)
    if kind is CatalogType.SQL:
        return GuardedSqlCatalog(name, **given)
    if kind is CatalogType.HIVE:
        return _open_hive(settings, name, given)
    return _open_glue(settings, name, given)


def open_engine(settings: Settings, uri: str) -> Engine:
    """For the database of a sql catalog; keeps no connection open."""
    engine = create_engine(_database_url(settings, uri), poolclass=NullPool)
    bound_waiting(engine, settings.catalog_timeout_seconds)
    return engine


def _open_hive(settings: Settings, name: str, given: dict[str, Any]) -> PyIcebergCatalog:
    from pyiceberg.catalog.hive import HiveCatalog, _HiveClient
    from thrift.transport import TSocket, TTransport

    class BoundedClient(_HiveClient):
        def _init_thrift_transport(self) -> TTransport:
            address = urlsplit(self._uri)
            socket = TSocket.TSocket(address.hostname, address.port)
            socket.setTimeout(settings.catalog_timeout_seconds * 1000)
            if self._kerberos_auth:
                return TTransport.TSaslClientTransport(
                    socket, host=address.hostname, service=self._kerberos_service_name
                )
            return TTransport.TBufferedTransport(socket)

    class GuardedHiveCatalog(_Guarded, HiveCatalog):
        @staticmethod
        def _create_hive_client(properties: dict[str, str]) -> _HiveClient:
            made = HiveCatalog._create_hive_client(properties)
            ugi = ":".join(made._ugi) if made._ugi else None
            return BoundedClient(made._uri, ugi, made._kerberos_auth, made._kerberos_service_name)

        @property
        def _client(self) -> _HiveClient:
            """A connection for each use: threads can't share PyIceberg's one, and several ask at a time."""
            return self._create_hive_client(self.properties)

        @_client.setter
        def _client(self, _: _HiveClient) -> None:
            """The one that PyIceberg makes is not kept."""

    return GuardedHiveCatalog(name, **given)


def _open_glue(settings: Settings, name: str, given: dict[str, Any]) -> PyIcebergCatalog:
    import botocore.session
    from botocore.config import Config
    from pyiceberg.catalog.glue import GLUE_MAX_RETRIES, GlueCatalog

    class GuardedGlueCatalog(_Guarded, GlueCatalog):
        pass

    session = botocore.session.get_session()
    timeouts = Config(connect_timeout=_CONNECT_SECONDS, read_timeout=settings.catalog_timeout_seconds)
    session.set_default_client_config(timeouts)
    # A record has text, of which botocore makes no number.
    retries = int(given.get(GLUE_MAX_RETRIES, _GLUE_RETRIES))
    return GuardedGlueCatalog(name, **given | {GLUE_MAX_RETRIES: retries, "botocore_session": session})


def _database_url(settings: Settings, uri: str) -> str | URL:
    """A database's address for SQLAlchemy: by what was checked, and with no endless wait."""
    if (path := sqlite_path(uri)) is not None:
        return URL.create("sqlite", database=path, query=make_url(uri).query)
    url = make_url(uri)
    if url.get_backend_name() != "postgresql" or not url.host:
        return uri
    query = {"connect_timeout": str(_CONNECT_SECONDS)}
    query |= {name: str(value) for name, value in url.query.items() if name in _LIBPQ}
    addresses = addresses_of(settings, url.host, url.port)
    # libpq tries one after the other, and wants the name and port of each.
    query |= {"hostaddr": ",".join(addresses), "host": ",".join([url.host] * len(addresses))}
    query["port"] = ",".join([str(url.port or 5432)] * len(addresses))
    return url.set(query=query).render_as_string(hide_password=False)


def allowed_session(settings: Settings, timeout_seconds: float) -> Session:
    """Connects to addresses that are allowed only, and knows no proxy or credentials of this machine."""
    session = Session()
    session.trust_env = False
    for adapter in session.adapters.values():
        _guard(adapter, settings)
    session.request = partial(session.request, timeout=(_CONNECT_SECONDS, timeout_seconds))  # type: ignore[method-assign]
    return session


def _guard(adapter: Any, settings: Settings) -> None:
    """Let an adapter connect only to addresses that are allowed, as they are at that very moment."""
    if not isinstance(adapter, HTTPAdapter):
        return

    class Pinned(HTTPConnection):
        def _new_conn(self) -> Any:
            # Certificates and headers go by the name.
            name = self._dns_host
            *others, last = addresses_of(settings, name, self.port)
            try:
                for self._dns_host in others:
                    with suppress(NewConnectionError, ConnectTimeoutError):
                        return super()._new_conn()
                self._dns_host = last
                return super()._new_conn()
            finally:
                self._dns_host = name

    class PinnedSecure(Pinned, HTTPSConnection):
        pass

    adapter.poolmanager.pool_classes_by_scheme = {
        "http": type("PlainPool", (HTTPConnectionPool,), {"ConnectionCls": Pinned}),
        "https": type("SecurePool", (HTTPSConnectionPool,), {"ConnectionCls": PinnedSecure}),
    }


def _refuse_redirect(response: Response, *_: Any, **__: Any) -> None:
    if response.is_redirect:
        response.close()  # nobody reads it
        request: PreparedRequest = response.request
        raise UnreachableError(
            "catalog-redirects",
            "The catalog sends callers elsewhere",
            f"{request.url} redirects to {response.headers['location']}. It is not followed: the credentials "
            "would go there too.",
            "If that is where the catalog is, give it as `uri`.",
        )
