"""A Flink job that streams upserts and deletes into a table, and the rows that must be left at its end.

`python -m tests.integration.upsert_stream DIRECTORY NAMESPACE.TABLE` writes to a table of the SQLite catalog
in that directory, and makes both first if they are not there: docs/tutorial.md needs somebody who writes.
"""

import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from tests.factories import Catalog
from tests.patience import PATIENCE_SECONDS

PROJECT = Path(__file__).parent / "flink"
COLUMNS = "id bigint, tenant string, amount bigint"
TENANTS = 4

Unsigned = npt.NDArray[np.uint64]

# Flink reads private fields of the JDK when it serializes.
JAVA_OPTIONS = [
    "-Xmx1g",
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in ("java.lang", "java.util", "java.util.concurrent", "java.nio", "java.time")
    ),
]


@dataclass(frozen=True)
class UpsertStream:
    """What a job writes: record n is a function of `seed` and n alone."""

    records: int
    keys: int
    key: tuple[str, ...] = ("id",)
    seed: int = 1
    checkpoints: int = 10
    checkpoint_milliseconds: int = 300
    mode: Literal["upsert", "changelog"] = "upsert"
    branch: str = "main"
    parts: int = 1
    """Each but the first comes when `RunningStream.go_on` is called."""

    @property
    def ids(self) -> Unsigned:
        """Of record n, its id."""
        return self._random(np.arange(self.records, dtype=np.uint64), 0, self.keys)

    def expected_rows(self) -> Counter[tuple[Any, ...]]:
        """Return the rows left at the end: the last write of each key, unless a delete follows it."""
        n = np.arange(self.records, dtype=np.uint64)
        ids = self.ids
        tenants = self._random(n, 1, TENANTS)
        deletes = self._random(n, 2, 8) == 0
        keys = ids * np.uint64(TENANTS) + tenants if "tenant" in self.key else ids
        _, from_end = np.unique(keys[::-1], return_index=True)
        last = np.flatnonzero(np.bincount(self.records - 1 - from_end, minlength=self.records))
        last = last[~deletes[last]]
        return Counter(
            zip(
                ids[last].tolist(),
                [f"t{tenant}" if tenant else None for tenant in tenants[last].tolist()],
                n[last].tolist(),
                strict=True,
            )
        )

    def _random(self, n: Unsigned, column: int, bound: int) -> Unsigned:
        start = _mix(np.array([self.seed + column], dtype=np.uint64))
        return _mix(start + n) % np.uint64(bound)

    def start(
        self, class_path: str, catalog: Catalog, identifier: str, log: Path, checkpoints: Path | None = None
    ) -> "RunningStream":
        """Start the job on the table `namespace.table`, from its last checkpoint or savepoint."""
        options = {
            "catalog": catalog.name,
            "uri": f"{catalog.jdbc_uri}&busy_timeout=30000",
            "warehouse": catalog.warehouse,
            "table": identifier,
            "key": ",".join(self.key),
            "mode": self.mode,
            "branch": self.branch,
            "seed": self.seed,
            "keys": self.keys,
            "records": self.records,
            "parts": self.parts,
            "records-per-checkpoint": -(-self.records // self.checkpoints),
            "checkpoint-milliseconds": self.checkpoint_milliseconds,
        }
        if checkpoints is not None:
            options["checkpoints"] = checkpoints.as_uri()
            whole = [*checkpoints.glob("*/chk-*/_metadata"), *checkpoints.glob("savepoint-*/_metadata")]
            whole.sort(key=lambda one: one.stat().st_mtime)
            options |= {"restore": whole[-1].parent.as_uri()} if whole else {}
        arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        command = ["java", *JAVA_OPTIONS, "-cp", class_path, "icestream.UpsertStream", *arguments]
        return RunningStream(command, log)


def _mix(state: Unsigned) -> Unsigned:
    """One step of SplitMix64 from each given state."""
    z = state + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class RunningStream:
    """The job's process; leaving it ends it."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.committed_snapshot_ids: list[int] = []
        self._log = log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        self._finished = False
        self._reader = threading.Thread(target=self._follow, daemon=True)
        self._reader.start()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                match line.split():
                    case ["committed", _, snapshot_id]:
                        self.committed_snapshot_ids.append(int(snapshot_id))
                    case ["finished"]:
                        self._finished = True

    def go_on(self) -> None:
        """With the next part."""
        self._tell("")

    def stop(self) -> None:
        """End with a savepoint beside the checkpoints: what came before it is committed."""
        self._tell("stop")
        self.finish()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def wait_for_commits(self, count: int) -> None:
        self._wait(lambda: len(self.committed_snapshot_ids) >= count, f"{count} commits")

    def finish(self) -> None:
        """Wait for the end and fail unless the job says itself that it wrote everything."""
        self._wait(lambda: self._finished, "the end of the stream")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            ended = not self._reader.is_alive()
            if condition():
                return
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"No {what} of the Flink job; its log ends:\n{self._log_end()}")
            time.sleep(0.05)

    def _log_end(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        self._process.stdin.close()


def main(directory: Path, identifier: str) -> None:
    """Makes the table, unless it is there, and streams ten checkpoints into it, others each time."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField, StringType

    from tests import maven

    directory.mkdir(parents=True, exist_ok=True)
    there = Catalog("lake", directory / "catalog.db", (directory / "warehouse").as_uri())
    lake = SqlCatalog(there.name, uri=f"sqlite:///{directory / 'catalog.db'}", warehouse=there.warehouse)
    lake.create_namespace_if_not_exists(identifier.rpartition(".")[0])
    types = {"id": LongType(), "tenant": StringType(), "amount": LongType()}
    fields = [NestedField(at, name, kind, name == "id") for at, (name, kind) in enumerate(types.items(), 1)]
    table = lake.create_table_if_not_exists(identifier, Schema(*fields, identifier_field_ids=[1]))
    stream = UpsertStream(records=20_000, keys=4_000, seed=1 + len(table.history()))
    with (
        tempfile.NamedTemporaryFile(suffix=".log") as log,
        stream.start(maven.build(PROJECT), there, identifier, Path(log.name)) as running,
    ):
        running.finish()
    lake.close()
    checkpoints = len(running.committed_snapshot_ids)
    sys.stdout.write(
        f"Flink has committed {checkpoints} checkpoints of {identifier}: {stream.records:,} changes.\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
