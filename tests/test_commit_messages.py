"""The hook of .pre-commit-config.yaml that reads commit messages."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
VERBOSE = (
    """

# Please enter the commit message for your changes.
# ------------------------ >8 ------------------------
# Do not modify or remove the line above.
diff --git a/long b/long
+"""
    + "x" * 200
)


def refused(message: str, folder: Path) -> str:
    """What the hook says as git calls it, with a file; nothing if it lets the message pass."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    (hook,) = (one for one in hooks if one.get("stages") == ["commit-msg"])
    python, *command = shlex.split(hook["entry"])
    assert python == ".venv/bin/python"
    file = folder / "COMMIT_EDITMSG"
    file.write_text(message)
    ended = subprocess.run([sys.executable, *command, file], cwd=ROOT, capture_output=True, text=True)
    assert bool(ended.stderr) == (ended.returncode != 0)
    return ended.stderr


@pytest.mark.parametrize(
    "message",
    [
        "worker: one change\n\nWhy it is made.\n",
        "index_health, docs: one change\n\nWhy.\n\n- A point\n- Another\n",
        f"a: {'x' * 69}\n\n{'y' * 100}\n",
        f"worker: one change\n\nWhy.\n{VERBOSE}",
    ],
)
def test_a_message_with_an_area_and_a_reason_passes(message: str, tmp_path: Path) -> None:
    assert refused(message, tmp_path) == ""


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("One change\n\nWhy.\n", "not `area: one change`"),
        ("Worker: one change\n\nWhy.\n", "not `area: one change`"),
        ("worker:\n\nWhy.\n", "not `area: one change`"),
        (f"a: {'x' * 70}\n\nWhy.\n", "has 73 characters, beyond 72"),
        ("worker: one change\n", "No body says why"),
        (f"worker: one change\n{VERBOSE}", "No body says why"),
        ("worker: one change\nWhy.\n", "No blank line"),
        (f"worker: one change\n\nWhy.\n{'y' * 101}\n", "has 101 characters, beyond 100"),
    ],
)
def test_any_other_message_is_refused(message: str, fault: str, tmp_path: Path) -> None:
    said = refused(message, tmp_path)
    assert fault in said
    assert said.count("\n") == 1
