"""Flink, with Iceberg's runtime: a Java program, which Maven compiles in the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "flink_program"
# Flink reads private fields of the JDK when it serializes.
_OPENED = ("java.lang", "java.util", "java.util.concurrent", "java.nio", "java.time")


def build() -> str:
    """Compiles the program, and returns its class path. Asks no repository for what is there already."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    project = cache / "icestream" / "conformance-flink"
    shutil.copytree(PROGRAM, project, dirs_exist_ok=True)
    command = ["mvn", "--quiet", "--batch-mode", "compile"]
    for options in (["--offline"], []):
        maven = subprocess.run(
            [*command, *options], cwd=project, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False
        )
        if maven.returncode == 0:
            return (
                f"{project / 'target' / 'classes'}:{(project / 'target' / 'classpath').read_text().strip()}"
            )
    sys.exit("Maven can't compile the reader, or can't fetch what it needs.")


def main() -> None:
    classes = build()
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
    options = ["-Xmx1g", "-Duser.timezone=UTC", *opened, "-cp", classes]
    os.execvp("java", ["java", *options, "icestream.conformance.ReadTables"])  # noqa: S606, S607


if __name__ == "__main__":
    main()
