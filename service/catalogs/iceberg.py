"""Reading catalogs and tables through PyIceberg: the only module that knows how each type is opened.

Nothing here writes to a catalog. Failures become UnreachableError or a table-not-found InvalidError whose
texts say what was tried and what to do.
"""

import difflib
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType
from pydantic import ValidationError as PydanticValidationError
from pyiceberg.catalog import Catalog as PyIcebergCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, ValidationError
from pyiceberg.table import StaticTable, Table
from sqlalchemy import inspect, select

from service.catalogs import sqlite
from service.catalogs.allowlists import check_reachable, check_record
from service.catalogs.clients import open_catalog, open_engine
from service.catalogs.file_io import SETTINGS, EncryptedFileError, GuardedFileIO
from service.catalogs.manifests import DamagedManifestError
from service.catalogs.metadata_locations import Identifier, MetadataLocations, metadata_locations_reader
from service.catalogs.observations import Observations, count_request
from service.catalogs.secrets import resolve
from service.errors import IcestreamError, InvalidError, UnreachableError
from service.records.catalogs import Catalog, CatalogType
from service.settings import Settings
from stores.aws import CredentialsError
from stores.catalog_properties import of_tables
from stores.signatures import CannotSignError, refusal_of
from stores.table_metadata import ENCRYPTED_REMEDY, NOT_MODELLED, read_table_metadata
from telemetry.plurals import counted
from trust.bounds import (
    LimitExceededError,
    NotUnpackedError,
    OutOfTimeError,
    check_time,
    checked_names,
    working,
)
from trust.locations import parse_location
from trust.secrets import is_reference, parts_of

_METADATA_FILE = re.compile(r"^v(\d+)(?:\.gz)?\.metadata\.json(?:\.gz)?$")
_ENDINGS = (".metadata.json", ".gz.metadata.json", ".metadata.json.gz")
"""Of the names of these files, as Iceberg writes them."""
_DAMAGE = (NotUnpackedError, UnicodeDecodeError, DamagedManifestError)
_LISTED_TABLES = 10_000
# A server may repeat the token that it was sent.
_BEARER = re.compile(r"\b(bearer) [^\s\"'<>,;]+", re.IGNORECASE)
_LONGEST_CAUSE = 500
DATABASE_REMEDY = (
    "Mount the disk that it lies on, or put the file back where it was; if it has moved for good, change "
    "`uri`. None is made in its place."
)
_SHORTEST_SECRET = 4
"""Shorter ones are parts of other words too."""


class TableSource(Protocol):
    """What is needed of a catalog, whatever its type."""

    def load(self, identifier: Identifier) -> Table:
        """The current metadata of a table. Raises NoSuchTableError or NoSuchNamespaceError."""
        ...

    def metadata_locations(self, tables: Sequence[Identifier]) -> MetadataLocations:
        """Where the metadata of those of these tables lies that are there, without reading it."""
        ...

    def metadata_states(self, tables: Sequence[Identifier]) -> dict[Identifier, str]:
        """The same in texts, each of which means the same metadata for good; see `metadata_state`."""
        ...

    def namespaces(self) -> list[Identifier]: ...

    def tables(self, namespace: Identifier) -> list[Identifier]: ...

    def close(self) -> None: ...


@dataclass
class PyIcebergSource:
    """Every type that PyIceberg has a catalog for."""

    catalog: PyIcebergCatalog
    metadata_locations: Callable[[Sequence[Identifier]], MetadataLocations]

    def metadata_states(self, tables: Sequence[Identifier]) -> dict[Identifier, str]:
        return self.metadata_locations(tables)

    def load(self, identifier: Identifier) -> Table:
        try:
            return self.catalog.load_table(identifier)
        except NOT_MODELLED:
            location = self.metadata_locations([identifier]).get(identifier)
            if location is None:
                raise
            io = self.catalog._load_file_io(location=location)
            return Table(identifier, read_table_metadata(io.new_input(location)), location, io, self.catalog)

    def namespaces(self) -> list[Identifier]:
        """All namespaces, parents before children."""
        return list(checked_names(self._walk(), "namespaces"))

    def _walk(self) -> Iterator[Identifier]:
        found: set[Identifier] = set()
        waiting: deque[Identifier] = deque([()])
        while waiting:
            check_time()
            parent = waiting.popleft()
            for namespace in self.catalog.list_namespaces(parent):
                full = tuple(namespace)
                if full in found:
                    continue  # a catalog without nesting lists all again, whatever the parent
                # Catalogs disagree whether children are named in full.
                if len(full) <= len(parent):
                    full = (*parent, *full)
                if full not in found:
                    found.add(full)
                    waiting.append(full)
                    yield full

    def tables(self, namespace: Identifier) -> list[Identifier]:
        check_time()
        return list(checked_names(map(tuple, self.catalog.list_tables(namespace)), "tables"))

    def close(self) -> None:
        self.catalog.close()


