"""The catalog and the store of an acceptance, with the identity of the process that runs it.

Invariant: nothing is dropped or deleted but a table that bears the mark of a run, and files in its location.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
from py4j.java_gateway import JavaObject, JVMView
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException

from telemetry.plurals import counted
from worker.acceptance.orders import COLUMNS, TYPES
from worker.acceptance.report import Problem
from worker.contract.control_plane import Limits
from worker.index.key_set_index import databases_of
from worker.index.warehouse import IndexWarehouse
from worker.io.storage import Storage, StoredFile
from worker.jobs.foreign_errors import meaning_of
from worker.process.errors import JobError, StorageError
from worker.spark.jvm import java_map, json_mapper, told_by_java
from worker.table.catalogs import (
    file_io_properties,
    java_message,
    java_types,
    load_table,
    open_catalog,
)
from worker.table.record_properties import index_storage_of, resolve_secrets, secrets_of
from worker.table.rest_gateway import RestGateway

MARK = "icestream.acceptance-run"
"""The property by which a table says that a run has made it, and which."""
_OWN_PLACE = "icestream.acceptance-place"
"""The property that says that a table's place had no files before it came."""
REQUIRED = ("order_id", "region")
_UNSUPPORTED_IN_JAVA = "java.lang.UnsupportedOperationException"
"""Which Iceberg makes of 406 too, by which REST catalogs say so."""
_REFUSED = Problem(
    "refused",
    "The catalog or the store did not do what it was asked for",
    "",
    "Give this identity, and that of workers, what they need: docs/deployment.md says what.",
)
_UNSUPPORTED = Problem(
    "not_supported",
    "The catalog or the store does not do that for anybody",
    "",
    "Jobs that need it can't work there, whatever rights they have.",
)
PLACES_ARE_GIVEN = Problem(
    "location_not_taken",
    "The catalog chooses the places of tables itself",
    "",
    "Leave --location out: the tables lie where the catalog puts them, and it is tried all the same.",
)
_NO_NAMESPACE = "org.apache.iceberg.exceptions.NoSuchNamespaceException"


class LakeError(Exception):
    """The catalog or the store did not do what it was asked for, in its own words.

    problem: with what to do. is_unsupported: it never does that for anybody, as it says.
    """

    def __init__(self, detail: str, problem: Problem = _REFUSED, *, is_unsupported: bool = False) -> None:
        super().__init__(detail)
        self.problem = replace(_UNSUPPORTED if is_unsupported else problem, detail=detail)
        self.is_unsupported = is_unsupported

    def advise(self, what_to_do: str) -> None:
        """Beside what is advised already."""
        self.problem = replace(self.problem, remedy=f"{self.problem.remedy} {what_to_do}")


class NotOursError(Exception):
    """A table or a place is not what this run has made, and stays as it is."""


@contextmanager
def told(task: str, gateway: RestGateway | None = None, *, of_catalog: bool = False) -> Iterator[None]:
    """Raises LakeError for what Java, the catalog, the store or a missing secret says.

    gateway: through which the catalog was asked, which may know more of it than Java. of_catalog: it
    is asked for something, and may say that it does so for nobody; a reader that says so is at fault.
    """
    try:
        yield
    except Exception as error:
        said = lake_error_of(error, f"{task}: ", gateway, of_catalog=of_catalog)
        if said is None:
            raise
        raise said from error


def lake_error_of(
    error: Exception, before: str = "", gateway: RestGateway | None = None, *, of_catalog: bool
) -> LakeError | None:
    """What an error of Java's, of a catalog or of a store tells; None for one of nothing such.

    before: stands before its words. gateway, of_catalog: as of `told`.
    """
    if isinstance(error, Py4JError | CapturedException):
        if gateway is not None and gateway.refusal is not None:
            return lake_error_of(gateway.refusal, before, of_catalog=of_catalog)
        is_unsupported = of_catalog and _UNSUPPORTED_IN_JAVA in java_types(error)
        return LakeError(before + java_message(error), is_unsupported=is_unsupported)
    meaning = error if isinstance(error, JobError) else meaning_of(error)
    if meaning is None:
        return None
    if meaning.remedy == StorageError.remedy:
        return LakeError(before + meaning.detail)  # nothing tries it again here
    return LakeError(before + meaning.detail, Problem(meaning.code, meaning.title, "", meaning.remedy))


