"""New delete files hide exactly the rows that were hidden before and the new ones."""

import pickle
import resource
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import orc
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from tests.delete_files import write_deletes
from tests.factories import Catalog, TableBuilder, visible_rows
from tests.patience import PATIENCE_SECONDS
from tests.thorough import V2_FIRST, V3_FIRST, first_always
from tests.worker.keys.test_read import FlakyStorage
from worker.deletes.existing import (
    FILES_AT_ONCE,
    ExistingDeletes,
    UnreadableDeleteFileError,
    existing_deletes,
)
from worker.deletes.locations import DeleteFileLocations
from worker.deletes.merge import DeleteGranularity, plan_deletes, sharing_a_file
from worker.deletes.puffin import Positions
from worker.deletes.stage import DeletesTask, _deletes_by_scope, _deletes_of
from worker.deletes.write import (
    WrittenDeletes,
    _position_delete_rows,
    count_names,
    delete_files,
    remove_written,
    write_deletion_vectors,
    write_position_deletes,
    written_files,
)
from worker.io.storage import Storage
from worker.table.catalogs import load_table
from worker.table.commit import commit_row_delta
from worker.table.files import DataFile, DataFiles, DeleteFile, FileContent, PartitionKey, SnapshotFiles
from worker.table.manifests import read_snapshot_files
from worker.table.row_delta import RowDelta

UNPARTITIONED = PartitionKey(0, "[]")


def data_file(
    path: str, *, partition: PartitionKey = UNPARTITIONED, rows: int = 100, seq: int = 1
) -> DataFile:
    return DataFile(path, "parquet", partition, rows, 1_000, seq)


def delete_file(
    path: str, *, file_format: str = "parquet", rows: int = 1, seq: int = 2, **more: Any
) -> DeleteFile:
    partition = more.pop("partition", UNPARTITIONED)
    size = Path(path).stat().st_size if Path(path).exists() else 1_000
    return DeleteFile(FileContent.POSITION_DELETES, path, file_format, partition, rows, size, seq, **more)


def position_delete_file(path: Path, rows: Sequence[tuple[str, int]], **how: Any) -> DeleteFile:
    paths, positions = zip(*rows, strict=True)
    pq.write_table(pa.table({"file_path": list(paths), "pos": list(positions)}), path, **how)
    return delete_file(str(path), rows=len(rows))


def positions(existing: Mapping[DataFile, ExistingDeletes]) -> dict[str, list[int]]:
    return {file.path: list(deletes.positions) for file, deletes in existing.items()}


