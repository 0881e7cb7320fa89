"""What a run removes is its own and known to be gone; all else stays, and is told."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JError
from rich.console import Console

from tests.worker.acceptance.fakes import (
    FakeLake,
    FakeProgress,
    FakeService,
    FakeTable,
    acceptance_of,
    refuse,
)
from worker.acceptance.checks import create
from worker.acceptance.lake import MARK, Lake, LakeError, NotOursError
from worker.acceptance.main import Progress, confirm_and_clean_up, stop_on_signals
from worker.acceptance.report import Outcome, Step
from worker.acceptance.run import Acceptance


def removed(acceptance: Acceptance) -> dict[str, Outcome]:
    """The steps of the removal."""
    acceptance._remove_all()
    return {step.name: step.outcome for step in acceptance.report.steps}


def test_a_table_that_is_gone_takes_its_files_along() -> None:
    lake = FakeLake()
    assert removed(acceptance_of(lake)) == {"remove v2": Outcome.PASSED, "all is as before": Outcome.PASSED}
    assert (lake.tables, lake.stored) == ({}, set())


def test_files_go_by_what_the_catalog_vends_at_the_end() -> None:
    lake = FakeLake()
    acceptance = acceptance_of(lake)
    (trial,), (name,) = acceptance.trials, lake.tables
    lake.tables, lake.stored = {}, set()
    create(trial)
    assert list(lake.tables) == [name]
    lake.stored.add(f"{trial.location}/data/1.parquet")
    for one in lake.opened:
        one.is_over = True
    assert removed(acceptance)["remove v2"] is Outcome.PASSED
    assert (lake.tables, lake.stored) == ({}, set())


def _rename(lake: FakeLake, name: str) -> None:
    lake.tables["renamed"] = lake.tables.pop(name)


def _replace(lake: FakeLake, name: str) -> None:
    lake.tables[name] = FakeTable("u2", "somebody else")


def _refuse(lake: FakeLake, _: str) -> None:
    lake.refuses = refuse


@pytest.mark.parametrize("happen", [_rename, _replace, _refuse])
def test_files_stay_as_long_as_their_table_may_live(happen: Callable[[FakeLake, str], None]) -> None:
    lake = FakeLake()
    acceptance = acceptance_of(lake)
    before = set(lake.stored)
    happen(lake, acceptance.trials[0].identifier[-1])
    assert removed(acceptance)["remove v2"] is Outcome.FAILED
    assert lake.stored == before


@pytest.fixture
def signals() -> Iterator[Sequence[signal.Signals]]:
    """That are handled as before after the test."""
    which = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {one: signal.getsignal(one) for one in which}
    yield which
    for one, handler in before.items():
        signal.signal(one, handler)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_amid_the_removal_does_not_end_it(name: str, signals: Sequence[signal.Signals]) -> None:
    lake, progress = FakeLake(), FakeProgress()
    acceptance = acceptance_of(lake)
    stop_on_signals(signals, acceptance.service, progress)  # type: ignore[arg-type]
    lake.refuses = lambda _: signal.raise_signal(signal.Signals[name])
    acceptance.service.stopping.set()  # so that it goes to the removal at once
    report = acceptance.go({})
    assert {step.name: step.outcome for step in report.steps[-2:]} == {
        "remove v2": Outcome.PASSED,
        "all is as before": Outcome.PASSED,
    }
    assert report.stopped
    assert progress.said == [f"Stopping after {name}: what was made is removed. Wait for it."]
    assert [signal.getsignal(one) for one in signals] == [signal.SIG_DFL] * 3


def test_a_signal_amid_a_clean_up_does_not_end_it(signals: Sequence[signal.Signals]) -> None:
    runs = ("a20260101_120000_1f2e3d", "a20260101_130000_1f2e3d")
    lake, service, progress = FakeLake(), FakeService(), FakeProgress()
    for run in runs:
        lake.tables[f"{run}_v2"] = FakeTable(run, run, f"s3://lake/{run}")
        lake.stored.add(f"s3://lake/{run}/data/1.parquet")
    lake.refuses = lambda name: signal.raise_signal(signal.SIGTERM) if name.startswith(runs[0]) else None
    options: Any = SimpleNamespace(run=[], yes=True)
    assert confirm_and_clean_up(options, ["accepting"], service, lake, progress, signals) == 0  # type: ignore[arg-type]
    assert (lake.tables, lake.stored) == ({}, set())
    assert not service.stopping.is_set()  # a job that removes an index is waited for
    assert "Stopping after SIGTERM: what was made is removed. Wait for it." in progress.said


def test_a_terminal_that_was_closed_ends_nothing() -> None:
    class Closed(StringIO):
        def write(self, _: str) -> int:
            raise OSError(5, "Input/output error")

    progress = Progress(Console(file=Closed(), force_terminal=True))
    step = Step("v2", "index")
    progress.begins(step)
    progress.watch("index is running")
    progress.ended(step)


def test_a_namespace_goes_only_if_the_run_has_made_it_and_nobody_else_uses_it() -> None:
    theirs = FakeLake(namespaces=set())
    acceptance = acceptance_of(theirs)
    theirs.namespaces.add("accepting")  # by somebody else, since the run looked
    acceptance._make_namespace()
    assert removed(acceptance)["all is as before"] is Outcome.PASSED
    assert theirs.namespaces == {"accepting"}

    shared = FakeLake(namespaces=set())
    acceptance = acceptance_of(shared)
    acceptance._make_namespace()
    shared.tables["theirs"] = FakeTable("u9")
    assert removed(acceptance)["all is as before"] is Outcome.PASSED
    assert shared.namespaces == {"accepting"}

    own = FakeLake(namespaces=set())
    acceptance = acceptance_of(own)
    acceptance._make_namespace()
    assert removed(acceptance)["all is as before"] is Outcome.PASSED
    assert own.namespaces == set()


def _commit(lake: FakeLake) -> None:
    lake.tables["orders"].metadata = "2.json"


def _put_another(lake: FakeLake) -> None:
    lake.tables["orders"] = FakeTable("u8")


@pytest.mark.parametrize(
    ("happen", "outcome", "says"),
    [
        (lambda _: None, Outcome.PASSED, "1 table of others, as before"),
        (_commit, Outcome.PASSED, "committed to orders"),
        (_put_another, Outcome.FAILED, "orders is another table"),
        (lambda lake: lake.tables.pop("orders"), Outcome.FAILED, "orders was there before and is gone"),
    ],
)
def test_what_becomes_of_the_tables_of_others_is_told(
    happen: Callable[[FakeLake], None], outcome: Outcome, says: str
) -> None:
    another_run = "a20260101_120000_1f2e3d_v2"
    lake = FakeLake({"orders": FakeTable("u7"), another_run: FakeTable("u6", "a20260101_120000_1f2e3d")})
    acceptance = acceptance_of(lake)
    del lake.tables[another_run]  # which removes what it has made
    happen(lake)
    acceptance._remove_all()
    step = acceptance.report.steps[-1]
    assert (step.name, step.outcome) == ("all is as before", outcome)
    assert says in (step.problem.detail if step.problem else step.said)


@pytest.mark.parametrize(
    ("wanted", "there", "says"),
    [
        (None, "data/1.parquet", "had files before"),
        (None, "metadata/00007-old.metadata.json", "had files before"),
        ("s3://lake/elsewhere", "metadata/00000-1.metadata.json", "and not at s3://lake/elsewhere"),
    ],
)
def test_no_place_is_taken_for_the_table_s_own_that_may_hold_files_of_others(
    wanted: str | None, there: str, says: str
) -> None:
    lake = FakeLake()
    table, (trial,) = MagicMock(), acceptance_of(lake).trials
    lake.stored = {f"s3://lake/t/{there}", "s3://lake/t/metadata/00000-1.metadata.json"}
    table.location.return_value = "s3://lake/t"
    current = table.operations.return_value.current.return_value
    current.metadataFileLocation.return_value = "s3://lake/t/metadata/00000-1.metadata.json"
    current.formatVersion.return_value = 2
    lake.create_table = lambda *_, **__: table  # type: ignore[method-assign]
    trial.wanted_location, trial.location = wanted, None
    with pytest.raises((NotOursError, LakeError), match=says):
        create(trial)
    assert trial.location is None


def test_a_catalog_that_drops_properties_is_found_at_once_and_its_table_goes_by_its_uuid() -> None:
    lake = FakeLake()
    acceptance = acceptance_of(lake)
    (trial,), table = acceptance.trials, MagicMock()
    table.uuid.return_value.toString.return_value = "u1"
    lake.create_table = lambda *_, **__: table  # type: ignore[method-assign]
    lake.tables[trial.identifier[-1]].mark = None
    with pytest.raises(LakeError, match=r"icestream\.acceptance-run .* is not there") as error:
        create(trial)
    assert error.value.problem.code == "properties_not_kept"
    assert removed(acceptance)["remove v2"] is Outcome.PASSED
    assert lake.tables == {}


@pytest.mark.parametrize("table_uuid", [None, "u2"])
def test_without_a_mark_only_the_uuid_of_the_one_that_is_meant_drops_a_table(
    monkeypatch: pytest.MonkeyPatch, table_uuid: str | None
) -> None:
    tables = Tables(monkeypatch, mark=None)
    with pytest.raises(NotOursError):
        tables.lake.drop_table(["ns", "t"], None, table_uuid)
    assert tables.asked == []
    tables.lake.drop_table(["ns", "t"], None, "u1")
    assert tables.asked == [False]


class Tables:
    """Of a catalog in Java, which may refuse to purge or to drop, or only say that it has dropped.

    is_alone: the table's files, in its place.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *refused: bool,
        lies: bool = False,
        is_alone: bool = True,
        mark: str | None = "r1",
    ) -> None:
        self.asked: list[bool] = []
        self._mark = mark
        self._refused, self._lies, self._is_alone, self._names = refused, lies, is_alone, {"t"}
        monkeypatch.setattr("worker.acceptance.lake.open_catalog", lambda *_: (self, None))
        monkeypatch.setattr("worker.acceptance.lake.load_table", lambda *_: self._table())
        monkeypatch.setattr(Lake, "has_table", lambda *_: bool(self._names))
        self.lake = Lake(MagicMock(), {"name": "lake", "type": "rest", "properties": {}})

    def _table(self) -> Any:
        table = MagicMock()
        table.location.return_value = "s3://lake/t"
        own_place = {"icestream.acceptance-place": "s3://lake/t"} if self._is_alone else {}
        table.properties.return_value = ({MARK: self._mark} if self._mark else {}) | own_place
        table.uuid.return_value.toString.return_value = "u1"
        return table

    def dropTable(self, _: object, purge: bool) -> bool:  # noqa: N802, the name in Java
        self.asked.append(purge)
        if purge in self._refused:
            raise Py4JError("403")
        if not self._lies:
            self._names.clear()
        return True


@pytest.mark.parametrize(
    ("is_alone", "refused", "asked"),
    [
        (True, (), [False]),
        (True, (False,), [False, True]),
        (False, (), [True]),
        (False, (True,), [True, False]),
    ],
)
def test_a_catalog_is_asked_to_purge_only_what_is_not_cleared_or_not_dropped_otherwise(
    monkeypatch: pytest.MonkeyPatch, is_alone: bool, refused: tuple[bool, ...], asked: list[bool]
) -> None:
    tables = Tables(monkeypatch, *refused, is_alone=is_alone)
    tables.lake.drop_table(["ns", "t"], "r1", "u1")
    assert tables.asked == asked


def test_a_table_that_is_not_dropped_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LakeError, match="403"):
        Tables(monkeypatch, True, False).lake.drop_table(["ns", "t"], "r1", "u1")
    with pytest.raises(LakeError, match="still has it"):
        Tables(monkeypatch, lies=True).lake.drop_table(["ns", "t"], "r1", "u1")
