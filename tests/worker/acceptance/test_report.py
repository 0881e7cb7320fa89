"""A report says what has passed, and nothing else counts as that."""

import json
from decimal import Decimal
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.worker.acceptance.fakes import FakeProgress
from worker.acceptance.main import Progress, is_written, main, write
from worker.acceptance.orders import Orders, difference, rows_of, to_arrow
from worker.acceptance.report import JobFigures, Outcome, Problem, Report, Step
from worker.process.redaction import Redaction

JOB = JobFigures("j1", "convert", False, "succeeded", 2, 0.5, 1.25, 96, 4096, [])


def report(*outcomes: Outcome) -> Report:
    steps = [Step("v2", f"step {number}", outcome) for number, outcome in enumerate(outcomes)]
    return Report(
        "r1", "2026-01-01T00:00:00+00:00", "http://here", "lake", "sql", "s3://lake", "db", steps=steps
    )


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ((Outcome.PASSED, Outcome.PASSED), 0),
        ((Outcome.PASSED, Outcome.NOT_TRIED), 3),
        ((Outcome.NOT_TRIED, Outcome.FAILED, Outcome.PASSED), 1),
        ((Outcome.NOT_TRIED,), 1),
        ((Outcome.NOT_POSSIBLE,), 1),
        ((), 1),
    ],
)
def test_only_steps_that_all_passed_end_with_0(outcomes: tuple[Outcome, ...], code: int) -> None:
    assert report(*outcomes).exit_code == code


def test_what_no_such_store_allows_does_not_stand_in_the_way_of_an_acceptance() -> None:
    told = report(Outcome.PASSED, Outcome.NOT_POSSIBLE)
    told.steps[1].said = "The store itself says how old a file is."
    assert (told.exit_code, told.verdict) == (0, "1 passed, 0 failed, 0 not tried, 1 not possible here")
    assert json.loads(told.to_json())["accepted"]
    listed = "## What is not possible here\n\n- v2, step 1: The store itself says how old a file is."
    assert listed in told.to_markdown()
    assert report(Outcome.PASSED, Outcome.NOT_POSSIBLE, Outcome.NOT_TRIED).exit_code == 3


@pytest.mark.parametrize(
    ("outcomes", "code"), [((), 4), ((Outcome.PASSED, Outcome.NOT_TRIED), 4), ((Outcome.FAILED,), 1)]
)
def test_a_run_that_was_stopped_says_so(outcomes: tuple[Outcome, ...], code: int) -> None:
    told = report(*outcomes)
    told.stopped = True
    assert told.exit_code == code
    assert told.verdict.startswith("stopped: ")
    assert json.loads(told.to_json())["stopped"]


def test_both_forms_tell_what_failed_why_and_what_to_do(tmp_path: Path) -> None:
    told = report(Outcome.PASSED, Outcome.FAILED, Outcome.NOT_TRIED)
    told.versions = {"iceberg": "1.12.0"}
    told.steps[0].jobs = [JOB]
    told.steps[1].problem = Problem("store_denied", "The store | denies", "DELETE\nis refused.", "Allow it.")
    told.steps[1].requests = {"service": {"GET /me": 1, "GET /jobs/{id}": 6}, "store": {"list files": 2}}
    told.requests, told.not_counted = told.steps[1].requests, ["What workers ask."]
    told.steps[2].said = "There is no lookup server."
    for name in ("report.md", "report.json"):
        write(told, tmp_path / name)

    page = (tmp_path / "report.md").read_text()
    assert "1 passed, 1 failed, 1 not tried" in page.splitlines()[0]
    assert "**The store | denies** (`store_denied`): DELETE is refused. Allow it." in page
    row = "| v2 | step 1 | failed | 0.0 | service 7, store 2 |  | The store \\| denies: DELETE is refused. |"
    assert row in page
    assert "convert: 0.5 s, 1.2 s, 2, 4,096" in page
    assert "- v2, step 2: There is no lookup server." in page
    assert "| iceberg | 1.12.0 |" in page
    assert "| service | GET /jobs/{id} | 6 |\n| service | GET /me | 1 |\n| store | list files | 2 |" in page
    assert page.endswith("Not counted:\n\n- What workers ask.\n")
    whole = json.loads((tmp_path / "report.json").read_text())
    assert (whole["accepted"], whole["steps"][1]["problem"]["code"]) == (False, "store_denied")
    assert whole["steps"][0]["jobs"][0]["ran_seconds"] == 1.25


def test_no_line_tells_a_secret() -> None:
    progress = Progress(Console(file=(file := StringIO())))
    progress.redaction = Redaction(["of-the-record-alone"])
    progress.say("The store said: key of-the-record-alone is unknown.")
    assert file.getvalue() == "The store said: key *** is unknown.\n"


def test_a_report_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    progress = FakeProgress()
    assert not is_written(report(), tmp_path / "gone" / "report.md", progress)  # type: ignore[arg-type]
    assert "gone/report.md can't be written" in progress.said[0]


def test_a_reader_that_shows_too_much_or_too_little_differs_from_the_model() -> None:
    orders = Orders()
    orders.put([orders.new_row(number) for number in range(4)])
    texts = [[None if value is None else str(value) for value in row] for row in orders.rows.values()]
    assert difference(orders.visible, rows_of(texts)) == ""
    assert (
        difference(orders.visible, rows_of(texts[1:]))
        == "lacks 1 row, such as 0, africa, paid, 0.01, 2026-01-01, 2026-01-01 00:00:00.000001+00:00"
    )
    twice = difference(orders.visible, rows_of([*texts, texts[2]]))
    assert twice == f"shows 1 row that must not be there, such as {', '.join(map(str, orders.rows[2]))}"
    texts[3][3] = str(Decimal(texts[3][3] or 0) + 1)
    assert "; lacks 1 row, such as 3, europe" in difference(orders.visible, rows_of(texts))


def test_each_version_of_an_order_is_another_row_and_fits_the_columns() -> None:
    orders = Orders()
    rows = [orders.new_row(7) for _ in range(20)]
    assert len(set(rows)) == 20
    assert [tuple(row.values()) for row in to_arrow(rows).to_pylist()] == rows


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--namespace=a..b"], "--namespace"),
        (["--namespace=a b"], "--namespace"),
        (["--namespace=a", "--location=relative"], "--location"),
        (["--namespace=a", "--location=s3://lake/../x"], "--location"),
        (["--namespace=a", "--run=r1"], "--clean-up"),
        (["--namespace=a", "--report=report.txt"], ".json or .md"),
        (["--namespace=a", "--report=nowhere/report.md"], "no such folder"),
        (["--namespace=a", "--report=folder.md"], "can't be written"),
    ],
)
def test_what_is_no_name_place_or_report_is_refused_before_anything_starts(
    given: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder.md").mkdir()
    with pytest.raises(SystemExit) as ended:
        main(["--catalog=lake", *given])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
