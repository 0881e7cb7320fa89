"""The JARs of Iceberg, its stores and JDBC: which are wanted, and where Ivy keeps them."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile
from typing import Self
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict

ICEBERG = {"3.5": "1.12.0", "4.0": "1.11.0", "4.1": "1.12.0"}
"""Of each version of Spark, the newest Iceberg that has a runtime for it."""
_SCALA = {"3.5": "2.12"}
"""Of PySpark's JARs; else 2.13."""
JDBC_DRIVERS = ("org.xerial:sqlite-jdbc:3.50.3.0", "org.postgresql:postgresql:42.7.8")
STORE_JARS = {
    # Iceberg's runtime has GCSFileIO and ADLSFileIO, and not what these are made on.
    "gcs": ("org.apache.iceberg:iceberg-gcp-bundle:1.11.0",),
    "azure": (
        "com.azure:azure-storage-file-datalake:12.25.0",
        "com.azure:azure-identity:1.18.1",
        "com.azure:azure-core-http-jdk-httpclient:1.1.0",
    ),
}
"""What `ICESTREAM_STORES` names, beyond S3."""
# What the above bring along: Spark has it, the JDK's client replaces Azure's, or nothing needs it.
EXCLUDED = (
    "com.azure:azure-core-http-netty",
    "com.fasterxml.jackson.*:*",
    "net.java.dev.jna:*",
    "org.checkerframework:*",
    "org.slf4j:*",
)
_RESOLVED = "resolved-{}.json"


class SparkSettings(BaseModel):
    """From the environment, as all settings: ICESTREAM_ and the name in upper case."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    driver_memory: str = "2g"
    """Memory of Spark's driver, the JVM of the worker."""
    jars_dir: Path = Path("~/.cache/icestream/ivy")
    """Where the JARs of Iceberg and JDBC are kept."""
    stores: str = ""
    """Stores beyond S3 for which the worker brings JARs: `gcs`, `azure`, or both with a comma in between."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        names = {name: f"ICESTREAM_{name.upper()}" for name in cls.model_fields}
        given = {name: environment[variable] for name, variable in names.items() if variable in environment}
        return cls.model_validate(given)


def own_jars(pyspark: str | None = None) -> tuple[str, ...]:
    """Coordinates of those that every worker needs. pyspark: its version, that of the one here if left out.

    Raises ValueError for a Spark that Iceberg has no runtime for.
    """
    pyspark = pyspark or version("pyspark")
    spark = ".".join(pyspark.split(".")[:2])
    if spark not in ICEBERG:
        *others, last = ICEBERG
        raise ValueError(
            f"PySpark {pyspark} is installed, and this worker has a runtime of Iceberg for Spark"
            f" {', '.join(others)} and {last}: install one of these, the version of the cluster"
            f" (docs/spark-clusters.md)."
        )
    iceberg = ICEBERG[spark]
    return (
        f"org.apache.iceberg:iceberg-spark-runtime-{spark}_{_SCALA.get(spark, '2.13')}:{iceberg}",
        f"org.apache.iceberg:iceberg-aws-bundle:{iceberg}",  # S3FileIO and the Glue catalog
        *JDBC_DRIVERS,
    )


def wanted_jars(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Their coordinates. Raises ValueError for a store that is none, and as `own_jars` does."""
    stores = [name.strip() for name in SparkSettings.of(environment).stores.split(",") if name.strip()]
    for name in stores:
        if name not in STORE_JARS:
            known = ", ".join(STORE_JARS)
            raise ValueError(f"ICESTREAM_STORES names {name!r}; beyond S3 there are: {known}.")
    return (*own_jars(), *(jar for name in stores for jar in STORE_JARS[name]))


def check_jars(environment: Mapping[str, str]) -> None:
    """Raises ValueError as `wanted_jars` does, and if some are neither there nor can be put there, as in an
    image."""
    wanted, folder = wanted_jars(environment), jars_folder(environment)
    if cached_jars(folder, wanted):
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"Of the JARs {', '.join(wanted)} some are not in {folder} (ICESTREAM_JARS_DIR) and can't be put"
            f" there: {error.strerror}. An image gets what ICESTREAM_STORES names by --build-arg STORES=..."
        ) from error


def jars_folder(environment: Mapping[str, str]) -> Path:
    """Ivy's."""
    return SparkSettings.of(environment).jars_dir.expanduser()


def cached_jars(folder: Path, wanted: Sequence[str] | None = None) -> list[Path]:
    """The JARs that an earlier start left in Ivy's folder, if all are there: a start then asks nobody.

    wanted: what every worker needs, if left out.
    """
    wanted = own_jars() if wanted is None else wanted
    if tuple(wanted) == own_jars():  # which need no further ones
        names = [coordinate.replace(":", "_", 1).replace(":", "-") + ".jar" for coordinate in wanted]
        return _present(folder, names)
    for path in sorted(folder.glob(_RESOLVED.format("*"))):
        resolved = json.loads(path.read_text())
        is_meant = set(wanted) <= set(resolved["wanted"]) and tuple(resolved["excluded"]) == EXCLUDED
        if is_meant and (jars := _present(folder, resolved["jars"])):
            return jars
    return []


def remember_jars(folder: Path, wanted: Sequence[str], resolved: Iterable[str]) -> None:
    """Writes down what Ivy found to be needed. Its folder does not tell: it keeps what older versions needed.

    resolved: paths or URIs, of which those in the folder count.
    """
    paths = [Path(unquote(urlsplit(jar).path)) for jar in resolved]
    names = sorted(path.name for path in paths if path.parent.resolve() == (folder / "jars").resolve())
    text = json.dumps({"wanted": sorted(wanted), "excluded": EXCLUDED, "jars": names}, indent=1)
    path = folder / _RESOLVED.format(hashlib.sha256(text.encode()).hexdigest()[:16])
    written = path.with_suffix(f".{os.getpid()}")
    written.write_text(text)
    written.replace(path)  # at once, since others may start meanwhile


def _present(folder: Path, names: Iterable[str]) -> list[Path]:
    jars = [folder / "jars" / name for name in names]
    return jars if all(jar.is_file() for jar in jars) else []
