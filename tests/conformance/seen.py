"""What the readers here make of the suite, as it is checked in: `make conformance` writes it anew.

python -m tests.conformance.seen [READER ...]
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from conformance.readers import spark
from conformance.readers.flink import PROGRAM
from worker.spark.jars import cached_jars, jars_folder

ROOT = Path(__file__).parents[2]
SEEN = ROOT / "conformance" / "seen"
PAGE = ROOT / "docs" / "conformance.md"
BEGIN, END = "<!-- deviations: written by `make conformance` -->", "<!-- end of deviations -->"
_LISTED = 8  # readings that one line of the page names

Outcomes = dict[str, tuple[str, str]]


def command(name: str, environment: Mapping[str, str]) -> str:
    """The reader as it runs here: Spark gets Iceberg's runtime that is on this machine."""
    if name != "spark":
        return name
    (jar,) = [path for path in cached_jars(jars_folder(environment)) if "iceberg-spark-runtime" in path.name]
    return f"spark {jar}"


def seen(name: str) -> Outcomes:
    """Of each reading that the reader did not pass, what became of it; of rows, which."""
    return outcomes(json.loads((SEEN / f"{name}.json").read_text()))


def outcomes(report: Mapping[str, Any]) -> Outcomes:
    """The words of errors are the reader's own, and not always the same."""
    return {
        reading: (told["outcome"], told["reason"] if told["outcome"] == "deviates" else "")
        for reading, told in report["others"].items()
    }


def versions() -> dict[str, str]:
    pom = (PROGRAM / "pom.xml").read_text()
    (flink,) = re.findall(r"<flink.version>([\d.]+)<", pom)
    (iceberg,) = re.findall(r"<artifactId>iceberg-flink-runtime[^<]*</artifactId>\s*<version>([\d.]+)<", pom)
    return {
        "pyiceberg": f"PyIceberg {version('pyiceberg')}",
        "duckdb": f"DuckDB {version('duckdb')}",
        "spark": f"Spark {version('pyspark')}, Iceberg {spark.RUNTIME.rpartition(':')[2]}",
        "flink": f"Flink {flink}, Iceberg {iceberg}",
    }


def render() -> str:
    """The part of the page between its marks."""
    parts = []
    for name, title in versions().items():
        report = json.loads((SEEN / f"{name}.json").read_text())
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(report["counts"].items()))
        parts.append(f"### {title}\n\nOf {sum(report['counts'].values())} tables: {counts}.\n")
        rows = _lines(report["others"])
        if rows:
            parts.append("| outcome | what it says, or shows and lacks | of |\n|---|---|---|\n" + rows)
    return "\n".join(parts)


def _lines(others: Mapping[str, Mapping[str, str]]) -> str:
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for reading, told in others.items():
        groups[told["outcome"], told["reason"]].append(reading)
    return "".join(
        f"| {outcome} | {_escaped(reason)} | {_named(readings)} |\n"
        for (outcome, reason), readings in sorted(groups.items(), key=lambda one: (one[0][0], one[1][0]))
    )


def _named(readings: list[str]) -> str:
    if len(readings) > _LISTED:
        states = sorted({reading.rpartition("/")[2] for reading in readings})
        return f"{len(readings)} tables, {' and '.join(states)}"
    cases: dict[str, list[str]] = defaultdict(list)
    for reading in readings:
        name, _, rest = reading.partition("/")
        cases[name].append(rest.replace("/", " "))
    return "; ".join(f"`{name}` {', '.join(of)}" for name, of in cases.items())


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def page() -> str:
    """The page with that part as it must be."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n\n{render()}\n{END}{rest.partition(END)[2]}"


def main(names: list[str]) -> None:
    for name in names or versions():
        run = ["conformance", "--reader", command(name, os.environ), "--report", str(SEEN / f"{name}.json")]
        subprocess.run([str(Path(sys.executable).with_name("icestream")), *run], check=False)
    PAGE.write_text(page())


if __name__ == "__main__":
    main(sys.argv[1:])
