"""The words of the OpenAPI document, which /docs and the command line show: each text is a sentence.

No program knows English. What can be told is that a text begins and ends as sentences do, does not lean on
the name of its field ("Of the table."), is no clause ("When it ended."), and commands something or has a
verb of its own ("The table that it is about." has none).
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from service.command.openapi import DOCUMENT

VERBS = re.compile(
    r"\b(allow|allows|answered|are|asks|attaches|be|became|becomes|begin|begins|belong|belongs|call|came|"
    r"changes|comes|commits|committed|contains|converts|counts|covers|decided|deleted|deletes|did|do|"
    r"does|ended|ends|enrols|erases|expire|expires|failed|follows|get|gets|give|gives|go|goes|got|grows|had|"
    r"hands|happened|has|hashed|have|hides|hold|holds|inherits|is|keep|keeps|know|knows|leaves|left|lie|"
    r"lies|limits|list|look|looked|made|make|makes|match|matched|matches|matter|may|means|measured|must|"
    r"named|names|need|needs|open|opens|point|put|ran|read|registered|remove|removes|repeats|reported|"
    r"requested|resolves|run|said|saw|say|says|sets|shows|signs|spent|stands|start|started|starts|"
    r"stay|stays|stops|succeeded|switched|take|takes|tell|tells|told|took|used|wait|waits|was|went|were|"
    r"work|works|write|writes)\b"
)
"""A verb that is missing is to be added, unless it is a noun as well, as `runs` is."""
COMMANDS = re.compile(
    r"\b(Attach|Cancel|Change|Convert|Do|End|Enrol|Erase|Expire|Extend|Find|Forget|Give|Index|Let|List|Make|"
    r"Publish|Queue|Register|Remove|Request|Reserve|Revoke|Rewrite|Say|Send|Show|Start|Tell|Try|Verify|Wait|"
    r"Write)\b"
)
CLAUSE = re.compile(r"(How|Until when|What|When|Where|Whether|Which|Who|Whose|Why)\b")
SUBORDINATE = re.compile(r"\b(as it|how|that|what|when|where|whether|which|who|whoever|whose|why)\b")
"""Each of these words has a verb of its own."""
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
    if CLAUSE.match(text):
        return "it is a part of a sentence"
    if re.search(r"\bso (many|much)\b", text, re.IGNORECASE):
        return "it says of no number how large it is"
    first = re.split(r"[.:;?](?:\s|$)", re.sub(r"`[^`]*`", "X", text))[0]
    words = first.partition(" ")[2]
    if not COMMANDS.match(first) and len(VERBS.findall(words)) <= len(SUBORDINATE.findall(words)):
        return "it has no verb of its own"
    return None


def test_every_description_is_a_sentence() -> None:
    found = list(descriptions(json.loads(DOCUMENT.read_text())))
    assert len(found) > 1000
    wrong = {text: (fault, path) for path, text in found if (fault := fault_of(text))}
    assert wrong == {}


def test_what_is_no_sentence_is_found() -> None:
    for text in (
        "Names of the key columns.",
        "Names of the key columns that it has.",
        "What went wrong, and why.",
        "Whether it runs; null means no.",
        "The index has so many rows.",
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
