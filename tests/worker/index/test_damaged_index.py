"""An index that can't be read is given up and made anew, costs no row, and no conversion waits for that."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.factories import Catalog, TableBuilder, garble
from tests.jobs import Jobs
from tests.thorough import thorough_unless
from worker.index import footers
from worker.index.sorted_runs import IndexCommitConflictError
from worker.lookup.index_lookup import lookup_tasks

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def no_live_file_is_gone() -> None:
    """Unlike elsewhere, some are: these tests take files of the index away, or damage them."""


ROWS = 300
DELETED = range(0, ROWS, 20)
_numbers = count()


@dataclass
class Subject:
    """A table with pending deletes, and an index of several snapshots, of which each case gets a copy."""

    spark: SparkSession
    catalog: Catalog
    table: TableBuilder
    index: Path
    head: int

    def jobs(self, place: Path) -> Jobs:
        """On the table as it was at first, and a copy of its index."""
        if self.table.snapshot_id != self.head:
            self.table.java.manageSnapshots().rollbackTo(self.head).commit()
        index = place / f"index-{next(_numbers)}"
        shutil.copytree(self.index, index)
        jobs = Jobs(self.spark, self.catalog, self.table.identifier, index)
        jobs.reporter.next_address = 10 * ROWS
        footers.KEPT.clear()
        return jobs


@pytest.fixture(scope="session")
def subject(spark: SparkSession, catalog: Catalog, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    table = TableBuilder.create(
        spark, f"{catalog.name}.db.damaged", "id bigint, value bigint", format_version=3
    )
    index = tmp_path_factory.mktemp("whole") / "index"
    jobs = Jobs(spark, catalog, table.identifier, index)
    for start in range(0, ROWS, 100):
        table.append([{"id": i, "value": i} for i in range(start, start + 100)], files=2)
        jobs.run("index", key_sets=[["id"]])
    table.delete_keys([{"id": i} for i in DELETED])
    assert table.snapshot_id is not None
    return Subject(spark, catalog, table, index, table.snapshot_id)


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def overwrite(file: Path) -> None:
    """The pages of a Parquet file, or all of another one."""
    if file.suffix == ".parquet":
        garble(file)
    else:
        file.write_bytes(b"garbled")


WAYS: dict[str, Callable[[Path], None]] = {
    "missing": Path.unlink,
    "garbled": overwrite,
    "cut short": cut_short,
}
PATHS = {
    "entries": "entries_1_g1/bucket-0/*.parquet",
    "dictionary": "files_1_g1/bucket-0/*.parquet",
    "manifests": "*_1_g1/manifest/manifest-[0-9a-f]*",
    "manifest lists": "*_1_g1/manifest/manifest-list-*",
    "snapshots": "*_1_g1/snapshot/snapshot-*",
    "last snapshot of the entries": "entries_1_g1/snapshot/snapshot-3",
    "last snapshot of the dictionary": "files_1_g1/snapshot/snapshot-3",
    "first snapshots": "*_1_g1/snapshot/snapshot-1",
}


PARTS = tuple(PATHS)
KINDS = ("index", "compact", "convert", "verify")

# Who starts a new generation at once; others do not read that part, or leave that to the next index job.
NOTICES = {
    "entries": ("compact", "convert", "verify"),
    "dictionary": ("index", "convert", "verify"),
    "manifests": ("index", "convert", "verify"),
    "manifest lists": ("index", "convert", "verify"),
    "last snapshot of the entries": ("index", "convert", "verify"),
    "first snapshots": ("compact",),
}


def flip(file: Path) -> None:
    """A bit in the middle; of a Parquet file, of its footer, where pages have no checksums."""
    content = bytearray(file.read_bytes())
    end = len(content) - 8
    length = int.from_bytes(content[end : end + 4], "little") if file.suffix == ".parquet" else end
    content[end - length // 2] ^= 2
    file.unlink()
    file.write_bytes(content)


def test_an_index_that_is_replaced_while_a_dry_run_asks_it_is_asked_by_the_next_attempt(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = subject.jobs(tmp_path)
    tasks = "worker.lookup.resolution.lookup_tasks"

    def replaced_meanwhile(*asked: Any) -> Any:
        monkeypatch.setattr(tasks, lookup_tasks)
        jobs.run("rebuild")
        return lookup_tasks(*asked)

    monkeypatch.setattr(tasks, replaced_meanwhile)
    with pytest.raises(IndexCommitConflictError):
        jobs.run("convert", dry_run=True)
    assert not any("can't be used" in told for told in jobs.reporter.decisions)
    (found,) = jobs.run("convert", dry_run=True).result["key_sets"]
    assert (found["source"], found["matches"]) == ("index", len(DELETED))
    assert not any(jobs.index.glob("*.db/entries_1_g3"))


@pytest.mark.parametrize("part", ["entries", "dictionary", "manifests", "manifest lists", "schemas"])
def test_a_flipped_bit_in_the_index_is_told_and_changes_no_row(
    subject: Subject, tmp_path: Path, part: str
) -> None:
    jobs = subject.jobs(tmp_path)
    for file in jobs.index.glob(f"*.db/{PATHS.get(part, '*_1_g1/schema/schema-*')}"):
        flip(file)
    done = jobs.run("convert")
    assert done.result["rows_deleted"] == len(DELETED)
    told = [decision for decision in done.result["decisions"] if decision in jobs.reporter.decisions]
    assert any("the index can't be used, so data files are scanned: " in decision for decision in told)
    assert any("its index starts anew" in decision for decision in told)
    assert any(jobs.index.glob("*.db/entries_1_g2"))


@pytest.mark.parametrize(
    ("part", "kind", "way"),
    thorough_unless(
        # Each part under two kinds of jobs, in two ways.
        lambda case: (
            (PARTS.index(case[0]) + KINDS.index(case[1])) % 2 == 0
            and (PARTS.index(case[0]) + KINDS.index(case[1]) // 2) % 3 == list(WAYS).index(case[2])
        ),
        list(product(PARTS, KINDS, WAYS)),
    ),
)
def test_a_damaged_index_is_made_anew_and_changes_no_row(
    subject: Subject, tmp_path: Path, part: str, kind: str, way: str
) -> None:
    jobs = subject.jobs(tmp_path)
    damaged = list(jobs.index.glob(f"*.db/{PATHS[part]}"))
    assert damaged
    for file in damaged:
        WAYS[way](file)
    done = jobs.run(kind)
    if kind in NOTICES.get(part, ()) and (part, way) != ("first snapshots", "missing"):
        assert any(jobs.index.glob("*.db/entries_1_g2"))
    if kind != "convert":
        done = jobs.run("convert")
    assert done.result["rows_deleted"] == len(DELETED)
    # What neither of them had to read, nobody misses, or a verification finds.
    jobs.run("verify")
    (key_set,) = jobs.run("index").health["key_sets"]
    assert (key_set["coverage"], key_set["generation"] <= 2) == (1.0, True)
    (verified,) = jobs.run("verify").result["key_sets"]
    assert verified["differences"] == 0