class TestExistingDeletes:
    def test_a_file_of_a_whole_partition_is_split_by_data_file(self, tmp_path: Path) -> None:
        delete = position_delete_file(
            tmp_path / "p.parquet", [("a", 1), ("a", 5), ("b", 2), ("c", 3)], row_group_size=2
        )
        found = existing_deletes(Storage(), [data_file("a"), data_file("b"), data_file("d")], [delete])
        assert positions(found) == {"a": [1, 5], "b": [2]}
        assert all(not deletes.file_scoped for deletes in found.values())

    def test_a_file_of_another_format_is_split_likewise(self, tmp_path: Path) -> None:
        orc.write_table(pa.table({"file_path": ["a", "b", "a"], "pos": [1, 2, 5]}), tmp_path / "p.orc")
        delete = delete_file(f"{tmp_path}/p.orc", file_format="orc", rows=3)
        found = existing_deletes(Storage(), [data_file("a"), data_file("d")], [delete])
        assert positions(found) == {"a": [1, 5]}

    def test_columns_are_found_by_field_id(self, tmp_path: Path) -> None:
        schema = pa.schema(
            [
                pa.field("p", pa.int64(), metadata={"PARQUET:field_id": "2147483545"}),
                pa.field("f", pa.string(), metadata={"PARQUET:field_id": "2147483546"}),
            ]
        )
        pq.write_table(pa.table([[7], ["a"]], schema=schema), tmp_path / "renamed.parquet")
        found = existing_deletes(
            Storage(), [data_file("a")], [delete_file(str(tmp_path / "renamed.parquet"))]
        )
        assert positions(found) == {"a": [7]}

    def test_deletes_apply_at_the_same_sequence_number_and_not_to_newer_files(self, tmp_path: Path) -> None:
        delete = position_delete_file(tmp_path / "p.parquet", [("same", 1), ("newer", 1)])
        files = [data_file("same", seq=2), data_file("newer", seq=3)]
        assert positions(existing_deletes(Storage(), files, [delete])) == {"same": [1]}

    def test_a_store_that_is_well_again_at_the_second_look_has_no_damaged_file(self, tmp_path: Path) -> None:
        delete = position_delete_file(tmp_path / "p.parquet", [("a", 1)])
        with pytest.raises(OSError, match="NETWORK_CONNECTION"):
            existing_deletes(FlakyStorage(), [data_file("a")], [delete])

    def test_deletes_of_another_partition_do_not_apply(self, tmp_path: Path) -> None:
        delete = position_delete_file(tmp_path / "p.parquet", [("a", 1)])
        other = data_file("a", partition=PartitionKey(1, '["eu"]'))
        assert existing_deletes(Storage(), [other], [delete]) == {}

    def test_a_deletion_vector_hides_older_position_deletes(self, tmp_path: Path) -> None:
        file = data_file("a")
        [written] = write_deletion_vectors(
            Storage(), lambda file: f"{tmp_path}/{file.path}.puffin", {file: BitMap64([4])}
        )
        vector = delete_file(
            written.path,
            file_format="puffin",
            referenced_data_file="a",
            content_offset=written.content_offset,
            content_size_bytes=written.content_size_bytes,
        )
        legacy = position_delete_file(tmp_path / "p.parquet", [("a", 9)])
        [found] = existing_deletes(Storage(), [file], [legacy, vector]).values()
        assert (list(found.positions), found.deletion_vector, found.file_scoped) == ([4], vector, ())

    def test_a_second_vector_of_a_data_file_is_refused(self) -> None:
        vectors = [
            delete_file(f"{n}.puffin", file_format="puffin", referenced_data_file="a") for n in range(2)
        ]
        with pytest.raises(UnreadableDeleteFileError, match="a has a second deletion vector"):
            existing_deletes(Storage(), [data_file("a")], vectors)

    @pytest.mark.parametrize(
        ("content", "more", "reason"),
        [
            (b"no parquet", {}, "magic bytes"),
            (b"", {"encrypted": True}, "encrypted"),
            (b"", {"file_format": "csv"}, "can't be csv files"),
            (b"PFA1 too short", {"file_format": "puffin", "referenced_data_file": "a"}, "where the deletion"),
            (
                b"PFA1 no vector here",
                {
                    "file_format": "puffin",
                    "referenced_data_file": "a",
                    "content_offset": 4,
                    "content_size_bytes": 15,
                },
                "states",
            ),
        ],
    )
    def test_an_unreadable_file_is_named_with_its_reason(
        self, tmp_path: Path, content: bytes, more: dict[str, Any], reason: str
    ) -> None:
        (tmp_path / "broken").write_bytes(content)
        broken = delete_file(f"{tmp_path}/broken", **more)
        with pytest.raises(UnreadableDeleteFileError, match=f"broken.*{reason}") as caught:
            existing_deletes(Storage(), [data_file("a")], [broken])
        assert pickle.loads(pickle.dumps(caught.value)).delete_file == broken
        assert not caught.value.missing

    def test_a_missing_file_is_told_from_an_unreadable_one(self, tmp_path: Path) -> None:
        with pytest.raises(UnreadableDeleteFileError, match="it is missing") as caught:
            existing_deletes(Storage(), [data_file("a")], [delete_file(f"{tmp_path}/gone.parquet")])
        assert caught.value.missing
        assert pickle.loads(pickle.dumps(caught.value)).missing

    def test_many_data_files_share_one_read_of_each_file(self, tmp_path: Path) -> None:
        rows = [(f"file-{n:05d}", n) for n in range(2_000)]
        delete = position_delete_file(tmp_path / "p.parquet", rows)
        opened: list[str] = []

        class CountingStorage(Storage):
            def open_input(self, location: str) -> pa.NativeFile:
                opened.append(location)
                return super().open_input(location)

        files = [data_file(path, rows=10_000) for path, _ in rows]
        found = existing_deletes(CountingStorage(), files, [delete])
        assert positions(found) == {path: [position] for path, position in rows}
        assert opened == [delete.path]


position_sets = st.sets(st.integers(0, 99))
few_positions = st.sets(st.integers(0, 2), min_size=1)


