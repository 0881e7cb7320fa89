"""What problems the service raises: read from its source, since many of them are hard to provoke."""

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

import service.errors
from service.errors import IcestreamError
from service.http import problem_documents
from service.problems import PROBLEMS

PACKAGE = Path(service.errors.__file__).parent


class Raised(NamedTuple):
    slug: str
    status: int
    fields: frozenset[str]
    has_remedy: bool
    """Of its own, and not that of service.problems."""
    place: str


def error_classes() -> dict[str, type[IcestreamError]]:
    found = {"IcestreamError": IcestreamError}
    for kind in IcestreamError.__subclasses__():
        found[kind.__name__] = kind
    return found


def status_of(slug: str, kind: type[IcestreamError]) -> int:
    """The only one of its slug, or that of its class."""
    known = PROBLEMS[slug].status if slug in PROBLEMS else ()
    return known[0] if len(known) == 1 else kind.status


def texts_in(path: Path) -> set[str]:
    """What a module says, or its docstrings."""
    nodes = ast.walk(ast.parse(path.read_text()))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text for text in texts if len(text) > 20 and " " in text}


def raised_in(source: str, place: str) -> list[Raised]:
    """What a module raises: an error's class and slug stand in its call."""
    classes, found = error_classes(), []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name == "__init__" and node.args and isinstance(node.args[0], ast.Constant):
            kind: type[IcestreamError] = service.errors.DatabaseError
        elif name in classes and len(node.args) > 1:
            kind = classes[name]
        else:
            continue
        slug = node.args[0]
        if not isinstance(slug, ast.Constant):
            assert isinstance(slug, ast.Name), f"{place}:{node.lineno} hides which problem it raises"
            continue
        fields = frozenset(str(keyword.arg) for keyword in node.keywords) - {"title"}
        known = str(slug.value)
        found.append(
            Raised(known, status_of(known, kind), fields, len(node.args) > 2, f"{place}:{node.lineno}")
        )
    return found


@cache
def all_raised() -> list[Raised]:
    """By the whole service."""
    return [
        raised
        for path in sorted(PACKAGE.rglob("*.py"))
        for raised in raised_in(path.read_text(), str(path.relative_to(PACKAGE)))
    ] + [
        Raised(slug, status, frozenset(), True, "http/problem_documents.py")
        for status, (slug, _) in problem_documents._HTTP_PROBLEMS.items()
    ]