@dataclass(frozen=True)
class _MetadataFile:
    name: str
    state: str
    """Another one of the same name has another: names have numbers, which begin anew with a new table."""

    @classmethod
    def of(cls, info: FileInfo) -> "_MetadataFile":
        return cls(info.base_name, f"{info.size} {info.mtime_ns}")


class _HadoopTable(StaticTable):
    state: str


def metadata_state(table: Table) -> str:
    """As `TableSource.metadata_states` tells it, of the metadata that this table was loaded from."""
    return table.state if isinstance(table, _HadoopTable) else table.metadata_location


@dataclass
class HadoopSource:
    """Tables as directories under a warehouse: the current metadata is that of the highest version.

    Iceberg writes `version-hint.text` after the commit, so it may lag behind or be missing.
    """

    warehouse: str
    io: GuardedFileIO
    _newest: dict[Identifier, _MetadataFile] = field(default_factory=dict, init=False)
    """The metadata file of each table when it was looked for last."""

    def load(self, identifier: Identifier) -> Table:
        newest = self._list_newest(identifier)
        if newest is None:
            raise NoSuchTableError(f"There is no metadata under {self._directory(identifier)}/metadata")
        location = f"{self._metadata(identifier)}/{newest.name}"
        # Not StaticTable.from_metadata: there, the table's properties choose the class that reads its files.
        read = read_table_metadata(self.io.new_input(location))
        table = _HadoopTable(identifier, read, location, self.io, NoopCatalog("hadoop"))
        table.state = f"{location} {newest.state}"
        return table

    def metadata_locations(self, tables: Sequence[Identifier]) -> MetadataLocations:
        return {table: f"{self._metadata(table)}/{file.name}" for table, file in self._find_newest(tables)}

    def metadata_states(self, tables: Sequence[Identifier]) -> dict[Identifier, str]:
        return {
            table: f"{self._metadata(table)}/{file.name} {file.state}"
            for table, file in self._find_newest(tables)
        }

    def namespaces(self) -> list[Identifier]:
        return sorted({identifier[:-1] for identifier in checked_names(self._walk(), "tables")})

    def tables(self, namespace: Identifier) -> list[Identifier]:
        walked = checked_names(self._walk(), "tables")
        return [identifier for identifier in walked if identifier[:-1] == namespace]

    def close(self) -> None:
        """Nothing stays open."""

    def _directory(self, identifier: Identifier) -> str:
        if any(part in ("", ".", "..") or "/" in part for part in identifier):
            raise NoSuchTableError(f"{'.'.join(identifier)} cannot be a directory")
        return "/".join((self.warehouse.rstrip("/"), *identifier))

    def _list(self, location: str) -> list[FileInfo]:
        """What lies directly in `location`; nothing if it does not exist."""
        filesystem, path = self._open(location)
        entries = filesystem.get_file_info(FileSelector(path, allow_not_found=True))
        return sorted(entries, key=lambda entry: str(entry.base_name))

    def _open(self, location: str) -> tuple[FileSystem, str]:
        """For one request: what is asked, and for which of its paths."""
        self.io.check(location)
        scheme, netloc, path = self.io.parse_location(location, self.io.properties)
        check_time()
        count_request()
        return self.io.fs_by_scheme(scheme, netloc), path

    def _metadata(self, identifier: Identifier) -> str:
        return f"{self._directory(identifier)}/metadata"

    def _find_newest(self, tables: Sequence[Identifier]) -> Iterator[tuple[Identifier, _MetadataFile]]:
        """Lists the directory of each table, unless it is local and still ends with the version of before."""
        is_local = parse_location(self.warehouse).is_local
        for table in tables:
            known = self._newest.get(table) if is_local else None
            newest = self._still_newest(table, known.name) if known is not None else None
            if newest is None:
                newest = self._list_newest(table)
            if newest is not None:
                yield table, newest

    def _list_newest(self, identifier: Identifier) -> _MetadataFile | None:
        versions = {
            int(match.group(1)): entry
            for entry in self._list(self._metadata(identifier))
            if (match := _METADATA_FILE.match(entry.base_name))
        }
        if not versions:
            self._newest.pop(identifier, None)
            return None
        newest = self._newest[identifier] = _MetadataFile.of(versions[max(versions)])
        return newest

    def _still_newest(self, identifier: Identifier, name: str) -> _MetadataFile | None:
        """The metadata file of this name, if there is none of the next version. A directory has many more."""
        match = _METADATA_FILE.match(name)
        assert match is not None
        filesystem, path = self._open(self._metadata(identifier))
        next_ones = (f"v{int(match.group(1)) + 1}{ending}" for ending in _ENDINGS)
        found = filesystem.get_file_info([f"{path}/{one}" for one in (name, *next_ones)])
        is_newest = [one.type for one in found] == [FileType.File, *[FileType.NotFound] * len(_ENDINGS)]
        return _MetadataFile.of(found[0]) if is_newest else None

    def _walk(self) -> Iterator[Identifier]:
        waiting: list[Identifier] = [()]
        while waiting:
            parent = waiting.pop()
            location = "/".join((self.warehouse.rstrip("/"), *parent))
            names = [one.base_name for one in self._list(location) if one.type == FileType.Directory]
            if "metadata" in names and parent:
                if len(parent) > 1:
                    yield parent
                continue
            children = ((*parent, name) for name in names if not name.startswith((".", "_")))
            waiting.extend(checked_names(children, "directories"))


