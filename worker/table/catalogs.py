"""Opens Iceberg tables in Java from the catalog record that PyIceberg reads too.

A record is a type (`sql`, `rest`, `hadoop`, `hive`, `glue`) and properties in PyIceberg's words; this module
is the one place that knows how Java says the same.
"""

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from py4j.java_gateway import JavaClass, JavaObject, JVMView
from py4j.protocol import Py4JError, Py4JJavaError
from pyiceberg.table.metadata import TableMetadata
from pyspark.errors.exceptions.captured import CapturedException

from stores.aws import Identity
from stores.azure import AZURE_SCHEMES, azure_host, check_endpoint
from stores.catalog_properties import of_tables
from stores.file_io import GOOGLE_SCHEMES
from stores.signatures import CannotSignError, refusal_of
from stores.table_metadata import parse_table_metadata
from trust import refusals
from trust.bounds import LimitExceededError
from trust.egress import Egress, HostNotAllowedError
from trust.locations import sqlite_path
from trust.properties import chooses_code, unknown_database_options
from trust.rest_answers import SentElsewhereError
from worker.io.cache import Cache
from worker.io.storage import PLACES
from worker.process.slots import ALONE, Slot
from worker.spark.jvm import java_functions, java_map, java_object
from worker.table.avro_files import EncryptedTableError
from worker.table.record_properties import CatalogError, python_properties
from worker.table.rest_gateway import RestGateway, open_gateway, words_of

CATALOG_NAME = "catalog_name"

KEPT = Cache(64 * 1024**2)
"""The metadata of tables, as it was found last."""
_FACTOR = 6  # by which it is larger in memory than its JSON

_MISSING = frozenset(
    f"org.apache.iceberg.exceptions.{name}"
    for name in ("NoSuchTableException", "NoSuchNamespaceException", "NoSuchIcebergTableException")
)
_IMPLEMENTATIONS = {
    "sql": "org.apache.iceberg.jdbc.JdbcCatalog",
    "rest": "org.apache.iceberg.rest.RESTCatalog",
    "hadoop": "org.apache.iceberg.hadoop.HadoopCatalog",
    "hive": "org.apache.iceberg.hive.HiveCatalog",
    "glue": "org.apache.iceberg.aws.glue.GlueCatalog",
}
# PyIceberg's name and Java's, where they differ by name alone.
_JAVA_NAMES = {
    "s3.region": "client.region",
    "glue.region": "client.region",
    "client.access-key-id": "s3.access-key-id",
    "client.secret-access-key": "s3.secret-access-key",
    "client.session-token": "s3.session-token",
    "adls.account-name": "adls.auth.shared-key.account.name",
    "adls.account-key": "adls.auth.shared-key.account.key",
}
# As ICESTREAM_STORES names them: a package that Iceberg's FileIO is made on, a class there, and its schemes.
_STORES = {
    "gcs": ("com.google.", "cloud.storage.Storage", GOOGLE_SCHEMES),
    "azure": ("com.azure.", "storage.file.datalake.DataLakeFileClient", AZURE_SCHEMES),
}
_DELEGATION = "header.X-Iceberg-Access-Delegation"
_CREDENTIALS = ("access-key-id", "secret-access-key", "session-token")
_NO_FILES = "org.apache.iceberg.inmemory.InMemoryFileIO"
_MISSING_FILE = Path(__file__).with_name("MissingFile.java")
_TABLES = Path(__file__).with_name("Tables.java")
# Parts of the names of their errors' classes.
_PARSERS = (".jackson.", ".avro.", "NumberFormatException", "DateTimeParseException")


class CodeNotAllowedError(CatalogError):
    """The record chooses which code is loaded; the service refuses such records."""

    code = "property_not_allowed"
    title = "The catalog's record chooses code"
    remedy = "Take that out of the catalog's properties, or of what they refer to."


