"""The rule of which properties choose code knows all those of the installed PyIceberg and Iceberg."""

from __future__ import annotations

import ast
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from struct import unpack_from
from zipfile import ZipFile

import pytest

from trust.properties import chooses_code, unknown_database_options, without_code
from worker.spark.jars import cached_jars, jars_folder

_NAME = re.compile(r"(?!(org|com|net|sun|software)\.)[a-z][A-Za-z0-9]*([.-][A-Za-z0-9_]+)+[.-]?")
_SUSPICIOUS = re.compile(
    r"(^|[._-])(impl|impls|class|classes|classname|classpath|factory|provider|plugin|plugins|reporter|manager"
    r"|loader|handler|listener|driver|resolver|strategy|supplier|builder|interceptor|extension|extensions"
    r"|class-name|configurer|customizer|mapper|serde|hook|script|command|executable|jar|jars|library|module|signer"
    r"|delegate|type|engine|service|function|callback)[.-]?$|^(py|hadoop|java|jdbc)[.-]",
    re.IGNORECASE,
)
# Each was looked up: what it says is compared with known words, or is no name of anything that is loaded.
HARMLESS = {
    "PyIceberg": {
        "auth.manager",  # no property: an error names it
        "s3.signer",  # one of a dictionary
    },
    "Iceberg": {
        "application-type",
        "compression-strategy",
        "delete-type",
        "encryption.kms-type",
        "hive.metastore.database.owner-type",
        "http-client.type",
        "iceberg-planning-monitor-service",  # of threads
        "iceberg.binary-type",
        "iceberg.long-type",
        "iceberg.struct-type",
        "jdbc.schema-version",
        "jdbc.strict-mode",
        "report-type",
        "rest-metrics-reporter",  # of threads
        "s3-signer",
        "s3.sse.type",
        "s3.write.storage-class",
        "task-type",
        "write.delete.orc.compression-strategy",
        "write.orc.compression-strategy",
    },
}
# Where something is loaded by a name, and by which property, if any gives that name.
IMPORTING = {
    "catalog/__init__.py": "py-catalog-impl",
    "catalog/rest/auth.py": "auth",
    "io/__init__.py": "py-io-impl",
    "io/pyarrow.py": "s3.retry-strategy-impl",
    "table/locations.py": "write.py-location-provider.impl",
    "transforms.py": None,
}
LOADERS = {
    "java/util/ServiceLoader",
    *(f"org/apache/iceberg/common/Dyn{what}$Builder" for what in ("Constructors", "Classes", "Methods")),
}
LOADING_METHODS = {"forName", "loadClass", "findClass", "defineClass"}
LOADING = {
    "CatalogUtil": ("catalog-impl", "io-impl", "metrics-reporter-impl"),
    "InternalData": (),
    "LocationProviders": ("write.location-provider.impl",),
    "RewriteTablePathUtil": (),  # a Puffin codec's name
    "aliyun/AliyunClientFactories": ("client.factory-impl",),
    "aliyun/oss/OSSFileIO": (),
    "avro/AvroIO": (),
    "avro/GenericAvroReader$ResolvingReadBuilder": (),
    "avro/InternalReaders$PlannedStructLikeReader": (),
    "avro/ValueReaders$IndexedRecordReader": (),
    "avro/ValueReaders$PlannedIndexedReader": (),
    "aws/AwsClientFactories": ("client.factory",),
    "aws/AwsClientProperties": ("client.credentials-provider",),
    "aws/AwsProperties": ("client.credentials-provider",),
    "aws/HttpClientProperties": (),  # one of two, by `http-client.type`
    "aws/S3FileIOAwsClientFactories": ("s3.client-factory-impl",),
    "aws/glue/GlueCatalog": (),
    "aws/glue/GlueTableOperations": (),
    "aws/glue/IcebergToGlueConverter": (),
    "aws/s3/S3FileIO": (),
    "aws/s3/S3FileIOProperties": (),
    "azure/AdlsTokenCredentialProviders": ("adls.token-credential-provider",),
    "azure/adlsv2/ADLSFileIO": (),
    "common/DynClasses": (),
    "common/DynClasses$Builder": (),
    "common/DynConstructors": (),
    "common/DynConstructors$Builder": (),
    "common/DynFields$Builder": (),
    "common/DynMethods": (),
    "common/DynMethods$Builder": (),
    "encryption/EncryptionUtil": ("encryption.kms-impl",),
    "formats/FormatModelRegistry": (),
    "gcp/GcpKeyManagementClient$ByteStringShim": (),
    "gcp/gcs/GCSFileIO": (),
    "hive/HiveClientPool": (),
    "hive/MetastoreUtil": (),
    "io/ResolvingFileIO": (),  # by the scheme of a location
    "parquet/ParquetCodecFactory": (),  # by a codec that Parquet knows
    "parquet/ParquetValueReaders$StructLikeReader": (),
    "puffin/PuffinReader": (),  # a Puffin codec's name
    "rest/HTTPClient": ("rest.client.tls.configurer-impl",),
    "rest/auth/AuthManagers": ("rest.auth.type", "rest.auth.sigv4.delegate-auth-type"),
    "snowflake/SnowflakeCatalog": (),
    "util/LockManagers": ("lock-impl",),
}