@dataclass
class _Opened:
    version: int
    source: TableSource


class IcebergCatalogs:
    """Opens catalogs and keeps them open; thread-safe.

    A source that failed is dropped, so that rotated secrets are resolved again.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._opened: dict[str, _Opened] = {}
        self._lock = threading.Lock()
        self.observations = Observations()

    @contextmanager
    def open(self, catalog: Catalog) -> Iterator[TableSource]:
        """Use a catalog; any failure of it leaves as UnreachableError, missing tables as they are.

        What is done meanwhile has a budget: the caller's, or one of its own.
        """
        with working(budget_seconds(self._settings)), self.observations.of(catalog.id) as asking:
            try:
                source = self._source(catalog)
                asking.opened()
                yield source
            except (NoSuchTableError, NoSuchNamespaceError, IcestreamError):
                raise
            except Exception as error:
                if limit_of(error) is None:  # what is too large is often a single table
                    self.forget(catalog.id)
                raise unreachable(catalog, error) from error

    def load(self, catalog: Catalog, identifier: Identifier) -> Table:
        """A table's current metadata.

        Raises UnreachableError (a retry can help), or InvalidError: `table-not-found` with the nearest names,
        `table-unreadable` when its metadata is missing, encrypted, damaged or of an unknown version.
        """
        with self.open(catalog) as source:
            try:
                with self.reading(catalog, identifier):
                    return source.load(identifier)
            except (NoSuchTableError, NoSuchNamespaceError) as error:
                raise table_not_found(self._settings, catalog, source, identifier) from error

    @contextmanager
    def reading(self, catalog: Catalog, identifier: Identifier) -> Iterator[None]:
        """Read a table's metadata and manifests; what is missing or unknown leaves as `table-unreadable`."""
        try:
            yield
        except sqlite.DatabaseMissingError:
            raise
        except (
            FileNotFoundError,
            EncryptedFileError,
            ValidationError,
            PydanticValidationError,
            *_DAMAGE,
        ) as error:
            raise _unreadable(catalog, identifier, error) from error

    def forget(self, catalog_id: str) -> None:
        """Close a catalog; the next use opens it again."""
        with self._lock:
            opened = self._opened.pop(catalog_id, None)
        if opened is not None:
            opened.source.close()

    def close(self) -> None:
        for catalog_id in list(self._opened):
            self.forget(catalog_id)

    def _source(self, catalog: Catalog) -> TableSource:
        with self._lock:
            opened = self._opened.get(catalog.id)
        if opened is not None and opened.version == catalog.version:
            return opened.source
        source = open_source(self._settings, catalog)
        with self._lock:
            before = self._opened.get(catalog.id)
            self._opened[catalog.id] = _Opened(catalog.version, source)
        if before is not None:
            before.source.close()
        return source


