"""The words of the OpenAPI document, which /docs and the command line show: each text is a sentence.

No program knows English. What can be told is that a text begins and ends as sentences do, does not lean on
the name of its field ("Of the table."), and has a verb or commands something.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from service.command.openapi import DOCUMENT

VERBS = re.compile(
    r"\b(allows|are|be|begins|belong|came|changes|comes|committed|covers|decided|did|do|does|ended|ends|"
    r"enrols|failed|gets|give|gives|go|goes|got|grows|had|hands|happened|has|have|hold|holds|inherits|"
    r"is|know|knows|leaves|lie|lies|looked|made|may|means|must|names|needs|ran|remove|repeats|reported|"
    r"resolves|run|saw|say|says|shows|stands|start|starts|stay|stays|take|takes|tell|told|took|used|"
    r"wait|was|went|were|write|writes)\b"
)
"""A verb that is missing is to be added, unless it is a noun as well, as `runs` is."""
COMMANDS = re.compile(
    r"\b(Attach|Cancel|Change|End|Enrol|Extend|Forget|Give|Let|List|Make|Queue|Register|Remove|Reserve|"
    r"Revoke|Send|Show|Start|Tell|Try)\b"
)
LEANING = re.compile(
    r"(After|Also|And|Another|As|Because|Before|Between|By|False|For|From|If|In|Into|Its|More|Not|Of|On|Read|Since"
    r"|Such|That|The same|Their|Then|Those|To|True|Under|Which|With|Without|Written)\b"
)


def descriptions(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Where each description is, and its words."""
    if isinstance(node, list):
        for at, value in enumerate(node):
            yield from descriptions(value, f"{path}/{at}")
    elif isinstance(node, dict):
        for key, value in node.items():
            if key == "description" and isinstance(value, str):
                yield path, " ".join(value.split())
            elif key not in ("default", "example", "examples"):
                yield from descriptions(value, f"{path}/{key}")


def fault_of(text: str) -> str | None:
    """What keeps a text from being a sentence."""
    if not re.match(r"[A-Z0-9`]", text) or not text.endswith("."):
        return "it does not begin with a capital, or end with a full stop"
    if LEANING.match(text):
        return "it leans on what is not said here"
    first = re.split(r"(?<=[.?!])\s", re.sub(r"`[^`]*`", "X", text))[0]
    if not COMMANDS.match(first) and not VERBS.search(first.partition(" ")[2]):
        return "it has no verb"
    return None


def test_every_description_is_a_sentence() -> None:
    found = list(descriptions(json.loads(DOCUMENT.read_text())))
    assert len(found) > 1000
    wrong = {text: (fault, path) for path, text in found if (fault := fault_of(text))}
    assert wrong == {}


def test_what_is_no_sentence_is_found() -> None:
    for text in (
        "Names of the key columns.",
        "The sorted runs of an index.",
        "no capital is here.",
        "It has no end",
    ):
        assert fault_of(text)
    for text in (
        "Of the table it has all.",
        "Another one is made.",
        "Such as it is.",
        "With it, all is well.",
    ):
        assert fault_of(text) == "it leans on what is not said here"
    assert fault_of("The key columns have these names.") is None
    assert fault_of("List what there is.") is None