def python_files() -> Iterator[tuple[str, ast.Module]]:
    root = Path(str(resources.files("pyiceberg")))
    for path in sorted(root.rglob("*.py")):
        yield path.relative_to(root).as_posix(), ast.parse(path.read_text())


def java_classes() -> Iterator[tuple[str, bytes]]:
    """Iceberg's own classes, of all modules that are in its JAR for Spark."""
    (jar,) = [path for path in cached_jars(jars_folder(os.environ)) if "iceberg-spark-runtime" in path.name]
    with ZipFile(jar) as archive:
        for name in archive.namelist():
            is_own = re.match(r"org/apache/iceberg/(?!shaded/|relocated/)", name)
            if is_own and name.endswith(".class"):
                yield name.removeprefix("org/apache/iceberg/").removesuffix(".class"), archive.read(name)


def constants_of(content: bytes) -> tuple[set[str], set[str], set[str]]:
    """The strings of a class file, and the names of the classes and members it refers to (JVM spec, 4.4)."""
    widths = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4}
    texts: dict[int, str] = {}
    found: dict[int, list[int]] = defaultdict(list)
    (count,), offset, index = unpack_from(">H", content, 8), 10, 1
    while index < count:
        tag = content[offset]
        offset += 1
        if tag == 1:
            (length,) = unpack_from(">H", content, offset)
            texts[index] = content[offset + 2 : offset + 2 + length].decode(errors="replace")
            offset += 2 + length
        else:
            found[tag].append(unpack_from(">H", content, offset)[0])
            offset += widths[tag]
        index += 2 if tag in (5, 6) else 1
    strings, classes, members = ({texts[one] for one in found[tag]} for tag in (8, 7, 12))
    return strings, classes, members


def names_in_pyiceberg() -> set[str]:
    return {
        node.value
        for _, module in python_files()
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def names_in_iceberg() -> set[str]:
    return {name for _, content in java_classes() for name in constants_of(content)[0]}


@pytest.mark.parametrize("library", ["PyIceberg", pytest.param("Iceberg", marks=pytest.mark.integration)])
def test_each_property_that_looks_like_code_is_one_or_was_looked_up(library: str) -> None:
    names = names_in_pyiceberg() if library == "PyIceberg" else names_in_iceberg()
    suspicious = {name for name in names if _NAME.fullmatch(name) and _SUSPICIOUS.search(name)}
    assert len(suspicious) > len(HARMLESS[library])
    assert {name for name in suspicious if not chooses_code(name)} == HARMLESS[library]


def test_pyiceberg_imports_by_name_where_it_was_looked_up() -> None:
    found = set()
    for path, module in python_files():
        for node in ast.walk(module):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called in ("eval", "exec", "__import__") or called.endswith("import_module"):
                found.add(path)
    assert found == IMPORTING.keys()
    assert all(chooses_code(name) for name in IMPORTING.values() if name is not None)


@pytest.mark.integration
def test_iceberg_loads_by_name_where_it_was_looked_up() -> None:
    found = set()
    for name, content in java_classes():
        _, classes, members = constants_of(content)
        if classes & LOADERS or members & LOADING_METHODS:
            found.add(name)
    assert found == LOADING.keys()
    assert all(chooses_code(name) for names in LOADING.values() for name in names)


@pytest.mark.parametrize(
    "key",
    [
        "index.s3.client-factory.class",
        "client.credentials-provider.role",
        "fs.s3a.aws.credentials.provider",
        "hadoop.security.group.mapping",
        "jdbc.socketFactory",
        "jdbc.authenticationPluginClassName",
        "jdbc.enable_load_extension",
        "Io-Impl",
        "spark.driver.extraClassPath",
    ],
)
def test_what_libraries_below_them_load_is_known_too(key: str) -> None:
    assert without_code({key: "x.Y", "s3.region": "eu-1"}) == {"s3.region": "eu-1"}


def test_a_kind_of_authentication_that_iceberg_does_not_know_is_a_class() -> None:
    for key in ("rest.auth.type", "rest.auth.sigv4.delegate-auth-type"):
        assert not chooses_code(key, "oauth2")
        assert chooses_code(key, "x.Y")


def test_no_option_of_a_database_hides_behind_a_fragment() -> None:
    assert unknown_database_options("postgresql://h/d?timeout=1&sslmode=require") == []
    for uri in ("postgresql://h/d?timeout=1#&sslfactory=x", "sqlite:////d/c.db#x?uri=true", "x://h?uri"):
        assert unknown_database_options(uri), uri
