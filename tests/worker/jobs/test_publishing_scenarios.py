"""The scenarios of Iceberg's tests of its own converter, `ConvertEqualityDeletes` of Flink.

Each name of `TestConvertEqualityDeletes` (Iceberg 1.12), and what shows it here:

- RejectsFormatVersion2: V2 is published, as all of these tests show that have both versions.
- RejectsUnknownEqualityFieldColumns: nobody names columns, delete files do; what is no key stops publication
  (`test_float_keys_stop_publication_where_they_come`).
- ConvertEqualityDeletesToDVs, Metrics, StagingDataFilesOnlyNoEqDeletes, InsertThenDeleteAcrossCycles:
  `test_rows_and_deletes_of_many_staged_snapshots_come_in_one_commit`.
- NoOpWhenStagingBranchEmpty, MultipleEqualityDeletes, DuplicateKeyAcrossDataFiles,
  DVMergeAcrossConversionCycles, ConversionCorrectAfterCompaction, ReindexAfterExternalCommit,
  ReindexEvictsGhostKeyAfterExternalDataFileRemoval:
  `test_what_others_did_between_publications_is_known_by_the_next`.
- MultiSnapshotStagingWithPerSnapshotScoping, InsertUpdateDeleteInsertUpdateChain,
  ParallelInsertOfToBeDeletedKeySurvives: `test_a_key_that_comes_and_goes`.
- ConvertEqualityDeletesPartitionedTable, EqualityDeleteIsScopedToItsPartition,
  UnpartitionedDeleteAppliesAcrossPartitionEvolution: `test_key_sets_partitions_and_specs_keep_their_scopes`.
- PartitionedDeleteDoesNotApplyAcrossPartitionEvolution:
  `test_a_delete_of_a_partition_spares_rows_of_other_specs`.
- StagingPositionDeleteMergedIntoConversionDV:
  `test_position_deletes_of_the_writer_hit_what_they_name_on_either_branch`.
- StagingEqualsTargetBranch, and its ColdStartCatchUp, ReinsertAfterDeleteSurvives and
  MergesStagingDvIntoSingleDv: a branch is not published on itself
  (`test_a_branch_is_not_published_on_itself`); conversions do that (`tests/worker/exactness`).
- ReaderErrorSkipsCommit: `test_a_snapshot_whose_file_was_gone_is_published_once_it_is_back`.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.factories import live_delete_files
from tests.staging import Lake, Row, in_order, row
from tests.staging import lake as lake
from tests.thorough import V3_FIRST, first_always

pytestmark = pytest.mark.integration


@first_always("at_once", [False, True])
def test_a_key_that_comes_and_goes(lake: Lake, at_once: bool) -> None:
    """Published one by one or together: a delete hits what is older, and nothing else."""
    lake.create(row(2, 0))
    lake.jobs.run("index", key_sets=[["id"]])
    steps: list[tuple[Callable[[], object], list[Row]]] = [
        (lambda: lake.stage(*lake.table.data_files([row(1, 1)])), [row(1, 1)]),
        (lambda: lake.upsert(row(1, 2)), [row(1, 2)]),
        (lambda: lake.delete(1), []),
        (lambda: lake.stage(*lake.table.data_files([row(1, 3)])), [row(1, 3)]),
        (lambda: lake.upsert(row(1, 4)), [row(1, 4)]),
    ]
    for step, left in steps:
        step()
        if not at_once:
            lake.publish()
            assert lake.rows() == in_order(row(2, 0), *left)
    lake.publish()
    assert lake.rows() == in_order(row(2, 0), row(1, 4))


@V3_FIRST
def test_what_others_did_between_publications_is_known_by_the_next(lake: Lake, format_version: int) -> None:
    """To the index, too: it has the rows of files that are gone, and not yet those of files that came."""
    table = lake.create(*[row(n, n) for n in range(1, 7)], format_version=format_version)
    table.append([row(1, 10), row(7, 7)])
    lake.jobs.run("index", key_sets=[["id"]])
    head = table.snapshot_id
    nothing = lake.publish()
    assert (nothing["staged_snapshots"], nothing["commits"], table.snapshot_id) == (0, 0, head)

    # A key of several data files, and several delete files of one snapshot.
    lake.stage(*table.equality_deletes([{"id": 1}]), *table.equality_deletes([{"id": 4}]))
    assert lake.publish()["rows_deleted"] == 3
    # Rows of a data file that has deletes already.
    lake.delete(2)
    lake.publish()
    if format_version == 3:
        named = [one["referenced_data_file"] for one in live_delete_files(table.spark, table.identifier)]
        assert len(named) == len(set(named)) == 2
    assert lake.rows() == in_order(*[row(n, n) for n in (3, 5, 6, 7)])

    table.append([row(8, 8)])
    lake.delete(8)
    lake.publish()
    assert lake.rows() == in_order(*[row(n, n) for n in (3, 5, 6, 7)])

    table.compact()
    lake.delete(3)
    lake.publish()
    assert lake.rows() == in_order(*[row(n, n) for n in (5, 6, 7)])

    (gone,) = table.data_files([row(9, 9)])
    table.commit(gone)
    lake.jobs.run("index")
    table.java.newDelete().deleteFile(table.parsed(gone)).commit()
    lake.delete(9, 5)
    assert lake.publish()["rows_deleted"] == 1
    assert lake.rows() == in_order(row(6, 6), row(7, 7))
    named = [one["referenced_data_file"] for one in live_delete_files(table.spark, table.identifier)]
    assert gone.path not in named


def test_a_delete_of_a_partition_spares_rows_of_other_specs(lake: Lake) -> None:
    """As Iceberg's readers have it: a spec that is not empty confines its deletes to rows of its own."""
    table = lake.create(row(1, 1), row(2, 2), partitioned_by=["region"])
    table.java.updateSpec().removeField("region").addField("id").commit()
    lake.stage(*table.data_files([row(1, 10)]))
    lake.stage(*table.equality_deletes([row(1, 0)], equality_columns=["id"]))
    shown = lake.staged_rows()

    lake.publish()

    assert lake.rows() == shown == in_order(row(1, 1), row(2, 2))


def test_a_snapshot_whose_file_was_gone_is_published_once_it_is_back(lake: Lake) -> None:
    table = lake.create(row(1, 1))
    (deletes,) = table.equality_deletes([{"id": 1}])
    lake.stage(*table.data_files([row(2, 2)]), deletes)
    file = Path(deletes.path.removeprefix("file://"))
    hidden = file.rename(file.with_suffix(".hidden"))

    stopped = lake.publish()

    assert (stopped["stopped_at"]["code"], stopped["staged_snapshots"]) == ("missing_file", 0)
    assert lake.rows() == in_order(row(1, 1))
    hidden.rename(file)
    assert lake.publish()["stopped_at"] is None
    assert lake.rows() == in_order(row(2, 2))
