"""Readers here see of each table what is listed in docs/conformance.md."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from conformance.cases import ALL
from conformance.command import conformance
from conformance.readers import BUILT_IN, spark
from tests.conformance.seen import PAGE, command, outcomes, page, seen, versions
from worker.spark.jars import own_jars


def run(reader: str, patterns: Sequence[str], folder: Path) -> tuple[int, dict[str, tuple[str, str]]]:
    report = folder / "report.json"
    code = conformance(
        patterns,
        reader=command(reader, os.environ),
        lists=False,
        directory=None,
        location=None,
        version=None,
        timeout_seconds=120,
        report_to=report,
    )
    return code, outcomes(json.loads(report.read_text()))


SOME = ["a-null-*", "data-of-*", "int-*", "unpartitioned-*", "vectors-*", "a-tag", "key-of-type-string"]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("reader", "patterns"),
    [
        ("pyiceberg", SOME),
        ("duckdb", ["a-value-*", *SOME[1:2], "vectors-*", "a-tag", "key-of-type-string", "only-the-*"]),
        *(pytest.param(name, ["*"], marks=pytest.mark.exhaustive) for name in versions()),
    ],
)
def test_each_reader_sees_what_is_listed(reader: str, patterns: Sequence[str], tmp_path: Path) -> None:
    code, found = run(reader, patterns, tmp_path)
    names = {case.name for case in ALL if any(Path(case.name).match(one) for one in patterns)}
    listed = {one: told for one, told in seen(reader).items() if one.partition("/")[0] in names}
    assert found == listed
    assert code == 1


def test_the_page_lists_what_was_seen() -> None:
    assert PAGE.read_text() == page(), "run `make conformance`"


def test_each_case_is_listed_with_its_rule() -> None:
    assert len({case.name for case in ALL}) == len(ALL) > 80
    assert all(case.rule.endswith(".") and case.section and case.versions for case in ALL)


def test_the_suite_reads_with_the_iceberg_that_workers_have() -> None:
    assert own_jars()[0] == spark.RUNTIME
    assert set(versions()) == set(BUILT_IN)