class TestPlan:
    @given(
        position_sets,
        position_sets,
        position_sets,
        st.sampled_from([2, 3]),
        st.sampled_from(DeleteGranularity),
    )
    def test_readers_skip_the_old_and_the_new_positions(
        self,
        new: set[int],
        file_scoped: set[int],
        partition_scoped: set[int],
        format_version: int,
        granularity: DeleteGranularity,
    ) -> None:
        file = data_file("a")
        own = delete_file("own.parquet", referenced_data_file="a")
        existing = ExistingDeletes(
            BitMap64(file_scoped | partition_scoped),
            file_scoped=(own,) if file_scoped else (),
            file_scoped_positions=BitMap64(file_scoped),
        )
        plan = plan_deletes({file: BitMap64(new)}, {file: existing}, format_version, granularity)

        written = set(plan.positions.get(file, ()))
        kept = partition_scoped | (set() if own in plan.removed else file_scoped)
        skipped = written if written and format_version == 3 else written | kept
        assert skipped == new | file_scoped | partition_scoped
        assert plan.rows_deleted == len(new - file_scoped - partition_scoped)
        assert bool(written) == bool(plan.rows_deleted) == bool(plan.positions)

    @given(
        st.sets(st.integers(1, 3), min_size=2),
        st.lists(st.tuples(st.integers(1, 4), few_positions, st.booleans()), max_size=3),
        st.lists(st.tuples(st.integers(2, 4), few_positions), min_size=1, max_size=3),
        st.sampled_from([2, 3]),
        st.sampled_from(DeleteGranularity),
    )
    def test_each_live_file_of_a_path_loses_what_deletes_of_it_say_or_these_stay(
        self,
        sequence_numbers: set[int],
        old: list[tuple[int, set[int], bool]],
        new: list[tuple[int, set[int]]],
        format_version: int,
        granularity: DeleteGranularity,
    ) -> None:
        """old, new: sequence numbers and positions of deletes; whether old ones name the path alone."""
        copies = [data_file("a", seq=number) for number in sorted(sequence_numbers)]
        scoped = {
            delete_file(f"{n}", seq=number, referenced_data_file="a" if is_scoped else None): found
            for n, (number, found, is_scoped) in enumerate(old)
        }

        def skipped(file: DataFile, *, but: Sequence[DeleteFile] = (), named: bool = False) -> set[int]:
            hit = [
                found
                for one, found in scoped.items()
                if one.data_sequence_number >= file.data_sequence_number
                and one not in but
                and (one.referenced_data_file or not named)
            ]
            return set().union(*hit)

        existing = {
            file: ExistingDeletes(
                BitMap64(skipped(file)),
                file_scoped=tuple(
                    one
                    for one in scoped
                    if one.referenced_data_file and one.data_sequence_number >= file.data_sequence_number
                ),
                file_scoped_positions=BitMap64(skipped(file, named=True)),
            )
            for file in copies
        }
        found = {
            file: set().union(*(at for number, at in new if number > file.data_sequence_number))
            for file in copies
        }
        wanted = {file: BitMap64(at) for file, at in found.items()}
        plan = plan_deletes(wanted, existing, format_version, granularity)
        written = set().union(*plan.positions.values())
        assert len(plan.positions) <= 1
        for file in copies:
            replaces = format_version == 3 and bool(written)
            after = written | (set() if replaces else skipped(file, but=plan.removed))
            assert skipped(file) <= after <= skipped(file) | found[file]
            for number, at in new:
                stays = any(
                    number > one.data_file.data_sequence_number
                    and (one.spares is None or number <= one.spares.data_sequence_number)
                    for one in plan.blocked
                )
                if number > file.data_sequence_number and not stays:
                    assert at <= after, "it may not be removed"
        if len({frozenset(skipped(file) | found[file]) for file in copies}) == 1:
            assert plan.blocked == (), "all are hit alike"

    @pytest.mark.parametrize("format_version", [2, 3])
    def test_a_path_whose_newest_file_alone_loses_a_row_spares_no_delete_of_it(
        self, format_version: int
    ) -> None:
        """As where the path was overwritten with other content: no delete of the newest may be lost."""
        old, newest = data_file("a", seq=1), data_file("a", seq=2)
        found = {old: BitMap64([1]), newest: BitMap64([1, 2])}
        plan = plan_deletes(found, {}, format_version, DeleteGranularity.FILE)
        assert [(one.data_file, one.spares) for one in plan.blocked] == [(newest, None)]
        assert [list(positions) for positions in plan.positions.values()] == [[1]]

    def test_a_vector_of_the_oldest_file_of_a_path_alone_is_replaced(self) -> None:
        oldest, newer = data_file("a", seq=1), data_file("a", seq=3)
        vector = delete_file("v.puffin", file_format="puffin", referenced_data_file="a")
        found = {oldest: BitMap64([2]), newer: BitMap64([1, 2])}
        plan = plan_deletes(found, {oldest: ExistingDeletes(BitMap64([1]), vector)}, 3)
        assert (plan.positions, plan.removed) == ({oldest: BitMap64([1, 2])}, (vector,))

    def test_a_vector_replaces_the_old_vector_and_file_scoped_deletes(self) -> None:
        vector = delete_file("v.puffin", file_format="puffin", referenced_data_file="a")
        legacy = delete_file("p.parquet", referenced_data_file="b")
        existing = {
            data_file("a"): ExistingDeletes(BitMap64([1]), vector),
            data_file("b"): ExistingDeletes(
                BitMap64([2]), file_scoped=(legacy,), file_scoped_positions=BitMap64([2])
            ),
        }
        new = {data_file("a"): BitMap64([5]), data_file("b"): BitMap64([6])}
        plan = plan_deletes(new, existing, 3)
        assert {file.path: list(bitmap) for file, bitmap in plan.positions.items()} == {
            "a": [1, 5],
            "b": [2, 6],
        }
        assert plan.removed == (vector, legacy)
        assert (plan.rows_deleted, len(plan.positions)) == (2, 2)

    def test_each_task_gets_what_may_apply_to_its_files_and_every_delete_is_looked_at_once(self) -> None:
        p, q = (PartitionKey(0, values) for values in ('["p"]', '["q"]'))
        a, b, c = data_file("a", partition=p), data_file("b", partition=p), data_file("c", partition=q)
        of_a, of_c, of_p, *_ = deletes = [
            delete_file("1", partition=p, referenced_data_file="a"),
            delete_file("2", partition=q, referenced_data_file="c"),
            delete_file("3", partition=p),
            delete_file("4", partition=p, referenced_data_file="another"),
            delete_file("5"),
        ]
        by_scope = _deletes_by_scope([a, b, c], iter(deletes))
        assert set(_deletes_of([a, b], by_scope)) == {of_a, of_p}
        assert len(_deletes_of([a, b], by_scope)) == 2
        assert _deletes_of([b], by_scope) == (of_p,)
        assert _deletes_of([c], by_scope) == (of_c,)

    def test_a_vector_is_moved_also_when_nothing_is_new(self) -> None:
        vector, other, moved, alone = (
            delete_file(path, file_format="puffin", referenced_data_file=of)
            for path, of in (("v", "a"), ("w", "b"), ("v", "c"), ("x", "d"))
        )
        files = DataFiles.of([data_file(name) for name in "abcd"])
        shared = sharing_a_file([vector], [vector, other, moved, alone], files)
        assert [file.path for file in shared] == ["c"]
        nothing = {file: BitMap64() for file in (*shared, data_file("e"))}
        known = {shared[0]: ExistingDeletes(BitMap64([1]), moved)}
        plan = plan_deletes(nothing, known, 3, moves=True)
        assert {file.path: list(bitmap) for file, bitmap in plan.positions.items()} == {"c": [1]}
        assert (plan.removed, plan.rows_deleted) == ((moved,), 0)
        assert plan_deletes(nothing, known, 3).positions == {}

    def test_partition_granularity_leaves_file_scoped_deletes_alone(self) -> None:
        legacy = delete_file("p.parquet", referenced_data_file="a")
        existing = {
            data_file("a"): ExistingDeletes(
                BitMap64([2]), file_scoped=(legacy,), file_scoped_positions=BitMap64([2])
            )
        }
        new = {data_file("a"): BitMap64([2, 3]), data_file("b"): BitMap64([4])}
        plan = plan_deletes(new, existing, 2, DeleteGranularity.PARTITION)
        assert [list(bitmap) for bitmap in plan.positions.values()] == [[3], [4]]
        assert plan.removed == ()

    def test_what_is_planned_is_what_is_written(self, tmp_path: Path) -> None:
        files = [data_file(f"f{n}", partition=PartitionKey(0, f"[{n % 2}]")) for n in range(4)]
        new = {file: np.array([1], dtype=np.int64) for file in files}
        for version, granularity in (
            (2, DeleteGranularity.FILE),
            (2, DeleteGranularity.PARTITION),
            (3, DeleteGranularity.FILE),
        ):
            plan = plan_deletes(new, {}, version, granularity)
            locations = DeleteFileLocations(str(tmp_path), {}, f"{version}-{granularity}")
            written = write_deletes(Storage(), new, [], version, granularity, locations)
            assert sorted(written.data_files) == sorted(file.path for file in plan.positions)
            assert written.rows_deleted == plan.rows_deleted == 4

    def test_a_position_outside_its_data_file_is_refused(self) -> None:
        with pytest.raises(ValueError, match="position 100 lies outside a, which has 100 rows"):
            plan_deletes({data_file("a"): np.array([100], dtype=np.int64)}, {}, 3)

    def test_format_version_one_is_refused(self) -> None:
        with pytest.raises(ValueError, match="format version 1 has no row-level deletes"):
            plan_deletes({}, {}, 1)


