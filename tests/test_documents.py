"""Documents name tests, for whoever wants to see what they say, and commands: each of these is there."""

import re
import shlex
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from service.command.main import app
from tests.reference_pages import SETTINGS, render

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "helm" / "README.md"]
PARTS_OF_A_DECISION = ["Why", "Measured and shown", "What else there was"]


def test_every_test_that_a_document_names_exists() -> None:
    sources = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    known = {name for source in sources.values() for name in re.findall(r"def (test_\w+)\(", source)}
    known |= {path.stem for path in sources}
    named = {name for document in DOCUMENTS for name in re.findall(r"`(test_\w+)", document.read_text())}
    assert len(named) > 50
    assert named - known == set()


def test_every_place_of_the_code_that_a_document_names_is_there() -> None:
    folders = (
        "conformance|docker|docs|helm|openapi|requirements|scripts|service|staging|stores|telemetry|tests"
        "|trust|worker"
    )
    place = rf"`((?:{folders})/[\w/.-]+)"
    named = {path for document in DOCUMENTS for path in re.findall(place, document.read_text())}
    assert len(named) > 50
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def commands() -> list[str]:
    """Every command that a document shows, on a line of its own or within a sentence."""
    texts = [document.read_text().replace("\\\n", " ") for document in DOCUMENTS]
    found = [
        one
        for text in texts
        for one in re.findall(r"^ {4}(?:.* -- )?icestream (.*)$|`icestream ([^`]+)`", text, re.MULTILINE)
    ]
    return sorted({alone or within for alone, within in found})


@cache
def all_commands() -> Any:
    """To make them takes longer than to look one up."""
    return typer.main.get_command(app)


def is_known(command: str) -> bool:
    """Whether there is such a command, with such options. It is not run: `--install-completion` would."""
    found = all_commands()
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


@pytest.mark.parametrize("name", ["settings.md", "cli.md", "metrics.md"])
def test_the_pages_of_settings_commands_and_metrics_are_what_the_program_says(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == render()[name], "run `make reference`"


def test_every_setting_that_a_document_names_is_there() -> None:
    settings = {f"ICESTREAM_{each.upper()}" for one in SETTINGS for each in one.model_fields}
    named = {
        name for document in DOCUMENTS for name in re.findall(r"ICESTREAM_[A-Z_]+[A-Z]", document.read_text())
    }
    assert len(named) > 40
    assert named - settings == set()


def anchors(document: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    found: Counter[str] = Counter()
    names = set()
    for heading in re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if found[name] else name)
        found[name] += 1
    return names


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_document_leads_somewhere(document: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", document.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = (document.parent / place).resolve() if place else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_lines_of_prose_have_120_characters_at_most() -> None:
    written_by_programs = re.compile(
        r"<!-- (.*): written by a benchmark -->.*?<!-- end of \1 -->|```.*?```", re.DOTALL
    )
    long = [
        f"{document.relative_to(ROOT)}: {line}"
        for document in DOCUMENTS
        for line in written_by_programs.sub("", document.read_text()).splitlines()
        if len(line) > 120 and not line.startswith(("|", "    ", "!["))
    ]
    assert long == []


def test_the_readme_is_short_and_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text()
    assert readme.count("\n") <= 120
    assert (ROOT / "ARCHITECTURE.md").read_text().count("\n") <= 200
    pages = {path.relative_to(ROOT) for path in (ROOT / "docs").glob("*.md")}
    assert {str(page) for page in pages} - set(re.findall(r"\]\((docs/[\w-]+\.md)\)", readme)) == set()


@pytest.mark.parametrize("side", ["worker", "service"])
def test_the_architecture_lists_packages_as_imports_lead(side: str) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (one for one in settings["contracts"] if one.get("containers") == [side])
    depth = {name: at for at, layer in enumerate(contract["layers"]) for name in layer.split(" | ")}
    _, _, chapter = (ROOT / "ARCHITECTURE.md").read_text().partition(f"\n## The {side}\n")
    rows = re.findall(r"^\| (`.*?`) \|", chapter.partition("\n## ")[0], re.MULTILINE)
    listed = [name.removesuffix(".py") for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    assert sorted(listed) == sorted(depth)
    assert listed == sorted(listed, key=lambda name: depth[name])


def test_the_architecture_names_what_service_and_worker_share() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (shared,) = (one for one in settings["contracts"] if one["name"] == "What both have alike knows neither")
    (told,) = re.findall(r"Both import (.*?)\.\n", (ROOT / "ARCHITECTURE.md").read_text(), re.DOTALL)
    assert sorted(re.findall(r"`(\w+)`", told)) == sorted(shared["source_modules"])


def test_the_index_of_decisions_lists_each_by_its_title() -> None:
    folder = ROOT / "docs" / "decisions"
    pages = sorted(path for path in folder.glob("*.md") if path.name != "README.md")
    listed = re.findall(r"^(\d+)\. \[(.*)\]\((.*)\)$", (folder / "README.md").read_text(), re.MULTILINE)
    assert [int(number) for number, _, _ in listed] == sorted(int(path.name[:2]) for path in pages)
    assert [name for _, _, name in listed] == [path.name for path in pages]
    for (number, title, name), page in zip(listed, pages, strict=True):
        assert int(name.partition("-")[0]) == int(number)
        text = page.read_text()
        assert text.startswith(f"# {number}. {title}\n")
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == PARTS_OF_A_DECISION


def test_the_pictures_of_the_readme_are_small() -> None:
    pictures = re.findall(r"!\[.*\]\((.*)\)", (ROOT / "README.md").read_text())
    assert [Path(name).suffix for name in pictures] == [".png", ".svg", ".svg"]
    assert all((ROOT / name).stat().st_size < 150_000 for name in pictures)


def test_the_notes_on_upgrading_are_those_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    sections = re.findall(r"^## (\d\S*)$", (ROOT / "docs" / "upgrading.md").read_text(), re.MULTILINE)
    assert sections[0] == version
    chart = yaml.safe_load((ROOT / "helm" / "Chart.yaml").read_text())
    assert chart["appVersion"] == version


def test_the_tutorial_makes_no_directory_of_an_address() -> None:
    text = (ROOT / "docs" / "tutorial.md").read_text()
    (lake,) = re.findall(r"^ {4}export LAKE=.*\n {4}mkdir.*", text, re.MULTILINE)
    assert "://" not in lake
