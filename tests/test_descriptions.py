"""The words of the OpenAPI document, which /docs and the command line show: each text is a sentence.

No program knows English. What can be told is that a text begins and ends as sentences do, does not lean on
the name of its field ("Of the table.", "It took this long."), is no clause ("When it ended."), says how large
a number is by its unit, and commands something or has a verb of its own ("The table that it is about." has
none).
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from service.command.openapi import DOCUMENT

VERBS = re.compile(
    r"\b(allow|allows|answered|are|asks|attaches|be|became|becomes|begin|begins|belong|belongs|call|called|"
    r"came|changes|comes|commits|committed|contains|converts|counts|covered|covers|decided|deleted|"
    r"deletes|did|do|does|ended|ends|enrols|erased|erases|expire|expires|failed|follows|gave|get|gets|"
    r"give|gives|go|goes|got|grows|had|hands|happened|has|hashed|have|hides|hold|holds|inherits|is|keep|"
    r"keeps|know|knows|leaves|left|lie|lies|limits|list|look|looked|made|make|makes|match|matched|"
    r"matches|matter|may|means|measured|must|named|names|need|needs|open|opens|point|put|ran|read|"
    r"registered|remove|removes|repeats|reported|requested|resolves|run|said|saw|say|says|sets|shows|"
    r"signs|spent|stands|start|started|starts|stay|stays|stops|succeeded|switched|take|takes|tell|tells|"
    r"told|took|tried|tries|used|wait|waits|was|went|were|work|works|write|writes|wrote)\b"
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
    r"(After|Also|And|Another|As|Because|Before|Between|By|False|For|From|If|In|Into|It|Its|More|Not|Of|On|Read|"
    r"Since|Such|That|The same|Their|Then|They|Those|To|True|Under|Which|With|Without|Written)\b"
    r"|This (did|does|is|says|was) (how|what|when|where|whether|who|why) (it|its|they)\b"
)
UNMEASURED = re.compile(r"\bso many\b|\b(so|this) (large|long|much|often|old|widely)\b", re.IGNORECASE)


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
    if UNMEASURED.search(text):
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
        "The step took this long.",
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
        "It took this many seconds.",
        "This is why it failed.",
    ):
        assert fault_of(text) == "it leans on what is not said here"
    assert fault_of("The key columns have these names.") is None
    assert fault_of("List what there is.") is None
