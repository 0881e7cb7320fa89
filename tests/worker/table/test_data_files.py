"""Data files in columns are those that they were made of, and are found by their paths."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import pairwise, product
from unittest.mock import Mock, patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.io import paths as paths_module
from worker.io.paths import PathPlaces, Paths
from worker.table.files import (
    DataFile,
    DataFiles,
    DeleteFile,
    DeleteFiles,
    FileContent,
    PartitionKey,
    SnapshotFiles,
)
from worker.table.plan import affected_files, applies, balanced, in_commits

TEXTS = st.text(st.sampled_from("ab/é"), max_size=3)
PARTITIONS = st.builds(PartitionKey, st.integers(0, 1), st.sampled_from(["[]", "[1]", "[2]"]))
FILES = st.builds(
    DataFile,
    TEXTS,
    st.sampled_from(["parquet", "orc"]),
    PARTITIONS,
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.booleans(),
)
DELETES = st.builds(
    DeleteFile,
    st.just(FileContent.EQUALITY_DELETES),
    TEXTS,
    st.just("parquet"),
    PARTITIONS,
    st.just(1),
    st.just(1),
    st.integers(1, 3),
)


@given(st.lists(st.lists(FILES, max_size=4), max_size=4), st.data(), st.sampled_from([0, 2**20]))
def test_files_come_out_of_columns_as_they_went_in(
    parts: list[list[DataFile]], data: st.DataObject, memory_bytes: int
) -> None:
    files = [file for part in parts for file in part]
    with patch.object(paths_module, "MEMORY_BYTES", memory_bytes), patch.object(paths_module, "PIECE", 3):
        columns = DataFiles.joined(map(DataFiles.of, parts))
        places = data.draw(st.lists(st.sampled_from(range(len(files))))) if files else []
        selected = columns.select(places)
        assert list(columns) == files
        assert list(selected) == [files[place] for place in places]
        assert (columns == selected) is (files == list(selected))
        assert selected.count_partitions() == len({file.partition for file in selected})
        assert [selected[at] for at in range(-len(places), 0)] == list(selected)
        assert list(selected[1::2]) == list(selected)[1::2]
        assert list(selected.select(np.arange(len(places))[::-1])) == list(selected)[::-1]
        assert list(pickle.loads(pickle.dumps(selected))) == list(selected)
        assert selected.record_counts.tolist() == [file.record_count for file in selected]
        assert selected.data_sequence_numbers.tolist() == [file.data_sequence_number for file in selected]
        wanted = {file.path for file in files[::2]} | {"no file's"}
        assert list(selected.with_paths(wanted)) == [file for file in selected if file.path in wanted]


OPTIONAL = st.none() | st.integers(0, 2**62)
ANY_DELETES = st.builds(
    DeleteFile,
    st.sampled_from(FileContent),
    TEXTS,
    st.sampled_from(["parquet", "puffin"]),
    PARTITIONS,
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.sampled_from([(), (1,), (1, 2)]),
    st.none() | TEXTS,
    OPTIONAL,
    OPTIONAL,
    OPTIONAL,
    st.booleans(),
)


@given(st.lists(st.lists(ANY_DELETES, max_size=4), max_size=4), st.data())
def test_delete_files_come_out_of_columns_as_they_went_in(
    parts: list[list[DeleteFile]], data: st.DataObject
) -> None:
    files = [file for part in parts for file in part]
    with patch.object(paths_module, "PIECE", 3):
        columns = DeleteFiles.joined(map(DeleteFiles.of, parts))
        places = data.draw(st.lists(st.sampled_from(range(len(files))))) if files else []
        selected = columns.select(places)
        assert list(columns) == files
        chosen = [files[place] for place in places]
        assert list(selected) == list(pickle.loads(pickle.dumps(selected))) == chosen
        assert list(selected.named()) == [file.referenced_data_file or "" for file in chosen]
        assert selected.named_lengths.tolist() == [len(path) for path in selected.named()]
        assert selected.are_vectors.tolist() == [file.is_deletion_vector for file in chosen]
        for content in FileContent:
            of_content = [file for file in chosen if file.content is content]
            assert list(selected.of_content(content)) == of_content
        of_named = {file.path for file in files[::2]}
        found = selected.that_name(of_named).tolist()
        assert found == [file.referenced_data_file in of_named for file in chosen]


@given(st.lists(FILES, max_size=3), st.lists(ANY_DELETES, max_size=6))
def test_deletes_that_may_apply_name_a_file_or_lie_in_its_partition(
    files: list[DataFile], deletes: list[DeleteFile]
) -> None:
    paths, partitions = {file.path for file in files}, {file.partition for file in files}
    assert list(DeleteFiles.of(deletes).that_may_apply(files)) == [
        delete
        for delete in deletes
        if (delete.partition in partitions if delete.referenced_data_file is None else False)
        or delete.referenced_data_file in paths
    ]


@given(st.lists(FILES, max_size=6), st.lists(FILES, max_size=6), st.data())
def test_files_without_others_are_those_that_differ_in_anything(
    files: list[DataFile], others: list[DataFile], data: st.DataObject
) -> None:
    others += data.draw(st.lists(st.sampled_from(files))) if files else []
    selected = DataFiles.of([*others, *FEW]).select(range(len(others)))
    for columns in (DataFiles.of(others), selected):
        left = DataFiles.of(files).without(columns)
        assert list(left) == list(left.alone()) == [file for file in files if file not in others]


FEW = [DataFile("a", "parquet", PartitionKey(0, "[]"), 1, 1, 1)]


def test_what_goes_to_a_task_is_what_it_reads() -> None:
    files = DataFiles.of(
        DataFile(f"{i}", "parquet", PartitionKey(0, f"[{i}]"), 1, 1, 1) for i in range(10_000)
    )
    assert len(pickle.dumps(files.select([7]))) < 2_000


@given(st.lists(TEXTS), st.lists(TEXTS), st.booleans(), st.sampled_from([0, 2, 100]))
def test_paths_are_paired_as_they_are_written(
    ours: list[str], others: list[str], collide: bool, few: int
) -> None:
    hashes = (lambda piece: np.zeros(len(piece), np.uint64)) if collide else paths_module._hashes
    with (
        patch.object(paths_module, "_hashes", hashes),
        patch.object(paths_module, "PIECE", 3),
        patch.object(paths_module, "FEW", few),
    ):
        here, there = Paths([pa.array(ours, pa.string())]), Paths([pa.array(others, pa.string())])
        found = [pair for pairs in here.pairs(there.pieces()) for pair in zip(*pairs, strict=True)]
    assert sorted(found) == [
        (at, place) for at, other in enumerate(others) for place, path in enumerate(ours) if path == other
    ]


@pytest.mark.parametrize("few", [999, 1000])
def test_a_path_that_lies_in_many_places_is_found_in_them_at_once(few: int) -> None:
    places, hashes = PathPlaces(Paths([pa.array(["a", "b"] * 500)])), Mock(wraps=paths_module._hashes)
    with patch.object(paths_module, "FEW", few), patch.object(paths_module, "_hashes", hashes):
        (pairs,) = places.pairs([pa.array(["b"], pa.large_string())])
    assert hashes.called is (few < 1000)
    assert [column.tolist() for column in pairs] == [[0] * 500, list(range(1, 1000, 2))]


def test_what_files_hold_is_counted_with_their_text() -> None:
    def held(path: str, partitions: int = 1) -> int:
        keys = [PartitionKey(0, f"[{number}]") for number in range(partitions)]
        numbers = range(100)
        return DataFiles.of(
            DataFile(path, "parquet", keys[number % partitions], 1, 1, 1) for number in numbers
        ).held_bytes

    assert held("a" * 1000) - held("a") >= 99_900
    assert held("a", partitions=100) - held("a") >= 99 * 250


@given(st.lists(st.integers(0, 9)), st.integers(1, 5))
def test_groups_are_cut_in_order_where_they_are_full(counts: list[int], groups: int) -> None:
    cuts = balanced(np.array(counts, np.int64), groups)
    target = max(1, sum(counts) // groups)
    assert [count for cut in cuts for count in counts[cut]] == counts
    for cut in cuts:
        *before, _ = np.cumsum([0, *counts[cut]])
        assert max(before) < target
    assert all(sum(counts[cut]) >= target for cut in cuts[:-1])


@given(st.lists(DELETES), st.integers(1, 4))
def test_commits_are_full_and_remove_a_path_as_a_whole(deletes: list[DeleteFile], limit: int) -> None:
    groups = in_commits(deletes, limit)
    assert sorted(map(repr, (delete for group in groups for delete in group))) == sorted(map(repr, deletes))
    paths = [{delete.path for delete in group} for group in groups]
    assert sum(map(len, paths)) == len({delete.path for delete in deletes})
    assert all(
        len(group) <= limit or len(of_group) == 1 for group, of_group in zip(groups, paths, strict=True)
    )
    for group, following in pairwise(groups):
        assert len(group) + sum(one.path == following[0].path for one in following) > limit
    firsts = [group[0].partition for group in groups]
    assert firsts == sorted(firsts, key=lambda partition: (partition.spec_id, partition.values))


@given(
    st.lists(FILES.map(lambda file: replace(file, data_sequence_number=file.record_count % 4))),
    st.lists(DELETES),
)
def test_deletes_apply_to_older_files_in_their_partition_or_everywhere(
    files: list[DataFile], deletes: list[DeleteFile]
) -> None:
    unpartitioned = frozenset({0})

    def hits(delete: DeleteFile, file: DataFile) -> bool:
        in_scope = delete.partition.spec_id in unpartitioned or delete.partition == file.partition
        return in_scope and delete.data_sequence_number > file.data_sequence_number

    snapshot = SnapshotFiles(DataFiles.of(files), DeleteFiles.of(deletes), unpartitioned)
    affected = [file for file in files if any(hits(delete, file) for delete in deletes)]
    assert list(affected_files(snapshot, deletes)) == affected
    for delete, file in product(deletes, files):
        assert applies(delete, file, unpartitioned) is hits(delete, file)
