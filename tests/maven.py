"""Compiles the Java programs of the tests with Maven, which also fetches the JARs that they need."""

import fcntl
import subprocess
from pathlib import Path


def build(project: Path) -> str:
    """Compile a Maven project and return its class path; asks no repository for what is there already.

    The project's dependency plugin writes the JARs of its class path to `target/classpath`.
    """
    command = ["mvn", "--quiet", "--batch-mode", "compile"]
    with (project / "pom.xml").open("rb") as only_one:
        # Test processes run side by side.
        fcntl.flock(only_one, fcntl.LOCK_EX)
        return _build(project, command)


def _build(project: Path, command: list[str]) -> str:
    for options in (["--offline"], []):
        maven = subprocess.run(
            [*command, *options],
            cwd=project,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if maven.returncode == 0:
            return (
                f"{project / 'target' / 'classes'}:{(project / 'target' / 'classpath').read_text().strip()}"
            )
    raise AssertionError(f"Maven can't compile {project}, or can't fetch its JARs:\n{maven.stdout}")
