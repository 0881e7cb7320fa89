"""`make bench-lookups`: questions about keys over HTTP, through the service and a lookup server, beside what
else finds rows of an Iceberg table by a key.

The table is made once and kept, without a JVM: PyIceberg writes its rows, and the index is built and merged
as jobs do it. Each answer is held to the rows that were written.
"""

from __future__ import annotations

import http.client
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import duckdb
import duckdb_extensions
import numpy as np
import pyarrow as pa
import typer
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from service.db.database import migrate
from tests.benchmarks.measure import Figure, high_water_mark, mebibytes, timed
from tests.benchmarks.page import Part, write_part
from tests.benchmarks.report import machine
from tests.benchmarks.report import table as markdown
from tests.benchmarks.servers import KEY, LOOK_UP, SERVE, server
from tests.benchmarks.waiting_files import WaitingFiles
from tests.factories import register_jdbc_catalog
from worker.contract.lookups import AskedKeys
from worker.index.build import build_tasks
from worker.index.commit import commit_index
from worker.index.compaction import LiveRowAddresses, choose_merge, compaction_tasks
from worker.index.dictionary import assign_row_addresses
from worker.index.key_set_index import KeySetIndex, database_name, open_index
from worker.index.warehouse import IndexWarehouse
from worker.io.cache import Cache
from worker.io.storage import Storage
from worker.keys.read import key_reader
from worker.keys.schema_fields import resolve_key_set
from worker.query.answers import Answers, TablePlace
from worker.query.rows import rows_at, selected
from worker.spark.session import create_spark
from worker.table.files import NO_FILES, DataFile
from worker.table.manifests import read_snapshot_files

FILE_ROWS = 1_000_000
COLUMNS = ["id", "customer", "amount", "at", "note"]
_BUILT_AT_ONCE = 16_000_000
_TOKEN = "token-of-this-benchmark"
_PATIENCE_SECONDS = 120


@dataclass(frozen=True)
class Table:
    """One table of `rows` rows with dense keys in random order, and its index."""

    directory: Path
    rows: int

    @cached_property
    def catalog(self) -> SqlCatalog:
        self.directory.mkdir(parents=True, exist_ok=True)
        return SqlCatalog("lake", **self.properties)

    @property
    def properties(self) -> dict[str, str]:
        return {"uri": f"sqlite:///{self.directory}/catalog.db", "warehouse": self.directory.as_uri()}

    @property
    def index(self) -> str:
        return f"{self.directory.as_uri()}-index"

    @cached_property
    def order(self) -> Any:
        """The key of each row."""
        return np.random.default_rng(1).permutation(self.rows)

    @cached_property
    def places(self) -> Any:
        """Of each key, the row that has it."""
        places = np.empty(self.rows, np.int64)
        places[self.order] = np.arange(self.rows)
        return places

    @property
    def metadata_location(self) -> str:
        return str(self.catalog.load_table("db.t").metadata_location)

    def row(self, key: int) -> dict[str, Any]:
        position = int(self.places[key]) % FILE_ROWS
        return {
            "id": key,
            "customer": key * 7919 % 1_000_003,
            "amount": key / 100,
            "note": f"note {position % 1000:04d} of a thousand",
        }

    def load(self, say: Callable[[str], None]) -> None:
        """Makes it, or what an earlier run left unmade."""
        self.catalog.create_namespace_if_not_exists("db")
        table = self.catalog.create_table_if_not_exists("db.t", self._data(0).schema)
        snapshot = table.current_snapshot()
        written = NO_FILES if snapshot is None else read_snapshot_files(table.metadata, snapshot, table.io)
        start = written.data_files.record_count
        for first in range(start, self.rows, FILE_ROWS):
            say(f"row {first:,} of {self.rows:,}")
            table.append(self._data(first))
        self._index(say)

    def _data(self, start: int) -> pa.Table:
        numbers = self.order[start : start + FILE_ROWS]
        positions = np.arange(len(numbers))
        notes = pa.array([f"note {i:04d} of a thousand" for i in range(1000)])
        at = pa.array(1_700_000_000_000_000 + positions * 1000, pa.timestamp("us", "UTC"))
        return pa.table(
            {
                "id": numbers,
                "customer": numbers * 7919 % 1_000_003,
                "amount": numbers / 100,
                "at": at,
                "note": notes.take(pa.array(positions % 1000)),
            }
        )

    def _index(self, say: Callable[[str], None]) -> None:
        metadata, storage = self.catalog.load_table("db.t").metadata, Storage()
        key_set = resolve_key_set(metadata, [1])
        snapshot = metadata.current_snapshot()
        assert snapshot is not None
        files = read_snapshot_files(metadata, snapshot, storage.io).data_files
        warehouse = IndexWarehouse(self.index, storage)
        database = database_name(str(metadata.table_uuid), "main")
        index = open_index(warehouse, database, key_set, create=True)
        assert index is not None
        at_once = _BUILT_AT_ONCE // FILE_ROWS
        for start in range(len(index.dictionary), len(files), at_once):
            say(f"index of data file {start} of {len(files)}")
            index = _indexed(index, metadata, list(files[start : start + at_once]))
        if (merge := choose_merge(index.entries.files, 1)) is not None and index.entries.sorted_runs > 1:
            say("merging the index")
            live = LiveRowAddresses.of(index.dictionary, files)
            merged = [run for task in compaction_tasks(index, merge, 1) for run in task.run(live)]
            beside = index.files.paimon_snapshot_id
            index.entries_table.commit_files(index.entries, merged, merge.files, beside)


