"""Documents name tests, for whoever wants to see what they say, and commands: each of these is there."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import typer
import yaml

from service.command.main import app
from service.settings import Settings

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "helm" / "README.md"]


def test_every_test_that_a_document_names_exists() -> None:
    sources = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    known = {name for source in sources.values() for name in re.findall(r"def (test_\w+)\(", source)}
    known |= {path.stem for path in sources}
    named = {name for document in DOCUMENTS for name in re.findall(r"`(test_\w+)", document.read_text())}
    assert len(named) > 50
    assert named - known == set()
    paths = {path for document in DOCUMENTS for path in re.findall(r"`(tests/[\w/.]+)", document.read_text())}
    assert not [path for path in paths if not (ROOT / path).exists()]


def commands() -> list[str]:
    """Every command that a document shows, on a line of its own or within a sentence."""
    texts = [document.read_text().replace("\\\n", " ") for document in DOCUMENTS]
    found = [
        one
        for text in texts
        for one in re.findall(r"^ {4}(?:.* -- )?icestream (.*)$|`icestream ([^`]+)`", text, re.MULTILINE)
    ]
    return sorted({alone or within for alone, within in found})


def is_known(command: str) -> bool:
    """Whether there is such a command, with such options. It is not run: `--install-completion` would."""
    found: Any = typer.main.get_command(app)
    words = shlex.split(command, comments=True)
    while words and (below := getattr(found, "commands", {}).get(words[0])) is not None:
        found, words = below, words[1:]
    options = {name for one in found.params for name in (*one.opts, *one.secondary_opts)}
    is_command = not hasattr(found, "commands") or bool(words and words[0].startswith("-"))
    return is_command and {word for word in words if word.startswith("-")} <= options


def test_every_command_that_a_document_shows_is_there() -> None:
    shown = commands()
    assert len(shown) > 15
    assert [command for command in shown if not is_known(command)] == []
    for wrong in ("jobs lists", "jobs", "jobs list --state failed", "migrate --to 1", "--complete"):
        assert not is_known(wrong), wrong


def test_every_setting_of_the_service_is_in_a_document() -> None:
    text = "\n".join(document.read_text() for document in DOCUMENTS)
    named = set(re.findall(r"`(ICESTREAM_[A-Z_]+)", text)) | set(re.findall(r"^ +(\w+)=", text, re.MULTILINE))
    assert {f"ICESTREAM_{name.upper()}" for name in Settings.model_fields} - named == set()


def test_the_notes_on_upgrading_are_those_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    sections = re.findall(r"^## (\d\S*)$", (ROOT / "docs" / "upgrading.md").read_text(), re.MULTILINE)
    assert sections[0] == version
    chart = yaml.safe_load((ROOT / "helm" / "Chart.yaml").read_text())
    assert chart["appVersion"] == version