class Lake:
    """One catalog, by its record, as the service tells it.

    secrets: which nothing that is told may have. asked: operations of the catalog that this process has begun
    through here, by kind. of_store: operations on files, by kind.
    """

    def __init__(self, jvm: JVMView, record: dict[str, Any]) -> None:
        """record: of the service, with references in the place of secrets. Raises LakeError."""
        self.name, self.type = str(record["name"]), str(record["type"])
        self.secrets = secrets_of(record["properties"])
        self._jvm = jvm
        self.asked: Counter[str] = Counter()
        self.of_store: Counter[str] = Counter()
        with told(f"open catalog {self.name}"):
            self.properties = resolve_secrets(record["properties"])
            self._catalog, self._gateway = open_catalog(jvm, self.type, self.name, self.properties)

    def has_namespace(self, namespace: Sequence[str]) -> bool:
        with self._told("look for namespace", namespace):
            try:
                self._catalog.loadNamespaceMetadata(self._namespace(namespace))
            except Py4JJavaError as error:
                if _NO_NAMESPACE in java_types(error):
                    return False
                raise
            return True

    def create_namespace(self, namespace: Sequence[str], run: str) -> None:
        """With the run's mark, where the catalog keeps properties of namespaces. Raises LakeError."""
        try:
            self._create_namespace(namespace, {MARK: run})
        except LakeError:
            if self.has_namespace(namespace):
                raise
            self._create_namespace(namespace, {})

    def _create_namespace(self, namespace: Sequence[str], properties: dict[str, str]) -> None:
        with self._told("create namespace", namespace):
            made = self._namespace(namespace)
            if properties:
                self._catalog.createNamespace(made, java_map(self._jvm, properties))
            else:
                self._catalog.createNamespace(made)

    def mark_of_namespace(self, namespace: Sequence[str]) -> str | None:
        """The run that has made a namespace, where the catalog keeps that."""
        with self._told("open namespace", namespace):
            mark: str | None = self._catalog.loadNamespaceMetadata(self._namespace(namespace)).get(MARK)
            return mark

    def drop_namespace(self, namespace: Sequence[str]) -> None:
        """Catalogs drop an empty one alone."""
        with self._told("drop namespace", namespace):
            self._catalog.dropNamespace(self._namespace(namespace))

    def table_names(self, namespace: Sequence[str]) -> set[str]:
        if not self.has_namespace(namespace):
            return set()
        with self._told("list the tables of namespace", namespace):
            found = self._catalog.listTables(self._namespace(namespace)).toArray()
            return {str(one.name()) for one in found}

    def create_table(
        self,
        identifier: Sequence[str],
        format_version: int,
        key: Sequence[str],
        run: str,
        *,
        by_region: bool,
        location: str | None,
    ) -> JavaObject:
        """A merge-on-read table with the columns of `orders`, partitioned by region or not at all.

        location: None for where the catalog puts it. Raises LakeError.
        """
        ids = {name: at for at, name in enumerate(COLUMNS, 1)}
        fields = [
            {"id": ids[name], "name": name, "required": name in REQUIRED, "type": kind}
            for name, kind in zip(COLUMNS, TYPES, strict=True)
        ]
        schema = {
            "type": "struct",
            "schema-id": 0,
            "identifier-field-ids": [ids[name] for name in key],
            "fields": fields,
        }
        region = {"name": "region", "transform": "identity", "source-id": ids["region"], "field-id": 1000}
        properties = {f"write.{kind}.mode": "merge-on-read" for kind in ("delete", "update", "merge")}
        properties |= {"format-version": str(format_version), MARK: run}
        iceberg = self._jvm.org.apache.iceberg
        with self._told("create table", identifier):
            java_schema = iceberg.SchemaParser.fromJson(json.dumps(schema))
            spec = iceberg.PartitionSpecParser.fromJson(
                java_schema, json.dumps({"spec-id": 0, "fields": [region] if by_region else []})
            )
            builder = self._catalog.buildTable(self._identifier(identifier), java_schema)
            builder = builder.withPartitionSpec(spec).withProperties(java_map(self._jvm, properties))
            if location is not None:
                builder = builder.withLocation(location)
            return builder.create()

    def load(self, identifier: Sequence[str]) -> JavaObject:
        """The `org.apache.iceberg.Table` of now. Raises LakeError."""
        with self._told("open table", identifier):
            return load_table(self._jvm, self.type, self.name, self.properties, identifier)

    def has_table(self, identifier: Sequence[str]) -> bool:
        return identifier[-1] in self.table_names(identifier[:-1])

    def mark_of(self, identifier: Sequence[str]) -> str | None:
        """The run that has made a table, as the catalog tells it; None for one of anybody else.

        Raises LakeError.
        """
        mark: str | None = self.load(identifier).properties().get(MARK)
        return mark

    def state_of(self, identifier: Sequence[str]) -> tuple[str, str] | None:
        """The UUID and the metadata file of a table; None for one that can't be opened."""
        try:
            table = self.load(identifier)
            with told("read the metadata"):
                current = table.operations().current()
                return str(table.uuid().toString()), str(current.metadataFileLocation())
        except LakeError:
            return None

    def drop_table(self, identifier: Sequence[str], mark: str | None, table_uuid: str | None = None) -> None:
        """Without its files if they are alone in its place, which is then cleared (`clear`), else with them.

        It is gone if this returns.

        mark: that it has to bear; None where the catalog has not kept it. table_uuid: of the one that is
        meant, if it is known; without a mark it has to be. Raises LakeError, and NotOursError for a table
        that this run has not made.
        """
        table = self.load(identifier)
        is_known = mark is not None or table_uuid is not None
        is_meant = table_uuid in (None, str(table.uuid().toString()))
        if table.properties().get(MARK) != mark or not is_known or not is_meant:
            raise NotOursError(f"{'.'.join(identifier)} is another table than the run has made. It stays.")
        name = ".".join(identifier)
        # On Azure, Iceberg waits for ever amid a purge of as many manifests as its pool has threads: each
        # is read in one, and waits for its files to be deleted in another.
        purges = self.place_of(table) is None
        try:
            self._drop(identifier, purge=purges)
        except LakeError:  # some catalogs let one only do the other
            if self.has_table(identifier):
                self._drop(identifier, purge=not purges)
        if self.has_table(identifier):
            raise LakeError(f"drop table {name}: The catalog has dropped it, it says, and still has it.")

    def _drop(self, identifier: Sequence[str], *, purge: bool) -> None:
        with self._told("drop table", identifier):
            self._catalog.dropTable(self._identifier(identifier), purge)

    def own_place(self, table: JavaObject) -> None:
        """Says of a table that no others' files lie where it does: who removes it may clear that."""
        with self.committing("set a property of the table"):
            table.updateProperties().set(_OWN_PLACE, location_of(table)).commit()

    def place_of(self, table: JavaObject) -> str | None:
        """Where its own files lie and no others; None if that is not known."""
        location = location_of(table)
        return location if table.properties().get(_OWN_PLACE) == location else None

    def clear(self, storage: Storage, place: str) -> None:
        """Deletes what is left of a table that is gone. Raises LakeError if any is still there."""
        for one in sorted(self.files(storage, place)):
            with told(f"delete {one}"):
                storage.delete(one)
        if left := self.files(storage, place):
            raise LakeError(f"{counted(len(left), 'file')} are still there, such as {min(left)}.")
        if storage.is_local(place):
            filesystem, path = storage.resolve(place)
            with suppress(FileNotFoundError):
                filesystem.delete_dir(path)

    def storage_of(self, table: JavaObject) -> Storage:
        """As jobs open its files, with what the catalog vends for it."""
        return _CountedStorage(file_io_properties(table), self.of_store)

    def files(self, storage: Storage, location: str) -> set[str]:
        """All files below a place, by their locations."""
        with told(f"list {location}"):
            return {one.location for one in storage.walk(location)}

    def index_databases(self, storage: Storage, warehouse: str, table_uuid: str) -> list[str]:
        """Those that a table has in the place of indexes."""
        with told(f"list {warehouse}"):
            of_index = index_storage_of(self.properties, warehouse, Limits(), storage)
            return databases_of(IndexWarehouse(warehouse, of_index), table_uuid)

    @property
    def is_s3_tables(self) -> bool:
        """By its record: their own endpoint, or Glue's for such a bucket."""
        named = (self.properties.get(name, "") for name in ("rest.signing-name", "warehouse"))
        return self.type == "rest" and any("s3tables" in one for one in named)

    @property
    def requests(self) -> Mapping[str, int]:
        """To a REST catalog, by operation of its protocol; of another one what was begun, by kind."""
        return self.asked if self._gateway is None else self._gateway.requests

    def committing(self, task: str) -> AbstractContextManager[None]:
        """A commit to a table, of which its catalog is asked. Raises as `told`."""
        return told(task, self._gateway, of_catalog=True)

    def _told(self, kind: str, name: Sequence[str]) -> AbstractContextManager[None]:
        """Of the catalog. kind: of what it is asked for. name: of the namespace or the table."""
        self.asked[kind] += 1
        return told(f"{kind} {'.'.join(name)}", self._gateway, of_catalog=True)

    def _namespace(self, parts: Sequence[str]) -> JavaObject:
        array = json_mapper(self._jvm).readValue(
            json.dumps(list(parts)), self._jvm.java.lang.Class.forName("[Ljava.lang.String;")
        )
        return self._jvm.org.apache.iceberg.catalog.Namespace.of(array)

    def _identifier(self, parts: Sequence[str]) -> JavaObject:
        *namespace, name = parts
        parser = self._jvm.org.apache.iceberg.catalog.TableIdentifierParser
        return parser.fromJson(json.dumps({"namespace": namespace, "name": name}))