class StoreNotSupportedError(CatalogError):
    """This worker lacks the JARs of the table's store. `store`: as ICESTREAM_STORES names it."""

    code = "store_not_supported"
    title = "This worker can't open tables on that store"

    def __init__(self, store: str, place: str) -> None:
        super().__init__(
            f"{place}, and this worker lacks the JARs by which Iceberg reaches that store.",
            f"Start the worker with {store} in ICESTREAM_STORES, which fetches them (an image gets them with"
            f" --build-arg STORES={store}), then retry.",
        )
        self.store = store


class CatalogUnreachableError(CatalogError):
    """The catalog does not answer, or refuses; a retry can help."""

    retryable = True


class TableNotFoundError(CatalogError):
    """The catalog answers, and has no such table."""

    code = "table_not_found"
    title = refusals.NO_TABLE
    remedy = "Register the table under its present name, or remove it here if it was dropped."


def load_table(
    jvm: JVMView,
    catalog_type: str,
    name: str,
    properties: Mapping[str, str],
    identifier: Sequence[str],
    check_location: Callable[[str], None] = lambda _: None,
    egress: Egress | None = None,
    slot: Slot = ALONE,
) -> JavaObject:
    """The `org.apache.iceberg.Table`, freshly loaded.

    properties: PyIceberg's, secrets resolved. `catalog_name` among them replaces `name`, by which a sql
    database tells the catalogs in it apart. check_location: raises for a place that may not be read; asked
    before Java opens anything there, of what a database, Hive or Glue says too. egress: the hosts that the
    catalog may lead to; any by default. slot: of the job that asks.
    Raises CatalogUnreachableError, SentElsewhereError, CodeNotAllowedError, HostNotAllowedError,
    LimitExceededError, StoreNotSupportedError, TableNotFoundError, or MemoryError.
    """
    properties, dotted = of_tables(properties), ".".join(identifier)
    settings, gateway = _settings(
        catalog_type, name, properties, f"open table {dotted}", check_location, egress or Egress(), slot
    )
    inner_name = properties.get(CATALOG_NAME, name)
    *namespace, table = identifier
    try:
        java_identifier = json.dumps({"namespace": namespace, "name": table})
        if catalog_type == "hadoop":
            check_location("/".join((properties["warehouse"].rstrip("/"), *identifier)))
        elif gateway is None:
            place = _metadata_location(jvm, inner_name, settings, java_identifier)
            if place is not None:
                check_location(place)
                _check_store(jvm, place)
        catalog = _open(jvm, inner_name, tuple(sorted(settings.items())))
        loaded = tables(catalog).load(catalog, java_identifier)
        # Where Java writes when it commits.
        for place in json.loads(tables(catalog).places(loaded)):
            if place:
                check_location(place)
                if catalog_type != "hadoop":  # whose files Hadoop opens
                    _check_store(jvm, place)
        return loaded
    except (Py4JError, CapturedException) as error:
        raise_lack_of_memory(error)
        if gateway is not None and gateway.refusal is not None:
            raise gateway.refusal from None
        if java_types(error) & _MISSING:
            raise TableNotFoundError(f"Catalog {name} has no table {dotted}.") from None
        message = java_message(error)
        raise _unreachable(name, f"open table {dotted}", message) from None


def open_catalog(
    jvm: JVMView, catalog_type: str, name: str, properties: Mapping[str, str]
) -> tuple[JavaObject, RestGateway | None]:
    """The `org.apache.iceberg.catalog.Catalog` itself, for whoever makes tables and drops them.

    With the gateway through which it, and its tables of `load_table` with the same record, ask a REST
    catalog. properties: as of `load_table`. No place that it leads to is checked.
    Raises CatalogUnreachableError, SentElsewhereError, CodeNotAllowedError, HostNotAllowedError,
    LimitExceededError, or MemoryError.
    """
    properties = of_tables(properties)
    settings, gateway = _settings(
        catalog_type, name, properties, "be opened", lambda _: None, Egress(), ALONE
    )
    return _open(jvm, properties.get(CATALOG_NAME, name), tuple(sorted(settings.items()))), gateway