def _indexed(index: KeySetIndex, metadata: Any, files: Sequence[DataFile]) -> KeySetIndex:
    indexed = assign_row_addresses(files, index.end_address, index.dictionary.partitions())
    reader = key_reader(metadata, Storage(), index.key_set)
    tasks = build_tasks(reader, index.storage, index.entries_table.location, indexed, 1)
    return commit_index(index, [run for task in tasks for run in task.run(None).runs], indexed)


class Client:
    """One connection to the service, which is kept."""

    def __init__(self, url: str, path: str) -> None:
        host = url.removeprefix("http://")
        self._connection = http.client.HTTPConnection(host, timeout=_PATIENCE_SECONDS)
        self._path = path

    def call(self, method: str, path: str, body: object = None) -> Any:
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        self._connection.request(method, f"/api/v1{path}", json.dumps(body), headers)
        answer = self._connection.getresponse()
        content = json.loads(answer.read())
        assert answer.status < 300, content
        return content

    def ask(self, keys: Sequence[int], select: Sequence[str] | None = None) -> Any:
        asked = {"keys": [{"id": key} for key in keys], "key_columns": ["id"], "select": select}
        return self.call("POST", self._path, asked)


@contextmanager
def served(table: Table) -> Iterator[tuple[Callable[[], Client], int]]:
    """What opens connections to a service that knows the table; the process id of its lookup server."""
    with tempfile.TemporaryDirectory(prefix="icestream-lookups-") as name:
        directory = Path(name)
        token = {"ICESTREAM_LOOKUP_TOKEN": _TOKEN}
        with server(LOOK_UP, directory / "lookup.log", **token, ICESTREAM_LOOKUP_PORT="0") as (asked, lookup):
            settings = {
                "ICESTREAM_DATA_DIR": str(directory / "service"),
                "ICESTREAM_ALLOWED_LOCATIONS": table.directory.parent.as_uri(),
                "ICESTREAM_BOOTSTRAP_KEY": KEY,
                "ICESTREAM_LOOKUP_URL": asked,
                "ICESTREAM_LOOKUP_KEYS_PER_MINUTE": "0",
                "ICESTREAM_REQUESTS_PER_MINUTE": "0",
                "ICESTREAM_INDEX_WAREHOUSE": table.index,
                "ICESTREAM_PORT": "0",
            }
            migrate(f"sqlite:///{directory}/service/icestream.db")
            with server(SERVE, directory / "service.log", **token, **settings) as (url, _):
                first = Client(url, "")
                record = {"name": "lake", "type": "sql", "properties": table.properties}
                first.call("POST", "/catalogs", record)
                enrolled = first.call("POST", "/tables", {"catalog": "lake", "identifier": ["db", "t"]})
                path = f"/tables/{enrolled['id']}/lookups"
                yield lambda: Client(url, path), lookup.pid


def check(table: Table, keys: Sequence[int], answer: Any, *, with_rows: bool) -> None:
    """Each key has its one row, where it was written."""
    assert answer["data_files_scanned"] == 0
    for key, found in zip(keys, answer["results"], strict=True):
        (match,) = found["matches"]
        assert (match["position"], match["live"]) == (int(table.places[key]) % FILE_ROWS, True)
        if with_rows:
            assert match["row"].items() >= table.row(key).items()


@dataclass(frozen=True)
class Measured:
    """What was asked of whom, and how long each answer took."""

    what: str
    who: str
    figure: Figure

    @property
    def row(self) -> list[object]:
        ordered = sorted(self.figure.seconds)
        p99 = Figure((ordered[int(len(ordered) * 0.99)],)) if len(ordered) >= 100 else ""
        return [self.what, self.who, len(ordered), self.figure, p99]


