"""Where the tables of indexes lie: a Paimon filesystem catalog on any store."""

import uuid
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import pyarrow as pa
from pyarrow import fs as pafs
from pypaimon import CatalogFactory, Schema
from pypaimon.catalog.catalog import Catalog
from pypaimon.catalog.catalog_exception import DatabaseNotExistException
from pypaimon.common.identifier import Identifier
from pypaimon.common.options.options import Options
from pypaimon.filesystem.pyarrow_file_io import PyArrowFileIO
from pypaimon.schema.table_schema import TableSchema
from pypaimon.table.file_store_table import FileStoreTable

from worker.index.checksums import CheckedFiles
from worker.index.run_files import TOP_LEVEL
from worker.index.sorted_runs import TABLE_FOLDERS, TABLE_ID, RunTable, unwrapped
from worker.io.storage import Storage

REPORTS = (
    "duplicates"  # the folder beside the tables of a database that worker.jobs.report_duplicates writes to
)
_FOLDERS = frozenset((*TABLE_FOLDERS, "schema"))
_HINTS = frozenset(("LATEST", "EARLIEST"))  # of snapshots, which indexes do without
_TABLE_OPTIONS = {
    "bucket": "1",
    "file.format": "parquet",
    "data-file.thin-mode": "true",
    "num-levels": str(TOP_LEVEL + 1),
}


class IndexWarehouse:
    """A Paimon filesystem catalog that holds the index tables of many Iceberg tables."""

    def __init__(self, location: str, storage: Storage) -> None:
        self.location = location.rstrip("/")
        self.storage = storage
        self._listed: tuple[str, list[str]] | None = None
        """Of the database that was listed last. A process may come to very many."""
        if storage.is_local(self.location):
            self._catalog: Catalog = CatalogFactory.create({"warehouse": self.location})
        else:
            self._catalog = CatalogFactory.create({"warehouse": "file:/"})
            self._catalog.warehouse = self.location
            self._catalog.file_io = _StoreFileIO(self.location, storage)
        CheckedFiles(self._catalog.file_io)

    def open(self, database: str, name: str) -> RunTable | None:
        """The table, or None if it does not exist. Raises OSError, or anything if its schema is damaged.

        A table of an index keeps its first schema, so no request finds out which one is the latest.
        """
        file_io, place = self._catalog.file_io, self.place_of(database, name)
        try:
            with file_io.new_input_stream(f"{place}/schema/schema-0") as source:
                schema = TableSchema.from_json(source.read().decode())
        except FileNotFoundError:
            return None
        identifier = Identifier.from_string(f"{database}.{name}")
        return RunTable(FileStoreTable(file_io, identifier, place, schema), self.storage)

    def create(
        self,
        database: str,
        name: str,
        schema: pa.Schema,
        primary_key: Sequence[str],
        options: Mapping[str, str],
    ) -> RunTable:
        """The table, created if needed. Raises OSError when the warehouse can't be written."""
        paimon_schema = Schema.from_pyarrow_schema(
            schema,
            primary_keys=list(primary_key),
            options={**_TABLE_OPTIONS, TABLE_ID: uuid.uuid4().hex, **options},
        )
        self._listed = None
        with unwrapped():
            self._catalog.create_database(database, True)
            self._catalog.create_table(f"{database}.{name}", paimon_schema, True)
        table = self.open(database, name)
        assert table is not None
        return table

    def databases(self) -> list[str]:
        with unwrapped():
            return list(self._catalog.list_databases())

    def table_names(self, database: str) -> list[str]:
        try:
            names = [name for name in self._catalog.list_tables(database) if name != REPORTS]
        except DatabaseNotExistException:
            names = []
        self._listed = database, names
        return names

    def listed_names(self, database: str) -> list[str]:
        """As they were when they were last looked for, unless this has changed them since."""
        listed = self._listed
        return listed[1] if listed is not None and listed[0] == database else self.table_names(database)

    def place_of(self, database: str, name: str) -> str:
        """Where something of a database lies."""
        return str(self._catalog.get_table_path(Identifier.from_string(f"{database}.{name}")))

    def drop_table(self, database: str, name: str) -> None:
        """Deletes all that lies in the table's directory, if anything does.

        Also without a schema, by which Paimon knows a table: a worker that slept while another dropped it may
        write on when it wakes.
        """
        self._listed = None
        self._catalog.file_io.delete(self.place_of(database, name), True)

    def drop(self, database: str) -> None:
        """Deletes every index table of a database, if it exists, and what lies beside them."""
        self._listed = None
        self._catalog.drop_database(database, ignore_if_not_exists=True, cascade=True)


class _StoreFileIO(PyArrowFileIO):  # type: ignore[misc]
    """pypaimon's, of any store, with our credentials.

    Its own knows fewer, and waits ten minutes for one that does not answer.
    """

    def __init__(self, location: str, storage: Storage) -> None:
        self._location, self._storage = location, storage
        super().__init__("s3://none", Options({}))

    @property
    def filesystem(self) -> pafs.FileSystem:
        """With the keys that are good now."""
        return self._storage.resolve(self._location)[0]

    @filesystem.setter
    def filesystem(self, _: pafs.FileSystem) -> None:
        """pypaimon's own is for nothing here."""

    def to_filesystem_path(self, path: str) -> str:
        # pypaimon also asks for what it has been told already.
        return self._storage.resolve(path)[1].rstrip("/") if "://" in path else path

    # On S3 a folder is what names have in common, so nobody makes one, or asks whether it is there.

    def exists(self, path: str) -> bool:
        if not self._storage.is_on_s3(path):
            return bool(super().exists(path))
        name = path.rstrip("/").rpartition("/")[2]
        if name in _HINTS:
            return False
        return name.endswith(Catalog.DB_SUFFIX) or name in _FOLDERS or self._storage.exists(path.rstrip("/"))

    def mkdirs(self, path: str) -> bool:
        return self._storage.is_on_s3(path) or bool(super().mkdirs(path))

    def new_input_stream(self, path: str) -> Any:
        if self._storage.is_on_s3(path):
            return BytesIO(self._storage.read(path))
        return super().new_input_stream(path)

    def new_output_stream(self, path: str) -> Any:
        if self._storage.is_on_s3(path):
            return self._storage.open_output(path)
        return super().new_output_stream(path)

    def list_status(self, path: str) -> list[pafs.FileInfo]:
        if not isinstance(self.filesystem, pafs.GcsFileSystem):
            return list(super().list_status(path))
        # Of Google's store, Arrow lists no folder that was not created as one: they follow from the files.
        place = self.to_filesystem_path(path)
        found: dict[str, pafs.FileInfo] = {}
        for info in self.filesystem.get_file_info(pafs.FileSelector(place, recursive=True)):
            name, slash, _ = info.path.removeprefix(f"{place}/").partition("/")
            folder = pafs.FileInfo(f"{place}/{name}", pafs.FileType.Directory)
            found.setdefault(name, folder if slash else info)
        return list(found.values())
