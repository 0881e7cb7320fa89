"""Manifests as they are written, without tables of Spark's around them."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from tests.benchmarks import planning
from worker.table import manifests


@pytest.mark.parametrize("kept", [100_000, 0])
def test_what_all_manifests_of_a_table_say_is_understood_once_unless_it_is_long(
    kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "FILES_PER_MANIFEST", 1)
    monkeypatch.setattr(manifests, "_HEADER_KEPT", kept)
    metadata, snapshot = planning.make_snapshot(tmp_path, data_files=7, delete_files=3)
    manifests._written_schema.cache_clear()
    understand = manifests._Conversion.avro_to_iceberg
    with patch.object(
        manifests._Conversion, "avro_to_iceberg", autospec=True, side_effect=understand
    ) as seen:
        files = manifests.read_snapshot_files(metadata, snapshot, PyArrowFileIO())
    assert (len(files.data_files), len(files.equality_deletes)) == (7, 3)
    # The list says something of its own. Threads may begin with manifests at once.
    lists, each = 1, 7 + 3
    assert seen.call_count == lists + each if not kept else seen.call_count < each
