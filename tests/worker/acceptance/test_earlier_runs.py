"""What runs have left is found by names and marks together, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JError

from tests.worker.acceptance.fakes import FakeLake, FakeProgress, FakeService, FakeTable, refuse
from worker.acceptance import main
from worker.acceptance.earlier_runs import CleanUpPlan, plan_clean_up
from worker.acceptance.lake import MARK, Lake
from worker.acceptance.run import clean_up

NAMESPACE = ["accepting"]
OLD, YOUNG = "a20260101_120000_1f2e3d", "a20260101_150000_1f2e3d"
NOW = datetime(2026, 1, 1, 16, tzinfo=UTC)


def enrolled(name: str, enrolment: str = "t1") -> dict[str, Any]:
    return {"id": enrolment, "identifier": [*NAMESPACE, name], "location": f"s3://lake/{name}"}


def found(lake: FakeLake, service: FakeService, runs: Sequence[str] = ()) -> CleanUpPlan:
    return plan_clean_up(service, lake, NAMESPACE, runs, NOW)  # type: ignore[arg-type]


def remove(lake: FakeLake, service: FakeService, plan: CleanUpPlan) -> list[str]:
    said: list[str] = []
    all_gone = clean_up(service, lake, NAMESPACE, plan.to_remove, said.append)  # type: ignore[arg-type]
    return [*said, str(all_gone)]


def test_only_what_has_both_the_mark_and_the_name_of_a_run_is_removed() -> None:
    tables = {
        "orders": FakeTable("u1", OLD),  # somebody has copied the property
        f"{OLD}_v2": FakeTable("u2", None),
        f"{OLD}_v3": FakeTable("u3", YOUNG),
        f"{OLD}_v4": FakeTable("u4", OLD),
        f"{OLD}_faults": FakeTable("u5", OLD),
    }
    plan = found(FakeLake(tables), FakeService([enrolled("orders"), enrolled(f"{OLD}_v2")]))
    assert [one.name for one in plan.to_remove] == [f"{OLD}_faults"]
    assert [said.split()[0] for said in plan.stays] == [f"{OLD}_v2", f"{OLD}_v3"]


def test_a_run_that_may_be_under_way_is_left_unless_it_is_named() -> None:
    lake, service = FakeLake({f"{YOUNG}_v2": FakeTable("u1", YOUNG)}), FakeService([enrolled(f"{OLD}_v2")])
    plan = found(lake, service)
    assert [one.name for one in plan.to_remove] == [f"{OLD}_v2"]
    assert f"--run {YOUNG}" in plan.stays[0]
    assert [one.name for one in found(lake, service, [YOUNG]).to_remove] == [f"{YOUNG}_v2"]


def test_enrolments_of_tables_that_are_gone_files_and_the_namespace_go_too() -> None:
    name = f"{OLD}_v2"
    lake = FakeLake({name: FakeTable("u1", OLD)}, {"s3://lake/t/data/nameless"}, namespace_mark=OLD)
    service = FakeService([enrolled(name), enrolled(f"{OLD}_v3", "t2")])
    assert remove(lake, service, found(lake, service)) == [
        f"{name} is gone.",
        f"{OLD}_v3 is gone; files may be left at s3://lake/{OLD}_v3.",
        "Namespace accepting, which a run has made, is gone.",
        "True",
    ]
    assert (service.deleted, lake.tables, lake.stored) == (["/tables/t1", "/tables/t2"], {}, set())
    assert lake.namespaces == set()


def test_files_of_others_a_namespace_of_others_and_a_table_that_is_refused_stay() -> None:
    name = f"{OLD}_v2"
    lake = FakeLake({name: FakeTable("u1", OLD, is_alone=False)}, {"s3://lake/t/precious"})
    assert remove(lake, FakeService(), found(lake, FakeService())) == [f"{name} is gone.", "True"]
    assert (lake.stored, lake.namespaces) == ({"s3://lake/t/precious"}, {"accepting"})

    lake = FakeLake({name: FakeTable("u1", OLD)}, {"s3://lake/t/data/1"}, refuses=refuse, namespace_mark=OLD)
    said = remove(lake, FakeService(), found(lake, FakeService()))
    assert "403 Forbidden" in said[0]
    assert said[1:] == ["False"]
    assert (lake.stored, lake.namespaces) == ({"s3://lake/t/data/1"}, {"accepting"})


def test_what_would_be_removed_is_told_and_nothing_is_without_a_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    lake, progress = FakeLake({f"{OLD}_v2": FakeTable("u1", OLD)}), FakeProgress()
    options: Any = SimpleNamespace(run=[], yes=False)
    given: Any = (options, NAMESPACE, FakeService(), lake, progress, [])
    monkeypatch.setattr("sys.stdin", MagicMock(isatty=lambda: False))
    with pytest.raises(SystemExit):
        main.confirm_and_clean_up(*given)
    assert progress.said[-1].endswith("--yes. Nothing was removed.")
    assert f"  {OLD}_v2: a table with its files" in progress.said
    assert list(lake.tables) == [f"{OLD}_v2"]
    options.yes = True
    assert main.confirm_and_clean_up(*given) == 0
    assert lake.tables == {}


def test_a_namespace_is_marked_where_the_catalog_keeps_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = MagicMock()
    monkeypatch.setattr("worker.acceptance.lake.open_catalog", lambda *_: (catalog, None))
    monkeypatch.setattr("worker.acceptance.lake.java_map", lambda _, given: given)
    monkeypatch.setattr(Lake, "has_namespace", lambda *_: False)
    lake = Lake(MagicMock(), {"name": "lake", "type": "hadoop", "properties": {}})
    lake.create_namespace(NAMESPACE, OLD)
    assert catalog.createNamespace.call_args.args[1:] == ({MARK: OLD},)
    catalog.createNamespace.side_effect = [Py4JError("properties are not supported"), None]
    lake.create_namespace(NAMESPACE, OLD)
    assert len(catalog.createNamespace.call_args.args) == 1
