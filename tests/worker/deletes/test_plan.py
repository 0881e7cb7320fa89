"""Which delete files are written, merged with those that there are, and which go."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from tests.delete_files import write_deletes
from tests.worker.deletes.files import data_file, delete_file
from worker.contract.control_plane import AnnouncedPlan
from worker.deletes.existing import ExistingDeletes
from worker.deletes.locations import DeleteFileLocations
from worker.deletes.merge import DeleteGranularity, plan_deletes
from worker.deletes.stage import DeletesStage, _deletes_by_scope, _deletes_of
from worker.io.storage import Storage
from worker.table.files import DataFile, DeleteFile, DeleteFiles, PartitionKey

position_sets = st.sets(st.integers(0, 99))
few_positions = st.sets(st.integers(0, 2), min_size=1)


@given(
    position_sets,
    position_sets,
    position_sets,
    st.sampled_from([2, 3]),
    st.sampled_from(DeleteGranularity),
)
def test_readers_skip_the_old_and_the_new_positions(
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
def test_a_path_whose_newest_file_alone_loses_a_row_spares_no_delete_of_it(format_version: int) -> None:
    """As where the path was overwritten with other content: no delete of the newest may be lost."""
    old, newest = data_file("a", seq=1), data_file("a", seq=2)
    found = {old: BitMap64([1]), newest: BitMap64([1, 2])}
    plan = plan_deletes(found, {}, format_version, DeleteGranularity.FILE)
    assert [(one.data_file, one.spares) for one in plan.blocked] == [(newest, None)]
    assert [list(positions) for positions in plan.positions.values()] == [[1]]


def test_a_vector_of_the_oldest_file_of_a_path_alone_is_replaced() -> None:
    oldest, newer = data_file("a", seq=1), data_file("a", seq=3)
    vector = delete_file("v.puffin", file_format="puffin", referenced_data_file="a")
    found = {oldest: BitMap64([2]), newer: BitMap64([1, 2])}
    plan = plan_deletes(found, {oldest: ExistingDeletes(BitMap64([1]), vector)}, 3)
    assert (plan.positions, plan.removed) == ({oldest: BitMap64([1, 2])}, (vector,))


def test_a_vector_replaces_the_old_vector_and_file_scoped_deletes() -> None:
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


def test_each_task_gets_what_may_apply_to_its_files_and_every_delete_is_looked_at_once() -> None:
    p, q = (PartitionKey(0, values) for values in ('["p"]', '["q"]'))
    a, b, c = data_file("a", partition=p), data_file("b", partition=p), data_file("c", partition=q)
    of_a, of_c, of_p, *_ = deletes = [
        delete_file("1", partition=p, referenced_data_file="a"),
        delete_file("2", partition=q, referenced_data_file="c"),
        delete_file("3", partition=p),
        delete_file("4", partition=p, referenced_data_file="another"),
        delete_file("5"),
    ]
    by_scope = _deletes_by_scope([a, b, c], DeleteFiles.of(deletes))
    assert set(_deletes_of([a, b], by_scope)) == {of_a, of_p}
    assert len(_deletes_of([a, b], by_scope)) == 2
    assert _deletes_of([b], by_scope) == (of_p,)
    assert _deletes_of([c], by_scope) == (of_c,)


def test_a_vector_is_moved_also_when_nothing_is_new() -> None:
    vector = delete_file("v", file_format="puffin", referenced_data_file="c")
    moved, other = data_file("c"), data_file("e")
    nothing, known = {moved: BitMap64(), other: BitMap64()}, {moved: ExistingDeletes(BitMap64([1]), vector)}
    plan = plan_deletes(nothing, known, 3, moves=True)
    assert {file.path: list(bitmap) for file, bitmap in plan.positions.items()} == {"c": [1]}
    assert (plan.removed, plan.rows_deleted) == ((vector,), 0)
    assert plan_deletes(nothing, known, 3).positions == {}


def test_partition_granularity_leaves_file_scoped_deletes_alone() -> None:
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


def test_what_is_planned_is_what_is_written(tmp_path: Path) -> None:
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


def test_a_position_outside_its_data_file_is_refused() -> None:
    with pytest.raises(ValueError, match="position 100 lies outside a, which has 100 rows"):
        plan_deletes({data_file("a"): np.array([100], dtype=np.int64)}, {}, 3)


def test_format_version_one_is_refused() -> None:
    with pytest.raises(ValueError, match="format version 1 has no row-level deletes"):
        plan_deletes({}, {}, 1)


@pytest.mark.parametrize(
    ("properties", "granularity"),
    [({}, "file"), ({"write.delete.granularity": "PARTITION"}, "partition")],
)
def test_granularity_is_the_tables_and_file_by_default(properties: dict[str, str], granularity: str) -> None:
    assert DeleteGranularity.of_table(properties) == granularity


def test_what_was_announced_is_told_again_only_where_the_service_decides_about_a_head() -> None:
    plan = AnnouncedPlan(number=1, tasks=0, files_per_task=0, location="s3://lake/t")
    job: Any = Mock(reporter=Mock(seconds_ahead=0.0))
    stage: Any = Mock(_locations=[(None, 2)], _announced=plan, _told=None, _job=job)
    for only_on, told in ((None, 1), (None, 1), (7, 2), (7, 3)):
        DeletesStage.announce(stage, None, only_on)
        assert job.reporter.announce.call_count == told
    assert job.reporter.confirm_lease.call_count == 1
