"""What problems the service raises: read from its source, since many of them are hard to provoke."""

import ast
from pathlib import Path
from typing import NamedTuple

import service.errors
from service.errors import IcestreamError
from service.http import problem_documents

PACKAGE = Path(service.errors.__file__).parent


class Raised(NamedTuple):
    slug: str
    title: str
    status: int
    fields: frozenset[str]
    place: str


def error_classes() -> dict[str, type[IcestreamError]]:
    found = {"IcestreamError": IcestreamError}
    for kind in IcestreamError.__subclasses__():
        found[kind.__name__] = kind
    return found


def raised_in(source: str, place: str) -> list[Raised]:
    """What a module raises: an error's class, slug and title stand in its call, a status where it differs."""
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
        slug, title = node.args[0], node.args[1]
        if not isinstance(slug, ast.Constant) or not isinstance(title, ast.Constant):
            assert isinstance(slug, ast.Name), f"{place}:{node.lineno} hides which problem it raises"
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        status = given.pop("status", None)
        code = int(ast.literal_eval(status)) if status else kind.status
        fields = frozenset(str(field) for field in given)
        found.append(Raised(str(slug.value), str(title.value), code, fields, f"{place}:{node.lineno}"))
    return found


RAISED = [
    raised
    for path in sorted(PACKAGE.rglob("*.py"))
    for raised in raised_in(path.read_text(), str(path.relative_to(PACKAGE)))
] + [
    Raised(slug, title, status, frozenset(), "http/problem_documents.py")
    for status, (slug, title, _) in problem_documents._HTTP_PROBLEMS.items()
]
