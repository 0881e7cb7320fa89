"""Where files lie that no snapshot names, and what statistics of partitions tell."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import IdentityTransform, Transform, VoidTransform
from pyiceberg.types import LongType, NestedField, StringType

from stores.table_metadata import PLACE_PROPERTIES
from tests.worker.erasure.test_keys import erased
from worker.erasure.columns import FormerColumns
from worker.erasure.metadata_files import (
    search_metadata,
    search_partition_statistics,
    told_in_metadata,
    unnamed_files,
)
from worker.erasure.positions import search_positions
from worker.erasure.trace import FORMER_COLUMN
from worker.io.storage import Storage
from worker.table.files import DeleteFile, FileContent, PartitionKey


def test_a_file_is_named_however_its_place_is_spelled_and_by_no_other_store(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    spellings = [f"{start}{tmp_path}/f" for start in ("", "file:", "file://")]
    assert all(not unnamed_files(Storage(), tmp_path.as_uri(), [one]) for one in spellings)
    assert unnamed_files(Storage(), tmp_path.as_uri(), [f"s3:/{tmp_path}/f"])


def test_places_of_metadata_are_texts(tmp_path: Path) -> None:
    """An earlier metadata file may say anything."""
    told = {
        "format-version": 2,
        "location": ["/x"],
        "properties": {PLACE_PROPERTIES[0]: 5, PLACE_PROPERTIES[1]: "/y"},
    }
    file = tmp_path / "metadata.json"
    file.write_text(json.dumps(told))
    assert search_metadata(Storage(), erased(("a",)), file.as_uri()).places == {"/y"}


@pytest.mark.parametrize(("transform", "is_former"), [(IdentityTransform(), True), (VoidTransform(), False)])
def test_partitions_by_a_former_column_leave_the_keys_unknown(
    tmp_path: Path, transform: Transform[str, str], is_former: bool
) -> None:
    """No key is compared with what it had."""
    file = tmp_path / "statistics.parquet"
    pq.write_table(pa.table({"partition": [{"p": 5}]}), file)
    schema = Schema(NestedField(1, "c1", StringType()), NestedField(2, "c2", LongType()))
    spec = PartitionSpec(PartitionField(2, 1000, transform, "p"))
    metadata = new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, str(tmp_path))
    keys = erased(("a",), former=FormerColumns(frozenset({2})))
    trace = search_partition_statistics(Storage(), keys, metadata, file.as_uri(), file.stat().st_size)
    assert not trace.keys
    assert (trace.why is not None and trace.why.code == FORMER_COLUMN.code) == is_former


def test_properties_of_statistics_tell_keys_with_slashes_too() -> None:
    """Of other values these are places."""
    blob = {"type": "t", "properties": {"top": "ab/cd"}}
    told = {"statistics": [{"statistics-path": "file:/ef/gh/1.puffin", "blob-metadata": [blob]}]}
    assert told_in_metadata(told, erased(("ab/cd",), ("ef/gh",))) == {0}


@pytest.mark.parametrize("further", [{}, {"id": ["a"]}, {"row": [{"id": "a"}]}])
def test_deletes_by_position_with_further_columns_leave_the_keys_unknown(
    tmp_path: Path, further: Mapping[str, Sequence[Any]]
) -> None:
    file = tmp_path / "deletes.parquet"
    pq.write_table(pa.table({"file_path": ["file:/x"], "pos": [0], **further}), file)
    partition, size_bytes = PartitionKey(0, "[]"), file.stat().st_size
    deletes = DeleteFile(FileContent.POSITION_DELETES, file.as_uri(), "parquet", partition, 1, size_bytes, 0)
    trace = search_positions(Storage(), erased(("a",)), deletes)
    assert (trace.why is None) == (not further)