@pytest.mark.parametrize(
    ("properties", "granularity"),
    [({}, "file"), ({"write.delete.granularity": "PARTITION"}, "partition")],
)
def test_granularity_is_the_tables_and_file_by_default(properties: dict[str, str], granularity: str) -> None:
    assert DeleteGranularity.of_table(properties) == granularity


class TestWrite:
    def test_what_a_dead_attempt_wrote_is_found_by_its_prefix(self, tmp_path: Path) -> None:
        new = {data_file(f"f{n}"): BitMap64([n]) for n in range(3)}
        mine, other = (DeleteFileLocations(str(tmp_path), {}, prefix) for prefix in ("mine", "other"))
        kept = write_deletes(Storage(), new, [], 2, DeleteGranularity.FILE, other).added
        write_deletes(Storage(), new, [], 2, DeleteGranularity.FILE, mine)
        write_deletes(Storage(), new, [], 3, DeleteGranularity.FILE, mine)
        assert len(written_files(Storage(), list(mine.names(len(new))))) == 6
        assert Storage().delete(mine.parquet(0))
        assert Storage().delete(mine.puffin(0))
        assert remove_written(Storage(), mine, 2, len(new)) == 2
        assert remove_written(Storage(), mine, 3, len(new)) == 2
        assert sorted(str(file) for file in tmp_path.rglob("*.*")) == sorted(file.path for file in kept)

    def test_locations_follow_the_tables_properties_also_after_pickling(self, tmp_path: Path) -> None:
        locations = DeleteFileLocations("s3://b/t", {"write.data.path": "s3://b/elsewhere"}, "p")
        for one in (locations, pickle.loads(pickle.dumps(locations))):
            # PyIceberg spreads files over the store by default, by a hash of their name.
            assert one.puffin(7).startswith("s3://b/elsewhere/")
            assert one.puffin(7).endswith("/p-00007-deletes.puffin")
            assert one.puffin(7) == locations.puffin(7)

    @pytest.mark.parametrize("version", [2, 3])
    def test_a_run_of_a_task_that_fails_late_deletes_nothing_of_another_one(
        self, version: int, tmp_path: Path
    ) -> None:
        class FullStorage(Storage):
            """A store in which one file of many can't be created."""

            def write(self, location: str, content: pa.Buffer) -> None:
                if "00010" in location:
                    raise OSError(28, "No space left on device")
                super().write(location, content)

        new = {data_file(f"f{n:02}"): BitMap64([n]) for n in range(30)}
        locations = DeleteFileLocations(str(tmp_path), {}, "p")
        committed = write_deletes(Storage(), new, [], version, DeleteGranularity.FILE, locations)
        with pytest.raises(OSError, match="No space left"):
            write_deletes(FullStorage(), new, [], version, DeleteGranularity.FILE, locations)
        assert {str(path) for path in tmp_path.rglob("*.*")} == {file.path for file in committed.added}
        # Who knows that nothing was committed removes all of it.
        assert remove_written(Storage(), locations, version, len(new)) == len(new)
        assert not list(tmp_path.rglob("*.*"))

    @pytest.mark.parametrize(
        ("version", "granularity"),
        [(3, DeleteGranularity.FILE), (2, DeleteGranularity.FILE), (2, DeleteGranularity.PARTITION)],
    )
    def test_a_stray_run_of_a_task_that_could_read_less_or_more_overwrites_nothing(
        self, version: int, granularity: DeleteGranularity, tmp_path: Path
    ) -> None:
        """A name is never given to other content, whichever run of a task comes last."""
        partitions = [PartitionKey(1, f'["{region}"]') for region in ("eu", "us")]
        files = [data_file(f"f{n}", partition=partitions[n // 3]) for n in range(6)]
        # What says which rows of two of these are gone already can be read in some runs only.
        existing = [
            replace(
                position_delete_file(tmp_path / f"old{n}.parquet", [(f"f{n}", 1)]),
                partition=partitions[0],
                referenced_data_file=f"f{n}",
            )
            for n in (0, 1)
        ]
        names = count_names(len(files), version, granularity)
        locations = DeleteFileLocations(str(tmp_path / "table"), {}, "p")
        task = DeletesTask(
            Storage(),
            {file: np.array([n, 50]) for n, file in enumerate(files)},
            existing,
            version,
            granularity,
            locations,
            moves=False,
            dry_run=False,
        )
        seen: dict[str, bytes] = {}
        contents = [Path(old.path).read_bytes() for old in existing]
        for missing in ((), (0,), (1,), (0, 1)):
            for n, (old, content) in enumerate(zip(existing, contents, strict=True)):
                Path(old.path).unlink(missing_ok=True)
                if n not in missing:
                    Path(old.path).write_bytes(content)
            outcome = task.run(None)
            assert {one.data_file.path for one in outcome.blocked} == {f"f{n}" for n in missing}
            written = {path: Path(path).read_bytes() for path in paths(outcome)}
            assert written.keys() <= set(locations.names(names))
            assert all(seen.setdefault(path, content) == content for path, content in written.items())
            assert {path: Path(path).read_bytes() for path in seen} == seen
        assert remove_written(Storage(), locations, version, names) == len(seen)
        assert not list((tmp_path / "table").rglob("*.*"))

    def test_deletes_of_a_partition_that_cannot_be_read_block_its_data_files_alone(
        self, tmp_path: Path
    ) -> None:
        eu, us = (data_file(region, partition=PartitionKey(1, f'["{region}"]')) for region in ("eu", "us"))
        task = DeletesTask(
            Storage(),
            {file: np.array([1]) for file in (eu, us)},
            [delete_file(f"{tmp_path}/gone.parquet", partition=PartitionKey(1, '["eu"]'))],
            2,
            DeleteGranularity.FILE,
            DeleteFileLocations(str(tmp_path), {}, "p"),
            moves=False,
            dry_run=False,
        )
        outcome = task.run(None)
        assert [one.data_file for one in outcome.blocked] == [eu]
        assert outcome.data_files == ("us",)

    @pytest.mark.parametrize("version", [2, 3])
    def test_a_stray_run_that_ends_in_the_middle_leaves_what_another_wrote(
        self, version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("worker.deletes.write._ROW_GROUP_ROWS", 50)
        new = {data_file(f"f{n}"): BitMap64(range(0, 100, 3)) for n in range(4)}
        locations = DeleteFileLocations(str(tmp_path), {}, "p")

        def run() -> dict[str, bytes]:
            written = write_deletes(Storage(), new, [], version, DeleteGranularity.PARTITION, locations)
            return {path: Path(path).read_bytes() for path in paths(written)}

        committed = run()
        # While it writes: as a kill would, that leaves the beginning of a file.
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (40, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                run()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert {path: Path(path).read_bytes() for path in committed} == committed
        # Before that, with the first rows.
        rows = _position_delete_rows([("f0", np.array([1]))])
        monkeypatch.setattr(
            "worker.deletes.write._position_delete_rows", Mock(side_effect=[rows, MemoryError])
        )
        monkeypatch.setattr("worker.deletes.puffin._footer", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            run()
        assert {path: Path(path).read_bytes() for path in committed} == committed

    @pytest.mark.parametrize("version", [2, 3])
    def test_files_wait_for_the_store_together_and_what_a_late_writer_adds_is_found(
        self, version: int, tmp_path: Path
    ) -> None:
        together = threading.Barrier(FILES_AT_ONCE + 1, timeout=PATIENCE_SECONDS)
        wakes = threading.Event()

        class Slow(Storage):
            """A store in which writers fall asleep in the middle, all at once."""

            def write(self, location: str, content: pa.Buffer) -> None:
                if int(location.split("-")[-2]) >= 2 * FILES_AT_ONCE and not wakes.is_set():
                    together.wait()
                    assert wakes.wait(PATIENCE_SECONDS)
                super().write(location, content)

        new = {data_file(f"f{n:02}"): BitMap64([n]) for n in range(5 * FILES_AT_ONCE)}
        locations = DeleteFileLocations(str(tmp_path), {}, "p")
        names = list(locations.names(len(new)))
        with ThreadPoolExecutor(1) as thread:
            granularity = DeleteGranularity.FILE
            writing = thread.submit(write_deletes, Slow(), new, [], version, granularity, locations)
            together.wait()
            found = written_files(Storage(), names)
            assert found == names[(3 - version) * len(new) :][: 2 * FILES_AT_ONCE]
            assert delete_files(Storage(), found) == len(found)
            wakes.set()
            done = writing.result()
        assert done.data_files == tuple(sorted(file.path for file in new))
        later = written_files(Storage(), names)
        assert later == paths(done)[2 * FILES_AT_ONCE :]
        assert delete_files(Storage(), later) == len(later)
        assert not list(tmp_path.rglob("*.*"))

    def test_nothing_to_delete_writes_nothing(self, tmp_path: Path) -> None:
        locations = DeleteFileLocations(str(tmp_path), {}, "p")
        for version in (2, 3):
            new = {data_file("a"): BitMap64()}
            written = write_deletes(Storage(), new, [], version, DeleteGranularity.FILE, locations)
            assert written == WrittenDeletes()
        assert not list(tmp_path.rglob("*.*"))

    def test_rows_are_sorted_by_path_and_position_across_row_groups(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("worker.deletes.write._ROW_GROUP_ROWS", 4)
        new = {data_file(path): BitMap64([9, 1, 5]) for path in ("c", "a", "b")}
        [written] = write_position_deletes(
            Storage(), lambda file: f"{tmp_path}/{file.path}.parquet", new, DeleteGranularity.PARTITION
        )
        file = pq.ParquetFile(written.path)
        assert file.read().to_pydict() == {
            "file_path": [path for path in "abc" for _ in range(3)],
            "pos": [1, 5, 9] * 3,
        }
        assert len(written.split_offsets) == file.num_row_groups > 1
        assert written.referenced_data_file is None
        assert not written.lower_bounds
        assert written.file_size_bytes == Path(written.path).stat().st_size

    def test_a_flipped_bit_in_positions_that_we_wrote_is_noticed(self, tmp_path: Path) -> None:
        """The next conversion merges them; zstd and the encodings notice by far not all."""
        hidden = data_file("a", rows=100_000)
        rows = BitMap64(np.unique(np.random.default_rng(0).integers(0, hidden.record_count, 9_000)))
        [written] = write_position_deletes(
            Storage(), lambda _: f"{tmp_path}/p.parquet", {hidden: rows}, DeleteGranularity.FILE
        )
        path = Path(written.path)
        intact, chunk = path.read_bytes(), pq.read_metadata(path).row_group(0).column(1)
        for back in range(1, chunk.total_compressed_size - 100, chunk.total_compressed_size // 40):
            damaged = bytearray(intact)
            damaged[chunk.data_page_offset + chunk.total_compressed_size - back] ^= 1
            path.unlink()  # what an earlier read has mapped stays what it was
            path.write_bytes(damaged)
            delete = delete_file(str(path), rows=len(rows))
            with pytest.raises(UnreadableDeleteFileError):
                existing_deletes(Storage(), [hidden], [delete])

    def test_groups_add_up_after_pickling(self, tmp_path: Path) -> None:
        groups = [
            write_deletes(
                Storage(),
                {data_file(f"f{n}"): BitMap64([1, 2])},
                [],
                3,
                DeleteGranularity.FILE,
                DeleteFileLocations(str(tmp_path), {}, f"group-{n}"),
            )
            for n in range(3)
        ]
        union = WrittenDeletes.union(pickle.loads(pickle.dumps(groups)))
        assert (union.rows_deleted, union.data_files) == (6, ("f0", "f1", "f2"))
        assert len(set(paths(union))) == 3


# On real tables, with Spark's reader as the witness.


class Conversion:
    """Hides rows of a table by the functions under test, and commits."""

    def __init__(self, spark: SparkSession, catalog: Catalog, table: TableBuilder) -> None:
        self.spark, self.table = spark, table
        self.java_table = load_table(
            spark.sparkContext._jvm, "sql", catalog.name, catalog.properties, table.identifier.split(".")[1:]
        )

    @property
    def files(self) -> SnapshotFiles:
        metadata = self.table.metadata
        snapshot = metadata.current_snapshot()
        assert snapshot is not None
        return read_snapshot_files(metadata, snapshot, PyArrowFileIO())

    def delete_ids(self, *ids: int) -> WrittenDeletes:
        """Commits the deletion of every row with one of these ids, visible or not."""
        metadata, files = self.table.metadata, self.files
        assert metadata.current_snapshot_id is not None
        new: dict[DataFile, BitMap64 | Positions] = {
            file: np.flatnonzero(np.isin(pq.read_table(_local(file.path), columns=["id"])["id"], ids))
            for file in files.data_files
        }
        written = write_deletes(
            Storage(),
            new,
            files.position_deletes,
            metadata.format_version,
            DeleteGranularity.of_table(metadata.properties),
            DeleteFileLocations(
                metadata.location, metadata.properties, f"job-{metadata.current_snapshot_id}"
            ),
        )
        delta = RowDelta(
            "main", metadata.current_snapshot_id, "job", 1, written.added, written.removed, written.data_files
        )
        commit_row_delta(self.java_table, delta)
        return written

    def visible_ids(self) -> list[int]:
        return sorted(id_ for id_, *_ in visible_rows(self.spark, self.table.identifier).elements())


def paths(written: WrittenDeletes) -> list[str]:
    return [file.path for file in written.added]


def _local(path: str) -> Path:
    return Path(path.removeprefix("file:"))


Open = Callable[..., Conversion]


@pytest.fixture
def new_table(spark: SparkSession, catalog: Catalog, table_name: str) -> Open:
    """A table with ids 0 to 19 in two data files per region, `eu` and `us`."""

    def create(**how: Any) -> Conversion:
        table = TableBuilder.create(spark, table_name, "id bigint, region string", **how)
        rows = [{"id": n, "region": ("eu", "us")[n % 2]} for n in range(20)]
        table.append(rows, files=2)
        return Conversion(spark, catalog, table)

    return create


@pytest.mark.integration
class TestOnTables:
    @first_always("partitioned_by", [("region",), (), ("bucket(3, id)",)])
    @V2_FIRST
    @pytest.mark.parametrize("granularity", ["file", "partition"])
    def test_spark_reads_the_new_deletes(
        self, new_table: Open, format_version: int, partitioned_by: tuple[str, ...], granularity: str
    ) -> None:
        conversion = new_table(
            format_version=format_version,
            partitioned_by=partitioned_by,
            properties={"write.delete.granularity": granularity},
        )
        conversion.delete_ids(3, 4, 11)
        assert conversion.visible_ids() == sorted(set(range(20)) - {3, 4, 11})
        conversion.delete_ids(0, 4)
        assert conversion.visible_ids() == sorted(set(range(20)) - {0, 3, 4, 11})
        if format_version == 3:
            vectors = [file["referenced_data_file"] for file in live_delete_files_of(conversion)]
            assert len(vectors) == len(set(vectors))

    @V3_FIRST
    def test_deletes_by_spark_before_and_after_are_kept(self, new_table: Open, format_version: int) -> None:
        conversion = new_table(
            format_version=format_version,
            partitioned_by=["region"],
            properties={"write.delete.mode": "merge-on-read", "write.merge.mode": "merge-on-read"},
        )
        name, spark = conversion.table.identifier, conversion.spark
        spark.sql(f"DELETE FROM {name} WHERE id IN (2, 3)")
        spark.sql(f"MERGE INTO {name} t USING (SELECT 5L AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE")
        written = conversion.delete_ids(3, 6, 7)
        # Spark's deletes are file-scoped here, so each is replaced where rows were added to it.
        assert written.rows_deleted == 2
        assert len(written.removed) == len(written.added)
        spark.sql(f"DELETE FROM {name} WHERE id = 8")
        assert conversion.visible_ids() == sorted(set(range(20)) - {2, 3, 5, 6, 7, 8})

    @pytest.mark.parametrize("file_format", ["parquet", "orc", "avro"])
    @first_always("granularity", ["file", "partition"])
    def test_position_deletes_survive_the_upgrade_to_vectors(
        self, new_table: Open, file_format: str, granularity: str
    ) -> None:
        conversion = new_table(
            format_version=2,
            properties={
                "write.delete.mode": "merge-on-read",
                "write.delete.format.default": file_format,
                "write.delete.granularity": granularity,
            },
        )
        name, spark = conversion.table.identifier, conversion.spark
        spark.sql(f"DELETE FROM {name} WHERE id IN (2, 3, 18)")
        assert {file["file_format"].lower() for file in live_delete_files_of(conversion)} == {file_format}
        conversion.delete_ids(4, 18)
        spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('format-version' = '3')")
        written = conversion.delete_ids(2, 6, 16)
        assert all(file.is_deletion_vector for file in written.added)
        assert conversion.visible_ids() == sorted(set(range(20)) - {2, 3, 4, 6, 16, 18})

    def test_a_position_delete_of_an_otherwise_spelled_path_hides_no_row(self, new_table: Open) -> None:
        conversion = new_table(format_version=2)
        [path, *_] = conversion.table.data_file_paths
        assert path.startswith("file:///")
        [written] = conversion.table.position_deletes({path: [0]})
        rows = pq.read_table(_local(written.path))
        respelled = pa.array([path.replace("file:///", "file:/")])
        pq.write_table(rows.set_column(0, rows.schema.field(0), respelled), _local(written.path))
        del written.json["referenced-data-file"]
        for bounds in ("lower-bounds", "upper-bounds"):
            written.json.pop(bounds, None)
        written.json["file-size-in-bytes"] = _local(written.path).stat().st_size
        conversion.table.commit(written)
        assert conversion.visible_ids() == list(range(20))
        conversion.spark.sql(
            f"ALTER TABLE {conversion.table.identifier} SET TBLPROPERTIES ('format-version' = '3')"
        )
        conversion.delete_ids(4, 5)
        assert conversion.visible_ids() == sorted(set(range(20)) - {4, 5})

    def test_position_deletes_are_described_as_spark_describes_its_own(self, new_table: Open) -> None:
        conversion = new_table(format_version=2, properties={"write.delete.mode": "merge-on-read"})
        conversion.spark.sql(f"DELETE FROM {conversion.table.identifier} WHERE id = 2")
        [theirs] = live_delete_files_of(conversion)
        conversion.delete_ids(3)
        [ours] = [file for file in live_delete_files_of(conversion) if "job-" in file["file_path"]]
        for described in (
            "value_counts",
            "null_value_counts",
            "nan_value_counts",
            "sort_order_id",
            "content",
        ):
            assert ours[described] == theirs[described], described
        for sized in ("column_sizes", "lower_bounds", "upper_bounds"):
            assert ours[sized].keys() == theirs[sized].keys(), sized
        assert len(ours["split_offsets"]) == len(theirs["split_offsets"])
        assert {len(bound) for bound in ours["lower_bounds"].values()} == {
            len(bound) for bound in theirs["lower_bounds"].values()
        }


def live_delete_files_of(conversion: Conversion) -> list[Any]:
    """With all columns that describe them."""
    files = conversion.spark.table(f"{conversion.table.identifier}.delete_files")
    return files.drop("readable_metrics").collect()