class Questions:
    """Random keys, never the same ones again; answers are looked at outside of the time they took."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._random = np.random.default_rng(7)
        self._lock = threading.Lock()

    def keys(self, count: int) -> list[int]:
        with self._lock:
            found: list[int] = self._random.integers(0, self._table.rows, count).tolist()
        return found

    def ask(self, client: Client, count: int, select: Sequence[str] | None = None) -> float:
        keys = self.keys(count)
        answer, seconds = timed(lambda: client.ask(keys, select))
        check(self._table, keys, answer, with_rows=select is not None)
        return seconds

    def figure(self, client: Client, rounds: int, count: int, select: Sequence[str] | None = None) -> Figure:
        for _ in range(max(1, rounds // 10)):
            self.ask(client, count, select)
        return Figure(tuple(self.ask(client, count, select) for _ in range(rounds)))

    def others(self, name: str, count: int, rounds: int, find: Callable[[list[int]], list[int]]) -> Measured:
        """find: the values of `customer` in the rows of some keys."""
        seconds = []
        for _ in range(rounds + 1):  # the first warms up
            keys = sorted(set(self.keys(count)))
            found, took = timed(partial(find, keys))
            assert sorted(found) == sorted(key * 7919 % 1_000_003 for key in keys)
            seconds.append(took)
        return Measured(_WHAT[count, True], name, Figure(tuple(seconds[1:])))


_WHAT = {
    (1, False): "one key",
    (1, True): "one key and its row",
    (1_000, False): "1,000 keys",
    (1_000, True): "1,000 keys and their rows",
}


def measure_lookups(table: Table, rounds: int, clients: int, seconds: float) -> tuple[list[Measured], str]:
    """Over HTTP; and what is told beside the figures."""
    questions = Questions(table)
    with served(table) as (connect, pid):
        client = connect()
        cold = questions.ask(client, 1)
        measured = [
            Measured(
                _WHAT[count, select is not None], "Icestream", questions.figure(client, n, count, select)
            )
            for count, select, n in (
                (1, None, rounds),
                (1, COLUMNS, rounds),
                (1_000, None, max(3, rounds // 20)),
                (1_000, COLUMNS, max(3, rounds // 100)),
            )
        ]
        until = time.monotonic() + seconds

        def keep_asking(_: int) -> list[float]:
            own, took = connect(), []
            while time.monotonic() < until:
                took.append(questions.ask(own, 1))
            return took

        with ThreadPoolExecutor(clients) as threads:
            of_clients = [one for took in threads.map(keep_asking, range(clients)) for one in took]
        measured.append(
            Measured(f"one key, {clients} clients at once", "Icestream", Figure(tuple(of_clients)))
        )
        told = (
            f"The first answer of a new server took {cold:.2f} s. {clients} clients, which share the two"
            f" cores with both servers, got {len(of_clients) / seconds:,.0f} answers a second."
            f" The lookup server took {mebibytes(high_water_mark(pid))} of memory (RSS) at most, over all of"
            " its answers in the table below."
        )
    return measured, told


def measure_others(table: Table, spark: SparkSession, rounds: int) -> list[Measured]:
    """The filters of others; of as many keys, with one column of their rows."""
    questions, location = Questions(table), table.metadata_location
    connection = duckdb.connect()
    for extension in ("avro", "iceberg"):
        duckdb_extensions.import_extension(extension, con=connection)
    register_jdbc_catalog(spark, "lake", table.properties["uri"].replace("sqlite:", "jdbc:sqlite:"), location)
    spark.conf.set("spark.sql.catalog.lake.warehouse", table.properties["warehouse"])

    def in_list(keys: list[int]) -> str:
        return ", ".join(map(str, keys))

    def by_duckdb(keys: list[int]) -> list[int]:
        query = f"SELECT customer FROM iceberg_scan(?) WHERE id IN ({in_list(keys)})"
        return [row[0] for row in connection.execute(query, [location]).fetchall()]

    def by_pyiceberg(keys: list[int]) -> list[int]:
        loaded = table.catalog.load_table("db.t")
        found = loaded.scan(
            row_filter=f"id IN ({in_list(keys)})", selected_fields=("id", "customer")
        ).to_arrow()
        return list(found["customer"].to_pylist())

    def by_spark(keys: list[int]) -> list[int]:
        query = f"SELECT customer FROM lake.db.t WHERE id IN ({in_list(keys)})"
        return [row[0] for row in spark.sql(query).collect()]

    finders = {"DuckDB": by_duckdb, "PyIceberg": by_pyiceberg, "Spark": by_spark}
    return [
        questions.others(name, count, rounds, find) for count in (1, 1_000) for name, find in finders.items()
    ]


def measure_far(table: Table, wait_seconds: float, rounds: int) -> list[list[object]]:
    """Of what is known of the table each time: requests, how many of them follow each other, and seconds."""
    questions = Questions(table)
    cache = Cache(2**28)
    files = WaitingFiles({}, cache, wait_seconds)
    answers = Answers(cache=cache)
    place = TablePlace(table.metadata_location, files, table.index, files)

    def ask(count: int, select: list[str] | None) -> None:
        keys = questions.keys(count)
        asked = AskedKeys(keys=[{"id": key} for key in keys], key_columns=["id"], select=select)
        coverage, places = answers.find(place, asked)
        assert (places.positions == table.places[keys][places.keys] % FILE_ROWS).all()
        if select is not None:
            rows = rows_at(coverage.table, places, selected(coverage.table.schema, select))
            assert rows["id"].to_pylist() == np.array(keys)[places.keys].tolist()

    lines = []
    for what, count, select, times in (
        ("the first key of a new server", 1, None, 1),
        ("one key", 1, None, rounds),
        ("one key and its row", 1, COLUMNS, rounds),
        ("1,000 keys", 1_000, None, 1),
        ("1,000 keys, once more", 1_000, None, 3),
        ("one key, after these", 1, None, rounds),
    ):
        requests, waves, seconds = [], [], []
        for _ in range(times):
            asked, took = timed(partial(files.counted, partial(ask, count, select)))
            requests.append(asked.count)
            waves.append(asked.waves)
            seconds.append(took)
        lines.append([what, times, _range(requests), _range(waves), Figure(tuple(seconds))])
    return lines


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{sorted(numbers)[len(numbers) // 2]:,} ({low:,}-{high:,})" if low != high else f"{low:,}"


def main(
    rows: Annotated[int, typer.Option(help="of the table")] = 50_000_000,
    rounds: Annotated[int, typer.Option(help="of questions about one key")] = 300,
    clients: Annotated[int, typer.Option(help="that ask at the same time")] = 16,
    seconds: Annotated[float, typer.Option(help="for which these ask")] = 20,
    wait_ms: Annotated[float, typer.Option(help="of every request to a far store")] = 20,
    directory: Annotated[Path, typer.Option(help="where tables are kept")] = Path("build/benchmarks"),
    only_make: Annotated[bool, typer.Option(help="make the table, and measure nothing")] = False,
    alone: Annotated[bool, typer.Option(help="without others and without writing the page")] = False,
) -> None:
    """Ask a lookup server about keys, through the service; and others, who filter the same table."""
    table = Table(directory.resolve() / f"lookups-{rows}", rows)
    table.load(lambda what: print(what, file=sys.stderr))  # noqa: T201
    if only_make:
        return
    measured, told = measure_lookups(table, rounds, clients, seconds)
    far = measure_far(table, wait_ms / 1000, max(3, rounds // 20))
    spark = None
    if not alone:
        spark = create_spark("local[*]", "lookups")
        spark.sparkContext.setLogLevel("ERROR")
        measured += measure_others(table, spark, 3)
    text = _TEXT.format(
        machine=machine(spark, "pyarrow", "numpy", "pyiceberg", "duckdb"),
        rows=rows,
        files=rows // FILE_ROWS,
        told=told,
        table=markdown(_HEADER, [one.row for one in measured]),
        wait=wait_ms,
        far=markdown(_FAR_HEADER, far),
    )
    if not alone:
        write_part(Part.LOOKUPS, text)
    print(text)  # noqa: T201


_HEADER = "asked for | of | answers | median (least-most) | p99"
_FAR_HEADER = "asked for | answers | requests | one after the other | seconds"
_TEXT = """\
# Lookups over HTTP

Made by `make bench-lookups` on {machine}

{rows:,} rows of five columns with dense int64 keys in random order over {files} data files lie on a local
disk.
A client asks the service over HTTP on loopback for random keys, and the service asks a lookup server, two
processes on the same machine; all is warm, and no key is asked for twice. The service has its database in
SQLite. Each answer was held to the rows that were written.

{told}

{table}

The others filter the same table, and have one column of the rows.

In a store that answers each request after {wait:g} ms, a lookup server asks for this much, of a table that it
knows. `one after the other` counts the moments at which it began to wait.

{far}
"""


if __name__ == "__main__":
    typer.run(main)
