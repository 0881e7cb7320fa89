"""The dictionary of an index finds files by their paths, as often as a job asks."""

import pickle
from unittest.mock import Mock

import pytest

from worker.index import dictionary as module
from worker.index.dictionary import FileDictionary, IndexedFile, dictionary_rows
from worker.io.paths import PathPlaces
from worker.table.files import DataFile, DataFiles, PartitionKey

FILES = [DataFile(f"file:/t/{name}", "parquet", PartitionKey(0, "[]"), 10, 100, 1) for name in "bca"]


@pytest.mark.parametrize(("most", "made"), [(3, 1), (2, 3)])
def test_paths_of_few_files_are_hashed_once_and_in_each_process(
    most: int, made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = dictionary_rows([IndexedFile(file, 10 * n, 0) for n, file in enumerate(FILES)])
    known, asked = FileDictionary([rows]), DataFiles.of([FILES[2], FILES[0]])
    places = Mock(wraps=PathPlaces)
    monkeypatch.setattr(module, "PIECE", most)
    monkeypatch.setattr(module, "PathPlaces", places)
    for _ in range(3):
        assert known.rows_of(asked).tolist() == [2, 0]
    assert places.call_count == made
    elsewhere = pickle.loads(pickle.dumps(known))
    assert elsewhere.rows_of(asked).tolist() == [2, 0]
    assert places.call_count == made + 1