def _settings(
    catalog_type: str,
    name: str,
    properties: Mapping[str, str],
    task: str,
    check_location: Callable[[str], None],
    egress: Egress,
    slot: Slot,
) -> tuple[dict[str, str], RestGateway | None]:
    """Java's properties of a catalog, once these were judged, and the gateway that they lead to.

    task: what the catalog could not do, in errors.
    """
    _check_code(catalog_type, name, properties)
    try:
        egress.check(properties)
    except OSError as error:
        raise CatalogUnreachableError(f"A host that catalog {name} names is not known: {error}") from None
    if catalog_type == "sql" and (path := sqlite_path(properties.get("uri", ""))) is not None:
        check_location(path)
    settings = java_properties(catalog_type, properties)
    if catalog_type == "sql":
        _check_database(name, task, properties["uri"])
    if catalog_type != "rest":
        return settings, None
    gateway = _gateway(name, task, properties, egress, slot)
    return gateway.java_properties(settings), gateway


def _check_code(catalog_type: str, name: str, properties: Mapping[str, str]) -> None:
    """Judges a record once more, after references are resolved."""
    chosen = sorted(key for key, value in properties.items() if chooses_code(key, value))
    if catalog_type == "sql":
        chosen += unknown_database_options(properties.get("uri", ""))
    if chosen:
        raise CodeNotAllowedError(
            f"The record of catalog {name} has {', '.join(chosen)}, which could choose what code is loaded."
        )


def _gateway(name: str, task: str, properties: Mapping[str, str], egress: Egress, slot: Slot) -> RestGateway:
    try:
        return open_gateway(name, tuple(sorted(properties.items())), egress, slot)
    except (HostNotAllowedError, SentElsewhereError, LimitExceededError, MemoryError):
        raise
    except CannotSignError as error:
        raise _unreachable(name, task, error.detail, error.remedy) from None
    except Exception as error:
        raise _unreachable(name, task, words_of(error)) from None


def _unreachable(name: str, task: str, said: str, remedy: str = "") -> CatalogUnreachableError:
    if (refusal := refusal_of(said)) is not None:
        _, remedy = refusal
    return CatalogUnreachableError(f"Catalog {name} could not {task}: {said}", remedy)


def _check_database(name: str, task: str, uri: str) -> None:
    """Raises CatalogUnreachableError for a file that is not there."""
    path = sqlite_path(uri)
    if path is not None and not Path(path).is_file():
        raise CatalogUnreachableError(
            f"Catalog {name} could not {task}: its database {path} is not there. Mount the disk "
            "that it lies on, or put the file back where it was; none is made in its place."
        )


def _metadata_location(jvm: JVMView, name: str, settings: Mapping[str, str], identifier: str) -> str | None:
    """Where a database, Hive or Glue says that a table's metadata lies, which Iceberg would read at once.

    Iceberg is asked with a FileIO that has no files and tells which one it lacks.
    """
    blind = tuple(sorted({**settings, "io-impl": _NO_FILES}.items()))
    location: str | None = _blind(jvm, name, blind).of(identifier)
    return location


@lru_cache(maxsize=32)
def _blind(jvm: JVMView, name: str, settings: tuple[tuple[str, str], ...]) -> JavaObject:
    catalog = _open(jvm, name, settings)
    return java_object(catalog, _MISSING_FILE, "MissingFile", catalog)


def _check_store(jvm: JVMView, place: str) -> None:
    """Raises StoreNotSupportedError. Iceberg would name a class of its own, or of Hadoop's, and of a REST
    catalog's table only when it commits."""
    scheme = place.partition(":")[0]
    for store, (package, class_there, schemes) in _STORES.items():
        if scheme in schemes and not _has_class(jvm, package + class_there):
            raise StoreNotSupportedError(store, f"The table lies at {place}")


def _has_class(jvm: JVMView, name: str) -> bool:
    found: object = jvm
    for part in name.split("."):
        found = getattr(found, part)
    return isinstance(found, JavaClass)  # or a package, as which py4j takes any other name


