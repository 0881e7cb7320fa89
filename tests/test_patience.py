"""No test depends on how fast a machine is."""

import ast
from pathlib import Path

from tests.patience import PATIENCE_SECONDS

TESTS = Path(__file__).parent
_CALLS = (
    "get",
    "post",
    "put",
    "patch",
    "delete",
    "head",
    "options",
    "request",
    "stream",
    "Client",
    "AsyncClient",
)
_NO_NETWORK = "transport"


def test_no_call_waits_for_an_answer_only_as_long_as_httpx_does_by_itself() -> None:
    """Five seconds, which a loaded machine exceeds."""
    impatient = []
    for path in TESTS.rglob("*.py"):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)) if "httpx." in source else ():
            if isinstance(node, ast.Call) and _is_httpx(node.func):
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                seconds = given.get("timeout", "5")
                if _NO_NETWORK not in given and seconds.isdigit() and float(seconds) < PATIENCE_SECONDS:
                    impatient.append(f"{path.relative_to(TESTS)}:{node.lineno}")
    assert impatient == []


def _is_httpx(called: ast.expr) -> bool:
    match called:
        case ast.Attribute(value=ast.Name(id="httpx"), attr=name):
            return name in _CALLS
    return False
