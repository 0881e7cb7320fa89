"""PyIceberg's catalogs, held to what the operator allows, whatever a catalog answers, or if it never does.

PyIceberg trusts what a catalog says: a REST catalog's configuration may name classes to load and certificates
to read, where to send secrets; a table's properties may name the FileIO or its endpoint, a redirect may lead
anywhere. None of that gets through: `trust.rest_answers` says what does.
And it waits for ever: a server that accepts connections and never answers would keep a thread for good.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import cached_property, partial
from http import HTTPStatus
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BeforeValidator
from pyiceberg.catalog import ICEBERG, TABLE_TYPE
from pyiceberg.catalog import Catalog as PyIcebergCatalog
from pyiceberg.catalog.rest import (
    _RETRY_ARGS,
    PAGE_SIZE,
    SNAPSHOT_LOADING_MODE,
    Endpoints,
    ListNamespaceResponse,
    ListTablesResponse,
    TableResponse,
)
from pyiceberg.catalog.rest.response import _handle_non_200_response
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import EMPTY_DICT, Properties
from pyiceberg.utils.properties import property_as_int
from requests import HTTPError, PreparedRequest, Request, Response, Session
from requests.adapters import HTTPAdapter
from sqlalchemy import Engine, NullPool, Select, bindparam, create_engine, event, select
from sqlalchemy.engine import make_url
from tenacity import retry
from urllib3 import Timeout
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError as TransportError

from service.catalogs import sqlite
from service.catalogs.allowlists import addresses_of, check_file_io
from service.catalogs.file_io import SETTINGS, GuardedFileIO
from service.catalogs.observations import count_request
from service.db.database import bound_waiting
from service.errors import UnreachableError
from service.records.catalogs import CatalogType
from service.settings import Settings
from stores.aws import Identity
from stores.rest_catalog import ConfinedRestCatalog
from stores.table_metadata import read_table_metadata, table_metadata_of
from trust.bounded_http import BoundedConnection, BoundedSecureConnection
from trust.bounds import (
    ANSWER_BYTES,
    JSON_CONTAINERS,
    LimitExceededError,
    Pages,
    check_size,
    check_time,
    checked_names,
    holding,
)
from trust.locations import sqlite_path
from trust.rest_answers import SentElsewhereError, with_vended
from trust.sessions import confine

FILE_IO = f"{GuardedFileIO.__module__}.{GuardedFileIO.__name__}"
_CONNECT_SECONDS = 5
_LOCK_SECONDS = 5
# What libpq knows of those that a record may have; the others are JDBC's.
_LIBPQ = frozenset(("sslmode", "connect_timeout", "application_name"))
_GLUE_RETRIES = 3
_HIVE_TABLES = 500
"""Asked for in one call."""
_PART_BYTES = 1024**2
_HEADS = {"snapshots": "refs"}
_FOR_ETAGS: Any = {
    # What compresses an answer may change its tag, and not know it again (Jetty does so).
    "Accept-Encoding": "identity",
    # No credentials for the store: making them costs some servers more than all the rest.
    "X-Iceberg-Access-Delegation": None,
}
_Page = TypeVar("_Page", ListNamespaceResponse, ListTablesResponse)


class _AnyTableResponse(TableResponse):
    """Whatever else the metadata says."""

    metadata: Annotated[TableMetadata, BeforeValidator(table_metadata_of)]


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

    @cached_property
    def _place(self) -> Select[str | None]:
        """Of a table. Putting it together, as PyIceberg does each time, takes longer than it takes to run."""
        named = ("catalog_name", "table_namespace", "table_name")
        query = select(IcebergTables.metadata_location).where(
            *(getattr(IcebergTables, name) == bindparam(name) for name in named)
        )
        of_tables = self._iceberg_type_filter()
        return query if of_tables is None else query.where(of_tables)

    @sqlite.read_again_if_changed
    def load_table(self, identifier: str | tuple[str, ...]) -> Table:
        namespace, name = self.namespace_from(identifier), self.table_name_from(identifier)
        within = self.namespace_to_string(namespace)
        named = {"catalog_name": self.name, "table_namespace": within, "table_name": name}
        with self.engine.connect() as connection:
            location = connection.scalar(self._place, named)
        if not location:
            raise NoSuchTableError(f"There is no metadata of a table {within}.{name}")
        io = self._load_file_io(location=location)
        metadata = read_table_metadata(io.new_input(location))
        return Table((*self.identifier_to_tuple(within), name), metadata, location, io, self)

    @sqlite.read_again_if_changed
    def list_namespaces(self, namespace: str | tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        return super().list_namespaces(namespace)

    @sqlite.read_again_if_changed
    def list_tables(self, namespace: str | tuple[str, ...]) -> list[tuple[str, ...]]:
        return super().list_tables(namespace)


class GuardedRestCatalog(_Guarded, ConfinedRestCatalog):
    """Behind HTTP; raises what callers see, and counts what it asks."""

    def __init__(self, settings: Settings, name: str, properties: Mapping[str, Any]) -> None:
        self.timeout = _CONNECT_SECONDS, settings.catalog_timeout_seconds
        self._targets: dict[tuple[str, ...], str] = {}
        """Of requests for the heads of tables, as requests writes them."""
        super().__init__(name, properties, partial(addresses_of, settings), partial(check_file_io, settings))

    def _send(self, send: Callable[..., Response], *args: Any, **options: Any) -> Response:
        count_request()
        return super()._send(send, *args, **options)

    def load_table(self, identifier: str | tuple[str, ...]) -> Table:
        name = self.identifier_to_tuple(identifier)
        mode = self.properties.get(SNAPSHOT_LOADING_MODE)
        answer = self._load(name, {"snapshots": mode} if mode in ("all", "refs") else {}, {})
        return self._response_to_table(name, _AnyTableResponse.model_validate_json(answer.text))

    def load_if_changed(self, identifier: tuple[str, ...], tag: str | None) -> Response:
        """The server's answer with a table's metadata, of which only the heads of branches and tags are asked
        for; 304 if its ETag is still `tag` and the server knows ETags. Raises what `load_table` raises."""
        answer: Response = self._load(identifier, _HEADS, {"If-None-Match": tag, **_FOR_ETAGS})
        return answer

    def unchanged(self, tags: Mapping[tuple[str, ...], str]) -> set[tuple[str, ...]]:
        """The tables of which the server says that their ETags are still these.

        What requests does for each request takes several times as long as the request, and is done once here.
        Of an answer nothing but its status counts: whatever is not 304 is to be asked by `load_if_changed`.
        """
        found: set[tuple[str, ...]] = set()
        if not tags:
            return found
        session = self._session
        like = session.prepare_request(Request("GET", self._url(next(iter(tags))), headers=_FOR_ETAGS))
        url, headers = str(like.url), {name: str(value) for name, value in like.headers.items()}
        adapter = session.get_adapter(url)
        if type(adapter) is not HTTPAdapter:
            return found  # each request is signed
        verify, certificate = session.verify, session.cert
        pool = adapter.get_connection_with_tls_context(like, verify, cert=certificate)
        adapter.cert_verify(pool, url, verify, certificate)
        connect, read = self.timeout
        timeout = Timeout(connect=connect, read=read)
        for table, tag in tags.items():
            if (target := self._targets.get(table)) is None:
                at = PreparedRequest()
                at.prepare_url(self._url(table), _HEADS)
                target = self._targets[table] = at.path_url
            count_request()
            try:
                answer = pool.urlopen(
                    "GET",
                    target,
                    headers=headers | {"If-None-Match": tag},
                    retries=False,
                    redirect=False,
                    assert_same_host=False,
                    timeout=timeout,
                )
            except TransportError:
                return found  # the next request tells what is wrong
            if answer.status == HTTPStatus.NOT_MODIFIED:
                found.add(table)
        return found

    @retry(**_RETRY_ARGS)  # type: ignore[call-overload,untyped-decorator]
    def _load(self, identifier: tuple[str, ...], params: dict[str, str], headers: Any) -> Response:
        answer = self._session.get(self._url(identifier), params=params, headers=headers)
        try:
            answer.raise_for_status()
        except HTTPError as error:
            _handle_non_200_response(error, {404: NoSuchTableError})
        return answer

    def _url(self, identifier: tuple[str, ...]) -> str:
        return self.url(Endpoints.load_table, **self._split_identifier_for_path(identifier))

    def _take_apart(self, response: Response, *_: Any, **__: Any) -> None:
        try:
            super()._take_apart(response)
        except SentElsewhereError as error:
            raise UnreachableError("catalog-redirects", error.detail, error.remedy) from None

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

    def list_namespaces(self, namespace: str | tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        parent = self.identifier_to_tuple(namespace)
        params = {"parent": self._encode_namespace_path(parent)} if parent else {}
        pages = self._pages(self.url(Endpoints.list_namespaces), params, ListNamespaceResponse)
        return list(checked_names((name for page in pages for name in page.namespaces), "namespaces"))

    def list_tables(self, namespace: str | tuple[str, ...]) -> list[tuple[str, ...]]:
        path = self._encode_namespace_path(self._check_valid_namespace_identifier(namespace))
        pages = self._pages(self.url(Endpoints.list_tables, namespace=path), {}, ListTablesResponse)
        named = ((*one.namespace, one.name) for page in pages for one in page.identifiers)
        return list(checked_names(named, "tables"))

    def _pages(self, url: str, params: dict[str, str], answer: type[_Page]) -> Iterator[_Page]:
        """Those of a list. PyIceberg goes from page to page as long as there is a next one."""
        if size := property_as_int(self.properties, PAGE_SIZE, None):
            params["pageSize"] = str(size)
        pages = Pages()
        page = self._page(url, params, answer)
        yield page
        while pages.follow(page.next_page_token):
            page = self._page(url, params | {"pageToken": str(page.next_page_token)}, answer)
            yield page

    @retry(**_RETRY_ARGS)  # type: ignore[call-overload,untyped-decorator]
    def _page(self, url: str, params: dict[str, str], answer: type[_Page]) -> _Page:
        response = self._session.get(url, params=params)
        try:
            response.raise_for_status()
        except HTTPError as error:
            _handle_non_200_response(error, {404: NoSuchNamespaceError})
        return answer.model_validate_json(response.text)


def open_catalog(
    settings: Settings, kind: CatalogType, name: str, properties: Mapping[str, str]
) -> PyIcebergCatalog:
    """Open a catalog. properties: resolved and checked. Raises whatever PyIceberg and its drivers raise."""
    given: dict[str, Any] = {**properties, "type": kind.value, "py-io-impl": FILE_IO, SETTINGS: settings}
    if kind is CatalogType.REST:
        return GuardedRestCatalog(settings, name, given)
    if kind is CatalogType.SQL:
        return GuardedSqlCatalog(name, **given)
    if kind is CatalogType.HIVE:
        return _open_hive(settings, name, given)
    return _open_glue(settings, name, given)


def open_engine(settings: Settings, uri: str) -> Engine:
    """For the database of a sql catalog; keeps no connection open."""
    # A connection for each query: none stays open.
    if (path := sqlite_path(uri)) is not None:
        seconds = float(str(make_url(uri).query.get("timeout", _LOCK_SECONDS)))

        def connect() -> sqlite3.Connection:
            count_request()
            return sqlite.connect(path, seconds)

        return create_engine("sqlite://", creator=connect, poolclass=NullPool)
    engine = create_engine(_database_url(settings, uri), poolclass=NullPool)
    event.listen(engine, "do_connect", lambda *_: count_request())
    bound_waiting(engine, settings.catalog_timeout_seconds, is_bounded=True)
    return engine


def _open_hive(settings: Settings, name: str, given: dict[str, Any]) -> PyIcebergCatalog:
    from hive_metastore.ThriftHiveMetastore import Client
    from pyiceberg.catalog.hive import HiveCatalog, _HiveClient
    from thrift.protocol import TBinaryProtocol
    from thrift.transport import TSocket, TTransport

    class BoundedSocket(TSocket.TSocket):  # type: ignore[misc]  # it has no types
        """An answer is what comes between two requests."""

        def __init__(self, host: str | None, port: int | None) -> None:
            super().__init__(host, port)
            self._held = ExitStack()
            self._received_bytes = 0

        def open(self) -> None:
            super().open()
            self._held.enter_context(holding(self.handle))

        def close(self) -> None:
            try:
                self._held.close()  # raises if the time is over
            finally:
                super().close()

        def write(self, sent: bytes) -> None:
            self._received_bytes = 0
            super().write(sent)

        def read(self, most_bytes: int) -> bytes:
            try:
                received: bytes = super().read(min(most_bytes, _PART_BYTES))
            finally:
                check_time()  # rather than that its connection was cut
            self._received_bytes += len(received)
            check_size(self._received_bytes, ANSWER_BYTES, "An answer of the metastore")
            return received

    class BoundedProtocol(TBinaryProtocol.TBinaryProtocol):  # type: ignore[misc]
        """Counts what lists and maps hold: objects of one byte each would take hundreds in memory."""

        def writeMessageBegin(self, *message: Any) -> None:  # noqa: N802
            count_request()
            super().writeMessageBegin(*message)

        def readMessageBegin(self) -> Any:  # noqa: N802
            self._elements = 0
            return super().readMessageBegin()

        def _check_container_length(self, length: int) -> None:
            super()._check_container_length(length)
            self._elements += length
            if self._elements > JSON_CONTAINERS:
                raise LimitExceededError(
                    f"An answer of the metastore has more than {JSON_CONTAINERS:,} elements.",
                    "Ask who runs the metastore.",
                )

    class BoundedClient(_HiveClient):
        def __enter__(self) -> Client:
            try:
                return super().__enter__()
            except BaseException:
                self._transport.close()
                raise

        def _init_thrift_transport(self) -> TTransport:
            address = urlsplit(self._uri)
            socket = BoundedSocket(address.hostname, address.port)
            socket.setTimeout(settings.catalog_timeout_seconds * 1000)
            if self._kerberos_auth:
                return TTransport.TSaslClientTransport(
                    socket, host=address.hostname, service=self._kerberos_service_name
                )
            return TTransport.TBufferedTransport(socket)

        def _client(self) -> Client:
            client = Client(BoundedProtocol(self._transport, string_length_limit=ANSWER_BYTES))
            if self._ugi:
                client.set_ugi(*self._ugi)
            return client

    class GuardedHiveCatalog(_Guarded, HiveCatalog):
        @staticmethod
        def _create_hive_client(properties: dict[str, str]) -> _HiveClient:
            made = HiveCatalog._create_hive_client(properties)
            ugi = ":".join(made._ugi) if made._ugi else None
            return BoundedClient(made._uri, ugi, made._kerberos_auth, made._kerberos_service_name)

        def list_tables(self, namespace: str | tuple[str, ...]) -> list[tuple[str, ...]]:
            database = self.identifier_to_database(namespace, NoSuchNamespaceError)
            found: list[tuple[str, ...]] = []
            with self._client as client:
                names = client.get_all_tables(db_name=database)
                for start in range(0, len(names), _HIVE_TABLES):
                    some = names[start : start + _HIVE_TABLES]
                    for one in client.get_table_objects_by_name(dbname=database, tbl_names=some):
                        if (one.parameters or {}).get(TABLE_TYPE, "").lower() == ICEBERG:
                            found.append((database, one.tableName))
            return found

        @property
        def _client(self) -> _HiveClient:
            """A connection for each use: threads can't share PyIceberg's one, and several ask at a time."""
            return self._create_hive_client(self.properties)

        @_client.setter
        def _client(self, _: _HiveClient) -> None:
            """The one that PyIceberg makes is not kept."""

    return GuardedHiveCatalog(name, **given)


def _open_glue(settings: Settings, name: str, given: dict[str, Any]) -> PyIcebergCatalog:
    from botocore.config import Config
    from pyiceberg.catalog.glue import GLUE_MAX_RETRIES, GlueCatalog

    class GuardedGlueCatalog(_Guarded, GlueCatalog):
        def list_namespaces(self, namespace: str | tuple[str, ...] = ()) -> list[tuple[str, ...]]:
            if namespace:
                return []  # they know no levels
            found = self._listed(self.glue.get_databases, "DatabaseList")
            return list(checked_names(((one["Name"],) for one in found), "namespaces"))

        def list_tables(self, namespace: str | tuple[str, ...]) -> list[tuple[str, ...]]:
            database = self.identifier_to_database(namespace, NoSuchNamespaceError)
            found = self._listed(partial(self.glue.get_tables, DatabaseName=database), "TableList")
            try:
                named = ((database, one["Name"]) for one in found if _is_iceberg_table(one))
                return list(checked_names(named, "tables"))
            except self.glue.exceptions.EntityNotFoundException as error:
                raise NoSuchNamespaceError(f"Database does not exist: {database}") from error

        def _listed(self, ask: Callable[..., Any], key: str) -> Iterator[Any]:
            pages = Pages()
            page = ask()
            yield from page[key]
            while pages.follow(token := page.get("NextToken")):
                page = ask(NextToken=token)
                yield from page[key]

    session = Identity.of(given, "glue").session()
    limits = Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=settings.catalog_timeout_seconds,
        proxies={},  # no one of the environment, whose connections would know no bounds
    )
    session.set_default_client_config(limits)
    # A record has text, of which botocore makes no number.
    retries = int(given.get(GLUE_MAX_RETRIES, _GLUE_RETRIES))
    opened = GuardedGlueCatalog(name, **given | {GLUE_MAX_RETRIES: retries, "botocore_session": session})
    opened.glue.meta.events.register("before-send.glue", lambda **_: count_request())
    opened.glue._endpoint.http_session._manager.pool_classes_by_scheme = _bounded_aws_pools()
    return opened


def _is_iceberg_table(glue_table: Any) -> bool:
    return str((glue_table.get("Parameters") or {}).get(TABLE_TYPE, "")).lower() == ICEBERG


def _bounded_aws_pools() -> dict[str, type[HTTPConnectionPool]]:
    from botocore.awsrequest import AWSHTTPConnection, AWSHTTPSConnection

    class Plain(BoundedConnection, AWSHTTPConnection):  # type: ignore[misc]  # it has no types
        pass

    class Secure(BoundedSecureConnection, AWSHTTPSConnection):  # type: ignore[misc]
        pass

    return {
        "http": type("PlainPool", (HTTPConnectionPool,), {"ConnectionCls": Plain}),
        "https": type("SecurePool", (HTTPSConnectionPool,), {"ConnectionCls": Secure}),
    }


def _database_url(settings: Settings, uri: str) -> str:
    """A database's address for SQLAlchemy: by what was checked, and with no endless wait."""
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
    confine(session, partial(addresses_of, settings))
    session.request = partial(session.request, timeout=(_CONNECT_SECONDS, timeout_seconds))  # type: ignore[method-assign]
    return session
