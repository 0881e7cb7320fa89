"""What the README shows of the demo is what the demo says, but for the figures."""

import io
import re
import time
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from tests.demo_output import in_readme
from worker.demo.story import CHECKPOINTS, STREAM_CHECKPOINTS, Icestream, Reader, Seen, Story
from worker.demo.table import OrdersWriter


class PlayedSpark:
    """Has no equality delete file."""

    def table(self, _: str) -> "PlayedSpark":
        return self

    where = table

    def count(self) -> int:
        return 0


class PlayedReader:
    """A query takes longer before the conversion, which is the first time that it is asked."""

    def __init__(self) -> None:
        self._asked = 0

    def look(self) -> Seen:
        return Seen(80, 159_212, 80, 3_000_188, 0x184D1C510EC0898D4C0)

    def checksum(self, _: str) -> tuple[int, int]:
        return 3_000_188, 0x184D1C510EC0898D4C0

    def query_seconds(self) -> float:
        self._asked += 1
        return 10.0 / self._asked


class PlayedService:
    def jobs(self, _: str) -> list[dict[str, Any]]:
        kinds = ("convert", "convert", "index")
        return [{"kind": kind, "status": "succeeded"} for kind in kinds]

    def __getattr__(self, name: str) -> Any:
        assert hasattr(Icestream, name)
        return lambda *_: "a-table"


class PlayedWriter:
    def __init__(self) -> None:
        self.commits = 0

    def append(self, _: object) -> None: ...

    def commit(self, _: object) -> None:
        self.commits += 1


def without_figures(text: str) -> str:
    """Words alone: how wide a column is depends on its figures."""
    numbered = re.sub(r"\b(?=[\da-f,.]*\d)[\da-f,.]*[\da-f]\b", "#", text)
    return " ".join(re.sub(r"[━─]+", "-", numbered).split())


def test_the_readme_shows_what_the_demo_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = PlayedWriter()
    monkeypatch.setattr(OrdersWriter, "create", lambda *_: writer)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    console = Console(width=120, record=True, file=io.StringIO())
    told = Story(console, cast("Icestream", PlayedService()), cast("Any", PlayedSpark()), tmp_path, "login")
    told._reader = cast("Reader", PlayedReader())
    assert told.tell(20_000, once=True)
    assert writer.commits == CHECKPOINTS + STREAM_CHECKPOINTS
    assert without_figures(in_readme()) == without_figures(console.export_text()), "run `make screenshots`"