def name_inside(catalog: Catalog) -> str:
    """The catalog name that rows of a sql catalog's database carry."""
    return catalog.properties.get("catalog_name", catalog.name)


def open_source(settings: Settings, catalog: Catalog) -> TableSource:
    """Open a catalog of any type. Raises InvalidError for what the operator does not allow, and whatever
    PyIceberg and its drivers raise."""
    kind = CatalogType(catalog.type)
    properties = _reachable(settings, catalog)
    properties.pop("catalog_name", None)
    if kind is CatalogType.HADOOP:
        return HadoopSource(properties["warehouse"], GuardedFileIO({**properties, SETTINGS: settings}))
    if kind is CatalogType.SQL:
        # Neither makes PyIceberg tables that are not there, nor does it alter those that are.
        properties["init_catalog_tables"] = "false"
        properties.pop("schema_version", None)
    opened = open_catalog(settings, kind, name_inside(catalog), properties)
    return PyIcebergSource(opened, metadata_locations_reader(kind, opened))


def resolve_allowed(settings: Settings, catalog: Catalog) -> dict[str, str]:
    """The properties with their secrets. Raises InvalidError for those that are not there, or not allowed."""
    kind = CatalogType(catalog.type)
    check_record(settings, kind, catalog.properties)
    properties = resolve(catalog.properties, settings.secret_rules, settings.own_files)
    check_record(settings, kind, properties)
    return properties


def _reachable(settings: Settings, catalog: Catalog) -> dict[str, str]:
    properties = resolve_allowed(settings, catalog)
    check_reachable(settings, CatalogType(catalog.type), properties)
    return of_tables(properties)


def create_sql_catalog(name: str, uri: str, warehouse: str) -> None:
    """Create the tables of an empty sql catalog, as `up` needs for its embedded one; existing ones stay."""
    SqlCatalog(name, uri=uri, warehouse=warehouse).engine.dispose()


def catalog_names_in_database(settings: Settings, catalog: Catalog) -> list[str]:
    """The catalog names that a sql catalog's database holds tables or namespaces of."""
    engine = open_engine(settings, _reachable(settings, catalog)["uri"])
    try:
        with engine.connect() as connection:
            present = set(inspect(connection).get_table_names())
            names: set[str] = set()
            for table in SqlCatalogBaseTable.metadata.sorted_tables:
                if table.name in present:
                    names.update(connection.execute(select(table.c.catalog_name).distinct()).scalars())
            return sorted(names)
    finally:
        engine.dispose()


def unreachable(catalog: Catalog, error: Exception) -> UnreachableError:
    """What went wrong, in words, without the secrets that driver messages may contain."""
    if (limit := limit_of(error)) is not None:
        told = redact(f"Catalog {catalog.name!r} ({catalog.type}): {limit}", catalog)
        if isinstance(limit, OutOfTimeError):
            return UnreachableError("catalog-too-slow", told, limit.remedy)
        return UnreachableError("catalog-limit-exceeded", told, limit.remedy)
    if isinstance(error, CannotSignError | CredentialsError):
        told = redact(f"Catalog {catalog.name!r} ({catalog.type}): {error.detail}", catalog)
        return UnreachableError("catalog-unreachable", told, error.remedy)
    is_gone = isinstance(error, sqlite.DatabaseMissingError)
    said = f"{error}." if is_gone else f"{type(error).__name__}: {error}"
    cause = redact(said, catalog).splitlines()[0][:_LONGEST_CAUSE]
    return UnreachableError(
        "catalog-unreachable",
        f"Catalog {catalog.name!r} ({catalog.type}): {cause}",
        f"{_advice(error)} A check of the catalog tries it again.",
    )


def budget_seconds(settings: Settings, silences: int = 4) -> float:
    """How long work with a catalog may take in all: as long as so many silences of it may."""
    return silences * settings.catalog_timeout_seconds


