"""`icestream accept` as a person runs it, against `icestream up`."""

import json
import signal
from pathlib import Path

import pytest

from tests.integration.icestream import Icestream

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

ACCEPT = ("accept", "--catalog", "embedded")


def files(icestream: Icestream) -> set[Path]:
    return {path for path in (icestream.data_dir / "warehouse").rglob("*") if path.is_file()}


def accept(icestream: Icestream, *options: str) -> tuple[int, str]:
    """Its exit code, and what it told."""
    with icestream.command(*ACCEPT, *options) as command:
        _, said = command.communicate()
    return command.returncode, said


def test_what_up_starts_is_accepted_as_a_whole(icestream: Icestream, tmp_path: Path) -> None:
    before = files(icestream)
    reports = [tmp_path / "report.json", tmp_path / "report.md"]
    place = (icestream.data_dir / "warehouse" / "under_a_prefix").as_uri()
    options = ["--yes", "--location", place, *(f"--report={path}" for path in reports)]
    code, said = accept(icestream, *options)
    assert code == 0, said
    whole = json.loads(reports[0].read_text())
    assert whole["accepted"]
    assert whole["store"] == place
    assert {step["outcome"] for step in whole["steps"]} == {"passed"}
    assert whole["versions"].keys() >= {"service", "workers", "iceberg", "spark", "java", "pyiceberg"}
    assert whole["requests"]["service"]["POST /tables/{id}/jobs"] > 20
    assert reports[1].read_text().startswith("# Icestream acceptance: ")
    assert files(icestream) == before


def test_nothing_is_made_unless_somebody_says_yes(icestream: Icestream) -> None:
    code, said = accept(icestream)
    assert code == 2, said
    assert "icestream_acceptance, which will be made" in said
    assert said.rstrip().endswith("say so with --yes. Nothing was made.")


def test_a_command_that_is_interrupted_removes_what_it_made(icestream: Icestream) -> None:
    before, told = files(icestream), []
    with icestream.command(*ACCEPT, "--yes") as command:
        assert command.stderr is not None
        for line in command.stderr:
            told.append(line)
            if "enrol it:" in line:
                command.send_signal(signal.SIGINT)
    said = "".join(told)
    assert command.returncode == 4, said
    assert "Stopping after SIGINT" in said
    assert "The run was stopped." in said
    assert "remove v2: Enrolment, index, table and files are gone." in said
    assert files(icestream) == before
    assert [one for one in icestream.get("/tables")["items"] if one["catalog"] == "embedded"] == []
