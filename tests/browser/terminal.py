"""Pictures of what commands print, drawn from what they print on a terminal."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

COLUMNS = 108
_COMMAND = [sys.executable, "-c", "from service.command.main import main; main()"]
# Fonts are those of the reader: a picture asks nobody for more.
_FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def draw(commands: Sequence[str], url: str, key: str, path: Path) -> None:
    """Runs `icestream` with each of these words, and writes an SVG of a terminal in which that was done."""
    screen = Console(record=True, width=COLUMNS, file=StringIO(), highlight=False)
    environment = {**os.environ, "ICESTREAM_URL": url, "ICESTREAM_API_KEY": key}
    environment |= {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    for words in commands:
        done = subprocess.run(
            [*_COMMAND, *words.split()], env=environment, capture_output=True, text=True, check=False
        )
        screen.print(Text.assemble(("$ ", "dim"), (f"icestream {words}", "bold")))
        screen.print(Text.from_ansi(done.stdout + done.stderr))
        screen.print()
    path.write_text(screen.export_svg(title="icestream", code_format=_FORMAT, unique_id="icestream"))
