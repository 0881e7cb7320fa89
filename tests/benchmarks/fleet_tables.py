"""The tables of a fleet, in catalogs of several types and of both format versions, and what is written there.

Iceberg Java commits it, since PyIceberg writes no tables of V3 and knows no Hadoop catalog.
"""

from __future__ import annotations

import json
import os
import uuid
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyiceberg.catalog.sql import SqlCatalog as BackingCatalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyspark.sql import SparkSession

from tests.factories import parquet_statistics
from tests.jobs import SqlCatalog
from tests.service.iceberg_tables import SCHEMA
from tests.slow_store import SlowStore
from tests.worker.table.catalog_servers import rest_server
from worker.spark.jars import cached_jars, jars_folder, own_jars
from worker.spark.jvm import java_map, jvm_of
from worker.table.catalogs import java_properties, java_types, metadata_json

NAMESPACE = "db"
_BUCKET = "lake"
_SECRET = "CATALOG_S3_SECRET"
_ENDPOINT = "CATALOG_S3_ENDPOINT"
_FORMAT_VERSIONS = ("2", "3")
_SIZES = 10
"""Of tables, from the smallest to the largest: what is between two of them is of the smaller one."""
_KEYS = SCHEMA.select("id")


@dataclass(frozen=True, slots=True)
class FleetTable:
    """A table of rows (id, region), with ids from 0 on in random order."""

    catalog: str
    name: str
    rows: int
    java: Any
    """Iceberg's `Table`."""
    made: Path
    """A data file that has them."""
    store: Path | None
    """The folder that its store keeps, if it does not lie on the local disk."""

    def load(self, files: int = 1) -> None:
        """Commit its rows so many times: the bytes that are made already, which take no time to write."""
        append = self.java.newAppend()
        for _ in range(files):
            location = self._new_location()
            place = self._local(location)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.link(self.made, place)
            append.appendFile(self._described(location, "data"))
        append.commit()

    def upsert(self, ids: Sequence[int]) -> Upsert:
        """What Flink commits with a checkpoint: these rows anew, and deletes of the ones before. Written are
        its files."""
        rows = pa.table({"id": ids, "region": ["us"] * len(ids)}, schema=schema_to_pyarrow(SCHEMA))
        data, deletes = self._new_location(), self._new_location()
        pq.write_table(rows, self._local(data))
        pq.write_table(rows.select(["id"]), self._local(deletes))
        added = self._described(data, "data")
        return Upsert(self, added, self._described(deletes, "equality-deletes", equality_ids=[1]))

    @property
    def metadata(self) -> dict[str, Any]:
        """As JSON has it."""
        self.java.refresh()
        found: dict[str, Any] = json.loads(metadata_json(self.java))
        return found

    def _new_location(self) -> str:
        return f"{self.java.location()}/data/{uuid.uuid4()}.parquet"

    def _local(self, location: str) -> Path:
        if self.store is not None:
            return self.store / location.removeprefix("s3://")
        return Path(location.removeprefix("file://").removeprefix("file:"))

    def _described(self, location: str, content: str, *, equality_ids: Sequence[int] = ()) -> Any:
        """A file as Iceberg's `ContentFile`."""
        path = self._local(location)
        described = {
            "content": content,
            "spec-id": 0,
            "partition": [],
            "file-path": location,
            "file-format": "parquet",
            "file-size-in-bytes": path.stat().st_size,
            "record-count": pq.read_metadata(path).num_rows,
            **parquet_statistics(_KEYS if equality_ids else SCHEMA, path),
            **({"equality-ids": list(equality_ids)} if equality_ids else {}),
        }
        iceberg = jvm_of(self.java).org.apache.iceberg
        parsed = iceberg.util.JsonUtil.mapper().readTree(json.dumps(described))
        return iceberg.ContentFileParser.fromJson(parsed, self.java.specs())


@dataclass(frozen=True, slots=True)
class Upsert:
    table: FleetTable
    added: Any
    """Iceberg's `DataFile`."""
    deleted: Any
    """Iceberg's `DeleteFile`."""

    def commit(self) -> None:
        while True:
            try:
                self.table.java.newRowDelta().addRows(self.added).addDeletes(self.deleted).commit()
            except Py4JJavaError as error:
                if "org.apache.iceberg.exceptions.CommitFailedException" not in java_types(error):
                    raise
            else:  # and no conversion came first, again and again
                return


@dataclass(frozen=True, slots=True)
class Lake:
    """Catalogs, as the service knows them, and their tables."""

    catalogs: Sequence[SqlCatalog]
    tables: Sequence[FleetTable]
    settings: Mapping[str, str]
    """In the environment of whoever opens the tables."""
    store: SlowStore | None
    """In which they lie, if not on the local disk."""

    @contextmanager
    def own_store(self, processes: int) -> Iterator[tuple[SlowStore | None, Mapping[str, str]]]:
        """Another store of the same folder, if they lie in one, and the settings of whoever asks that one
        alone."""
        if self.store is None:
            yield None, self.settings
            return
        with SlowStore(self.store.folder, self.store.wait_seconds, processes=processes).served() as own:
            yield own, {**self.settings, _ENDPOINT: own.properties["s3.endpoint"]}


