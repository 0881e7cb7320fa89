"""Documents name tests, for whoever wants to see what they say: each of these tests is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


def test_every_test_that_a_document_names_exists() -> None:
    sources = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    known = {name for source in sources.values() for name in re.findall(r"def (test_\w+)\(", source)}
    known |= {path.stem for path in sources}
    named = {name for document in DOCUMENTS for name in re.findall(r"`(test_\w+)", document.read_text())}
    assert len(named) > 50
    assert named - known == set()
    paths = {path for document in DOCUMENTS for path in re.findall(r"`(tests/[\w/.]+)", document.read_text())}
    assert not [path for path in paths if not (ROOT / path).exists()]
