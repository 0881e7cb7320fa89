"""What an erasure tells of each key."""

from __future__ import annotations

import pytest

from tests.worker.erasure.test_keys import erased
from worker.erasure import report
from worker.erasure.holds import Hold
from worker.erasure.report import Findings


def test_a_report_names_so_many_keys_at_most_and_counts_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a thousand snapshots are more than the service takes."""
    monkeypatch.setattr(report, "NUMBERS_AT_MOST", 3)
    findings = Findings()
    for snapshot_id in range(3):
        findings.hold([0, 1], Hold("retention", "", ""), snapshot_id)
    told = findings.told(erased(("a",), ("b",), ("c",)))
    assert [one["keys"] for one in told["held"]] == [[0, 1], [0], []]
    assert told["counts"] == {"gone": 1, "invisible": 0, "held": 2, "unknown": 0}
