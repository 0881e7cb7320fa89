"""Compiles the Java programs of the tests with Maven, and fetches the JARs that they need."""

import fcntl
import subprocess
import tempfile
from pathlib import Path

_MAVEN = ("mvn", "--quiet", "--batch-mode")
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
_JARS = Path(__file__).parents[1] / "build" / "jars"


def build(project: Path) -> str:
    """Compile a Maven project and return its class path; asks no repository for what is there already.

    The project's dependency plugin writes the JARs of its class path to `target/classpath`.
    """
    command = [*_MAVEN, "compile"]
    with (project / "pom.xml").open("rb") as only_one:
        # Test processes run side by side.
        fcntl.flock(only_one, fcntl.LOCK_EX)
        return _build(project, command)


def _build(project: Path, command: list[str]) -> str:
    _run(command, project)
    return f"{project / 'target' / 'classes'}:{(project / 'target' / 'classpath').read_text().strip()}"


def jar(coordinate: str) -> Path:
    """The JAR of `group:artifact:version` alone, likewise."""
    _, artifact, version = coordinate.split(":")
    found = _JARS / f"{artifact}-{version}.jar"
    if not found.is_file():
        _JARS.mkdir(parents=True, exist_ok=True)
        # As a whole, since test processes run side by side.
        with tempfile.TemporaryDirectory(dir=_JARS) as place:
            _run([*_MAVEN, _COPY, f"-Dartifact={coordinate}", f"-DoutputDirectory={place}"], _JARS)
            Path(place, found.name).replace(found)
    return found


def _run(command: list[str], place: Path) -> None:
    for options in (["--offline"], []):
        maven = subprocess.run(
            [*command, *options],
            cwd=place,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if maven.returncode == 0:
            return
    raise AssertionError(f"{' '.join(command)} fails in {place}, or can't fetch JARs:\n{maven.stdout}")