class _CountedStorage(Storage):
    """Counts what it is asked for; a copy for another process does not."""

    def __init__(self, properties: Mapping[str, str], count: Counter[str]) -> None:
        super().__init__(properties)
        self._count = count

    def open_input(self, location: str, size_bytes: int | None = None) -> Any:
        self._count["open a file"] += 1
        return super().open_input(location, size_bytes)

    def open_output(self, location: str) -> pa.NativeFile:
        self._count["write a file"] += 1
        return super().open_output(location)

    def write(self, location: str, content: pa.Buffer) -> None:
        self._count["write a file"] += 1
        super().write(location, content)

    def walk(self, location: str) -> Sequence[StoredFile]:
        self._count["list files"] += 1
        return super().walk(location)

    def exists(self, location: str) -> bool:
        self._count["look for a file"] += 1
        return super().exists(location)

    def delete(self, location: str) -> bool:
        self._count["delete a file"] += 1
        return super().delete(location)


def location_of(table: JavaObject) -> str:
    return str(table.location()).rstrip("/")


def summary_of(table: JavaObject) -> dict[str, str]:
    """What the head's snapshot says of itself; nothing for a table without one."""
    head = table.currentSnapshot()
    if head is None:
        return {}
    found: dict[str, str] = told_by_java(head.summary())
    return found