@contextmanager
def lake(
    spark: SparkSession, directory: Path, count: int, rows: tuple[int, int], wait_seconds: float = 0
) -> Iterator[Lake]:
    """So many tables; rows: of the smallest ones and the largest ones.

    wait_seconds: of each request to the store that they lie in; 0 for tables on the local disk. Those who
    write to them don't wait, but for the REST catalog, which writes metadata itself. Hadoop catalogs are on
    the local disk alone.
    """
    with ExitStack() as stack:
        store = None
        place, of_files, of_writer, of_server = directory.as_uri(), {}, {}, {}
        if wait_seconds:
            folder = directory / "store"
            (folder / _BUCKET).mkdir(parents=True)
            store = stack.enter_context(SlowStore(folder, wait_seconds).served())
            place, of_writer = (
                f"s3://{_BUCKET}",
                stack.enter_context(SlowStore(folder, 0).served()).properties,
            )
            # Each reads from where its environment says.
            secret = {"s3.secret-access-key": f"env:{_SECRET}", "s3.endpoint": f"env:{_ENDPOINT}"}
            of_files = store.properties | secret
            of_server = {**store.properties, "client.region": "us-east-1", "s3.path-style-access": "true"}
            of_server |= {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}
        jars = cached_jars(jars_folder(os.environ), own_jars()) if store else ()
        records = {
            "sql": {"uri": f"sqlite:///{directory}/sql.db", "warehouse": f"{place}/sql"},
            "rest": {"uri": stack.enter_context(rest_server(directory, f"{place}/rest", of_server, jars))},
            "hadoop": {"warehouse": f"{place}/hadoop"},
        }
        if store is not None:
            del records["hadoop"]
        BackingCatalog("sql", **records["sql"]).close()  # makes its database
        java = {kind: _java_catalog(spark, kind, record | of_writer) for kind, record in records.items()}
        yield Lake(
            [SqlCatalog(kind, record | of_files, kind) for kind, record in records.items()],
            list(_tables(java, count, rows, directory, store.folder if store else None)),
            {
                "ICESTREAM_ALLOWED_LOCATIONS": f"{directory.as_uri()},{place}",
                "ICESTREAM_INDEX_WAREHOUSE": f"{place}/index",
                **({_SECRET: "secret", _ENDPOINT: store.properties["s3.endpoint"]} if store else {}),
            },
            store,
        )


def _java_catalog(spark: SparkSession, kind: str, properties: Mapping[str, str]) -> Any:
    context: Any = spark.sparkContext._jsc
    jvm = jvm_of(context)
    java = java_map(jvm, java_properties(kind, properties) | {"rest-metrics-reporting-enabled": "false"})
    return jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog(kind, java, context.hadoopConfiguration())


def _tables(
    catalogs: Mapping[str, Any], count: int, rows: tuple[int, int], directory: Path, store: Path | None
) -> Iterator[FleetTable]:
    """Catalogs and format versions in turn; of each, the n-th table has an n-th of the largest one's rows."""
    kinds = [(name, version) for version in _FORMAT_VERSIONS for name in catalogs]
    sizes = np.geomspace(*rows, _SIZES).astype(int).tolist()
    made: dict[int, Path] = {}
    iceberg = jvm_of(catalogs["sql"]).org.apache.iceberg
    schema = iceberg.SchemaParser.fromJson(SCHEMA.model_dump_json())
    for catalog in catalogs.values():
        catalog.createNamespace(iceberg.catalog.TableIdentifier.parse(f"{NAMESPACE}.t").namespace())
    for number in range(count):
        name, version = kinds[number % len(kinds)]
        size = sizes[max(bisect_right(sizes, rows[1] // (1 + number // len(kinds))) - 1, 0)]
        if size not in made:
            made[size] = _made(directory / "made" / f"{size}.parquet", size)
        identifier = iceberg.catalog.TableIdentifier.parse(f"{NAMESPACE}.t{number}")
        builder = catalogs[name].buildTable(identifier, schema).withProperty("format-version", version)
        table = FleetTable(name, f"{NAMESPACE}.t{number}", size, builder.create(), made[size], store)
        table.load()
        yield table


def _made(path: Path, rows: int) -> Path:
    """A data file to have further names."""
    path.parent.mkdir(exist_ok=True)
    ids = np.random.default_rng(rows).permutation(rows)
    table = pa.table({"id": ids, "region": pa.repeat("eu", rows)}, schema=schema_to_pyarrow(SCHEMA))
    pq.write_table(table, path, compression="zstd")
    return path
