"""What an attempt knows of the indexes that it has opened: of these alone, and no more than is kept."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.worker.index.test_checksums import KEY_SET
from worker.attempt import indexes
from worker.attempt.indexes import forget_index, index_state, open_again
from worker.attempt.job import Job
from worker.attempt.pinned_table import PinnedTable
from worker.index.warehouse import IndexWarehouse
from worker.io.cache import Cache
from worker.io.storage import Storage
from worker.table.files import NO_FILES


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(indexes, "KEPT", Cache(1_000_000))
    return Job(Mock(), Mock(), Mock())


def warehouse(folder: Path) -> IndexWarehouse:
    return IndexWarehouse(folder.as_uri(), Storage())


def pinned(uuid: str = "a", branch: str = "main") -> PinnedTable:
    return PinnedTable(Mock(), Mock(table_uuid=uuid), None, NO_FILES, Storage(), branch)


def test_a_state_is_told_of_no_other_table_branch_or_warehouse(job: Job, tmp_path: Path) -> None:
    place, table = warehouse(tmp_path / "one"), pinned()
    opened = open_again(job, table, place, KEY_SET, create=True)
    assert opened is not None
    known = index_state(job, table, place, KEY_SET)
    assert known is not None
    assert known.dictionary is opened.dictionary, "it is not opened once more"
    others = [(pinned("b"), place), (pinned(branch="b"), place), (table, warehouse(tmp_path / "other"))]
    assert [index_state(job, *other, KEY_SET) for other in others] == [None] * 3

    forget_index(job, table, place, KEY_SET)
    place.drop(table.index_database)
    assert index_state(job, table, place, KEY_SET) is None


def test_an_attempt_holds_no_state_that_is_not_kept(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, table = warehouse(tmp_path), pinned()
    monkeypatch.setattr(indexes, "KEPT", Cache(0))
    open_again(job, table, place, KEY_SET, create=True)
    assert not job.indexes
    state = index_state(job, table, place, KEY_SET)
    assert state is not None
    assert state.generation == 1
