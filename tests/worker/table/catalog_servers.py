"""Catalogs that others wrote, as processes on loopback: Iceberg's REST server and Hive's metastore."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests import maven
from tests.patience import PATIENCE_SECONDS
from tests.server_process import free_port

REST_PROJECT = Path(__file__).parent / "rest_server"


@contextmanager
def rest_server(
    directory: Path, warehouse: str, properties: Mapping[str, str] | None = None, jars: Sequence[Path] = ()
) -> Iterator[str]:
    """The address of a REST catalog that keeps its tables' heads in `directory`.

    properties: by which it opens files, if not on the local disk. jars: what that takes.
    """
    port = free_port()
    environment = {
        "CATALOG_URI": f"jdbc:sqlite:{directory}/rest.db",
        "CATALOG_WAREHOUSE": warehouse,
        "CATALOG_REST_PORT": str(port),
    }
    for name, value in (properties or {}).items():
        environment[f"CATALOG_{name.replace('-', '__').replace('.', '_').upper()}"] = value
    class_path = ":".join([maven.build(REST_PROJECT), *map(str, jars)])
    main = ["-cp", class_path, "org.apache.iceberg.rest.RESTCatalogServer"]
    with _running(main, port, directory / "rest.log", environment):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def hive_metastore(directory: Path) -> Iterator[str]:
    """The address of a metastore on a database in memory, from the JARs that Spark brings along.

    It has no tables for locks: those of Iceberg need `engine.hive.lock-enabled=false`.
    """
    port = free_port()
    settings = {
        "javax.jdo.option.ConnectionURL": "jdbc:derby:memory:metastore;create=true",
        "datanucleus.schema.autoCreateAll": "true",
        "datanucleus.connectionPoolingType": "none",  # the default is a library that Spark leaves out
        "hive.metastore.schema.verification": "false",
    }
    main = [
        "-Dhive.async.log.enabled=false",  # likewise
        f"-Dhive.log.dir={directory}",
        f"-Dderby.stream.error.file={directory}/derby.log",
        *("-cp", f"{Path(pyspark.__path__[0]) / 'jars'}/*"),
        *("org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port)),
        *(part for key, value in settings.items() for part in ("--hiveconf", f"{key}={value}")),
    ]
    with _running(main, port, directory / "metastore.log", {}):
        yield f"thrift://127.0.0.1:{port}"


@contextmanager
def _running(main: Sequence[str], port: int, log: Path, environment: Mapping[str, str]) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["java", *main],
            stdout=output,
            stderr=output,
            cwd=log.parent,
            env={**os.environ, **environment},
        )
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            assert process.poll() is None, log.read_text()[-4000:]
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, log.read_text()[-4000:]
                time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()
