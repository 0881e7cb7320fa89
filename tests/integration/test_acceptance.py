"""`icestream accept` as a person runs it, against `icestream up`."""

import signal
from pathlib import Path

import pytest

from tests.integration.icestream import Icestream

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

ACCEPT = ("accept", "--catalog", "embedded")


def files(icestream: Icestream) -> set[Path]:
    return {path for path in (icestream.data_dir / "warehouse").rglob("*") if path.is_file()}


def test_nothing_is_made_unless_somebody_says_yes(icestream: Icestream) -> None:
    with icestream.command(*ACCEPT) as command:
        _, said = command.communicate()
    assert command.returncode == 2, said
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
