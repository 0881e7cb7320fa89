"""`make screenshots`: runs `icestream demo`, and writes into README.md what it prints.

tests/worker/demo/test_story.py sees that it still says that.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
COLUMNS = 100
_COMMAND = [sys.executable, "-c", "from service.command.main import main; main()", "demo", "--exit"]
_MARKED = re.compile(
    r"(<!-- the demo: written by `make screenshots` -->\n)(.*?)(<!-- end of the demo -->)", re.S
)
_REPORT = re.compile(r"^Table demo\.orders: .*model: .*?\n", re.S | re.M)


def in_readme() -> str:
    """What the README has of it, as a terminal has it."""
    found = _MARKED.search(README.read_text())
    assert found is not None
    return "\n".join(line.removeprefix("    ") for line in found[2].splitlines() if line.startswith("    "))


def main() -> None:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as data:
        printed = subprocess.run(
            [*_COMMAND, "--no-browser", "--port", "0", "--data-dir", data],
            env={**os.environ, "COLUMNS": str(COLUMNS)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
    report = _REPORT.search(printed)
    assert report is not None, printed
    block = "".join(f"    {line.rstrip()}\n" for line in report[0].splitlines())
    measured = f"(Measured on {os.cpu_count()} cores, at a load of {load:.1f} before.)"
    text = _MARKED.sub(lambda marks: f"{marks[1]}\n{block}\n{measured}\n{marks[3]}", README.read_text())
    README.write_text(text)


if __name__ == "__main__":
    main()