def java_properties(catalog_type: str, properties: Mapping[str, str]) -> dict[str, str]:
    """PyIceberg's properties of a catalog as Iceberg Java understands them, its class included.

    What is spelled alike passes through; Java's own spelling wins where both are given. Pure.
    Raises CatalogUnreachableError for a type that is not supported and an address that can't be read.
    """
    if catalog_type not in _IMPLEMENTATIONS:
        raise CatalogUnreachableError(
            f"Catalog type {catalog_type} is not supported, only {', '.join(sorted(_IMPLEMENTATIONS))}."
        )
    java = {key: value for key, value in properties.items() if key not in _JAVA_NAMES}
    for key in ("type", CATALOG_NAME):
        java.pop(key, None)
    for key, java_name in _JAVA_NAMES.items():
        if key in properties:
            java.setdefault(java_name, properties[key])
    # pyarrow addresses buckets by path as soon as an endpoint is named, unless told otherwise.
    if "s3.endpoint" in properties:
        by_host = properties.get("s3.force-virtual-addressing", "false").lower() == "true"
        java.setdefault("s3.path-style-access", "false" if by_host else "true")
    _name_azure_account(java)
    java |= _assumed_role(catalog_type, properties)
    if catalog_type in ("sql", "hive"):
        # Chooses the file system by the scheme of each location; the default there is Hadoop's for all.
        java.setdefault("io-impl", "org.apache.iceberg.io.ResolvingFileIO")
    if catalog_type == "sql":
        jdbc = _jdbc_properties(properties.get("uri", ""))
        java |= {key: value for key, value in jdbc.items() if key == "uri" or key not in properties}
    if catalog_type == "glue":
        for key in _CREDENTIALS:
            if value := properties.get(f"glue.{key}") or properties.get(f"client.{key}"):
                java[f"glue.{key}"] = value
    java["catalog-impl"] = _IMPLEMENTATIONS[catalog_type]
    return java