def limit_of(error: BaseException) -> LimitExceededError | None:
    """The limit that was exceeded, if that is why something failed, however libraries wrapped it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, LimitExceededError):
            return cause
        cause = cause.__cause__ or cause.__context__
    try:
        check_time()
    except OutOfTimeError as late:
        return late
    return None


def _unreadable(catalog: Catalog, identifier: Identifier, error: Exception) -> InvalidError:
    if isinstance(error, FileNotFoundError):
        cause = f"a metadata file of it is missing: {error}"
        remedy = "If snapshots are just being expired, the next look helps; otherwise restore the file."
    elif isinstance(error, EncryptedFileError):
        cause, remedy = f"it is encrypted: {error}", ENCRYPTED_REMEDY
    elif isinstance(error, _DAMAGE) or _is_no_json(error):
        cause = f"a metadata file of it is damaged: {str(error).partition(chr(10))[0][:500]}"
        remedy = "Restore that file, or have the catalog name the one before it."
    else:
        findings = error.errors() if isinstance(error, PydanticValidationError) else []
        causes = sorted({str(finding["msg"]) for finding in findings}) or [str(error)]
        cause = f"its metadata says something that PyIceberg does not know: {'; '.join(causes)[:500]}"
        remedy = "Enrol it once a version of Icestream knows that."
    return InvalidError(
        "table-unreadable",
        redact(f"Catalog {catalog.name!r} has table {'.'.join(identifier)!r}, but {cause}.", catalog),
        remedy,
    )


def _is_no_json(error: Exception) -> bool:
    """PyIceberg has an error of its own for some of pydantic's."""
    found = [one for one in (error, *error.args) if isinstance(one, PydanticValidationError)]
    return any(finding["type"] == "json_invalid" for one in found for finding in one.errors())


def redact(message: str, catalog: Catalog) -> str:
    """Replace in a message every resolved secret, the parts of it that are secret, and bearer tokens."""
    for key, value in catalog.properties.items():
        if not is_reference(key, value):
            continue
        with suppress(InvalidError):  # what is not there now can't be told from other words
            for part in sorted(parts_of(resolve({key: value})[key]), key=len, reverse=True):
                if len(part) >= _SHORTEST_SECRET:
                    message = message.replace(part, f"<{key}>")
    return _BEARER.sub(r"\1 <token>", message)


def _advice(error: Exception) -> str:
    if isinstance(error, sqlite.DatabaseMissingError):
        return DATABASE_REMEDY
    if isinstance(error, PermissionError):
        return "Let the service's user read that path."
    if (refusal := refusal_of(str(error))) is not None:
        return refusal[1]
    if "no such table" in str(error) or "does not exist" in str(error):
        return "The database answers but holds no Iceberg catalog: check `uri`."
    return "Check that `uri` and credentials are right and that the service can reach it over the network."


def table_not_found(
    settings: Settings, catalog: Catalog, source: TableSource, identifier: Identifier
) -> InvalidError:
    """Says what is there instead: the nearest tables or namespaces, or other catalog names."""
    wanted = ".".join(identifier)
    namespaces = source.namespaces()
    if identifier[:-1] in namespaces:
        names = [".".join(name) for name in source.tables(identifier[:-1])[:_LISTED_TABLES]]
        nearest = _nearest(wanted, names)
        seen = f"Namespace {'.'.join(identifier[:-1])!r} holds {counted(len(names), 'table')}"
    else:
        names = [".".join(namespace) for namespace in namespaces]
        nearest = _nearest(".".join(identifier[:-1]), names)
        for namespace in namespaces[:100]:
            nearest += [
                name
                for name in map(".".join, source.tables(namespace))
                if name.endswith("." + identifier[-1])
            ]
        seen = (
            f"There is no namespace {'.'.join(identifier[:-1])!r}; it has {counted(len(names), 'namespace')}"
        )
    detail = f"Catalog {catalog.name!r} has no table {wanted!r}. {seen}"
    detail += f"; the nearest: {', '.join(nearest)}." if nearest else "."
    remedy = "Give the namespace and the name of the table as the catalog spells them."
    others: list[str] = []
    if catalog.type == CatalogType.SQL.value:
        others = [
            name for name in catalog_names_in_database(settings, catalog) if name != name_inside(catalog)
        ]
        if others:
            detail += (
                f" It looked for catalog name {name_inside(catalog)!r}; "
                f"the database holds also: {', '.join(others)}."
            )
            remedy = (
                f"If the table is one of {others[0]!r}, set the catalog property catalog_name to it. {remedy}"
            )
    return InvalidError("table-not-found", detail, remedy, nearest=nearest, catalog_names=others)


def _nearest(wanted: str, names: list[str]) -> list[str]:
    close = difflib.get_close_matches(wanted, names, n=5, cutoff=0.5)
    return close or sorted(names)[:5]