def _assumed_role(catalog_type: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Java takes a role for all that it asks of AWS; of a REST catalog it asks for what is vended instead."""
    if catalog_type == "rest" and "vended-credentials" in properties.get(_DELEGATION, ""):
        return {}
    identity = Identity.of(properties, "s3")
    if catalog_type == "glue" and identity.role != Identity.of(properties, "glue").role:
        raise CatalogUnreachableError(
            "The record has a role for S3 or Glue alone, and Java asks both in the same one.",
            "Give the role as client.role-arn, for both.",
        )
    if identity.role is None:
        return {}
    if not (region := identity.region_of_machine()):
        raise CatalogUnreachableError(
            "Nothing says in which region of AWS the record's role is to be assumed.",
            "Set client.region in the record, or AWS_REGION in the worker's environment.",
        )
    named = {"arn": identity.role, "region": region}
    named |= {"external-id": identity.external_id or "", "session-name": identity.role_session or ""}
    role = {f"client.assume-role.{name}": value for name, value in named.items() if value}
    return {"client.factory": "org.apache.iceberg.aws.AssumeRoleAwsClientFactory", **role}


def _name_azure_account(java: dict[str, str]) -> None:
    """Java takes tokens and endpoints only with the host that they are for, and a name only with its key."""
    name, key = _JAVA_NAMES["adls.account-name"], _JAVA_NAMES["adls.account-key"]
    host = azure_host(java.get("warehouse", ""))
    account = java.get(name) or host.partition(".")[0]
    if account:
        hosts = [f"{account}.dfs.core.windows.net", account]
        if host.partition(".")[0] == account:
            hosts[0] = host
        for prefix in ("adls.sas-token", "adls.connection-string"):
            if prefix in java:
                value = java.pop(prefix)
                for one in hosts:
                    java.setdefault(f"{prefix}.{one}", value)
        if key in java:
            java.setdefault(name, account)
        elif name in java:
            java["adls.account-name"] = java.pop(name)  # for Storage
    for one, value in java.items():
        if one.startswith("adls.connection-string"):
            try:
                check_endpoint(value)
            except OSError as error:
                raise CatalogUnreachableError(f"{error}.") from None


_READ_AND_WRITE = "2"
"""Of SQLite's flags to open a file, without the one that creates it."""
_TIMEOUTS = {"socketTimeout": "60", "connectTimeout": "10", "tcpKeepAlive": "true"}  # seconds


def _jdbc_properties(uri: str) -> dict[str, str]:
    """A SQLAlchemy address as JDBC's; user and password become properties, so that no message shows them."""
    # A database without the tables of a catalog is another one, or one that lost them.
    jdbc = {"jdbc.schema-version": "V1", "jdbc.init-catalog-tables": "false"}
    if (path := sqlite_path(uri)) is not None:
        # Neither the driver nor SQLite makes a file that is named like this. Writers of the embedded catalog
        # wait for each other rather than fail.
        uri = f"jdbc:sqlite:file:{quote(path)}?mode=rw"
        return jdbc | {"uri": uri, "jdbc.busy_timeout": "60000", "jdbc.open_mode": _READ_AND_WRITE}
    parts = urlsplit(uri)
    dialect = parts.scheme.partition("+")[0]
    if dialect in ("postgresql", "postgres") and parts.hostname:
        query = f"?{parts.query}" if parts.query else ""
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        jdbc["uri"] = f"jdbc:postgresql://{host}:{parts.port or 5432}{parts.path}{query}"
        # The driver would wait for ever for a server that the network lost, and the job with it.
        jdbc |= {f"jdbc.{name}": value for name, value in _TIMEOUTS.items() if f"{name}=" not in query}
        if parts.username:
            jdbc["jdbc.user"] = unquote(parts.username)
        if parts.password:
            jdbc["jdbc.password"] = unquote(parts.password)
        return jdbc
    raise CatalogUnreachableError(
        "The catalog's uri must read sqlite:////path or postgresql://user:password@host/database."
    )


def table_metadata(java_table: JavaObject, table: Hashable = None) -> TableMetadata:
    """What Java has read of a table already, so that no store is asked for the same file once more.

    table: which one it is, and how its files are opened: what its snapshots say is understood once then.
    Raises CatalogUnreachableError, MemoryError, or PyIceberg's ValidationError.
    """
    try:
        text = metadata_json(java_table)
    except (Py4JError, CapturedException) as error:  # a REST catalog may tell of snapshots only now
        raise_lack_of_memory(error)
        raise CatalogUnreachableError(f"The table's snapshots can't be read: {java_message(error)}") from None
    metadata = parse_table_metadata(text.encode(), None if table is None else KEPT.find(table))
    if table is not None:
        KEPT.put(table, metadata, _FACTOR * len(text))
    return metadata


def metadata_json(java_table: JavaObject) -> str:
    """The metadata that Java has of a table, in Iceberg's JSON form: as Java would write it. Raises Java's
    errors."""
    return str(tables(java_table).metadata(java_table))


def tables(neighbour: JavaObject) -> JavaObject:
    """What Tables.java says of tables beside an object."""
    return java_functions(neighbour._gateway_client, _TABLES, "Tables")


def file_io_properties(java_table: JavaObject) -> dict[str, str]:
    """What `Storage` needs to read and write a table's files, in PyIceberg's words.

    The file properties of the catalog, over them those that it vends for the table's location, and where it
    vends for other places too, likewise those. Nothing else of the catalog, such as its password, is among
    them, since they travel to every task. Raises EncryptedTableError.
    """
    try:
        told = json.loads(tables(java_table).files(java_table))
    except CapturedException as error:
        # Of a table of Hive's that has a key. It takes a client of the owner's key management, which is code.
        if (key := java_table.properties().get("encryption.key-id")) is None:
            raise
        raise EncryptedTableError(f"its encryption.key-id is {key}: {java_message(error)}") from None
    java = _strings_in(told["properties"])
    # What a REST catalog vends ("storage-credentials"), by the prefix of the locations that it is for.
    vended = {prefix: _strings_in(config) for prefix, config in told["vended"].items()}
    location = told["location"]
    nearest = max((prefix for prefix in vended if location.startswith(prefix)), key=len, default=None)
    properties = python_properties(java | (vended[nearest] if nearest is not None else {}))
    if len(vended) > 1:
        places = {prefix: python_properties(java | config) for prefix, config in vended.items()}
        properties[PLACES] = json.dumps(places)
    return properties


def java_types(error: Exception) -> frozenset[str]:
    """The names of a Java error's class, its superclasses and their interfaces; none when Java did not
    answer."""
    exception = _java_exception(error)
    names: set[str] = set()
    java_class = exception.getClass() if exception is not None else None
    while java_class is not None:
        names |= {java_class.getName(), *(interface.getName() for interface in java_class.getInterfaces())}
        java_class = java_class.getSuperclass()
    return frozenset(names)


def java_message(error: Exception) -> str:
    """What a Java error says, with its innermost cause, without a stack trace.

    What a parser says may quote the file that it read, which a catalog may have chosen: of that, nothing.
    """
    exception = _java_exception(error)
    if exception is None:
        return f"Spark's JVM does not answer ({error})"
    message = cause = exception
    while not (is_quoting := _quotes_content(cause)) and (inner := cause.getCause()) is not None:
        cause = inner
    if is_quoting:
        return "What it answered, or a metadata file of the table, is not what Iceberg can read."
    said, because = (str(one.getMessage() or one.getClass().getSimpleName()) for one in (message, cause))
    # Some libraries put the causes, or even their stack traces, into the message.
    said, because = " ".join(said.split()), because.splitlines()[0]
    return said if because in said else f"{said} ({because})"


def _quotes_content(exception: JavaObject) -> bool:
    """Whether an error is a parser's."""
    is_parsers = any(part in exception.getClass().getName() for part in _PARSERS)
    return is_parsers or str(exception.getMessage()).startswith("Cannot parse ")


def raise_lack_of_memory(error: Exception) -> None:
    """Raises MemoryError for a Java error that says that the heap is full, whoever wrapped it."""
    cause = _java_exception(error)
    while cause is not None:
        if cause.getClass().getName() == "java.lang.OutOfMemoryError":
            raise MemoryError(f"Spark's JVM: {java_message(error)}") from error
        cause = cause.getCause()


@lru_cache(maxsize=32)
def _open(jvm: JVMView, name: str, settings: tuple[tuple[str, str], ...]) -> JavaObject:
    """A catalog, kept open: it holds connections, and tables go on using it."""
    hadoop_configuration = jvm.org.apache.spark.SparkContext.getOrCreate().hadoopConfiguration()
    given = dict(settings)
    key_id, secret, token = (given.pop(f"glue.{key}", None) for key in _CREDENTIALS)
    properties = java_map(jvm, given)
    catalog = jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog(name, properties, hadoop_configuration)
    if key_id and secret:
        _sign_glue(jvm, catalog, properties, key_id, secret, token)
    return catalog


def _sign_glue(
    jvm: JVMView, catalog: JavaObject, properties: JavaObject, key_id: str, secret: str, token: str | None
) -> None:
    """Has a Glue catalog sign its calls with credentials of its own.

    Iceberg takes those of a record for S3 alone. For Glue it takes a class that finds some, which is one for
    all catalogs of a JVM; so its client is replaced by the same one with these.
    """
    aws = jvm.org.apache.iceberg.aws
    client = aws.AwsClientProperties(properties)
    builder = jvm.software.amazon.awssdk.services.glue.GlueClient.builder()
    client.applyClientRegionConfiguration(builder)
    aws.HttpClientProperties(properties).applyHttpClientConfigurations(builder)
    aws.AwsProperties(properties).applyGlueEndpointConfigurations(builder)
    builder.credentialsProvider(client.credentialsProvider(key_id, secret, token))
    field = catalog.getClass().getDeclaredField("glue")
    field.setAccessible(True)
    field.set(catalog, builder.build())


def _strings_in(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: value for key, value in values.items() if isinstance(value, str)}


def _java_exception(error: Exception) -> JavaObject | None:
    if isinstance(error, CapturedException):  # PySpark's wrapper of some Java errors
        return error._origin
    return error.java_exception if isinstance(error, Py4JJavaError) else None
