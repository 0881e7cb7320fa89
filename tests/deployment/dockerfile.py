"""Reads a Dockerfile, and does what its build stage says in a folder of its own, without containers."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tests.deployment.chart import ROOT
from tests.patience import PATIENCE_SECONDS

FOLDER = ROOT / "docker"


@dataclass(frozen=True)
class Instruction:
    keyword: str
    text: str

    @property
    def words(self) -> list[str]:
        return self.text.split()


@dataclass(frozen=True)
class Stage:
    base: str
    name: str
    instructions: list[Instruction]

    def all(self, keyword: str) -> list[Instruction]:
        return [one for one in self.instructions if one.keyword == keyword]

    @property
    def environment(self) -> dict[str, str]:
        return {name: value for one in self.all("ENV") for name, value in variables(one).items()}


@dataclass(frozen=True)
class Dockerfile:
    arguments: dict[str, str]
    stages: list[Stage]

    def stage(self, name: str) -> Stage:
        return next(stage for stage in self.stages if stage.name == name)

    @property
    def final(self) -> Stage:
        return self.stages[-1]


def variables(instruction: Instruction) -> dict[str, str]:
    parts = (word.partition("=") for word in instruction.words)
    return {name: value for name, _, value in parts}


def read(name: str) -> Dockerfile:
    text = re.sub(r"^#.*\n", "", (FOLDER / f"{name}.Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    instructions = [Instruction(*line.split(maxsplit=1)) for line in lines if line.strip()]
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for one in instructions:
        if one.keyword == "FROM":
            base, _, name = one.text.partition(" AS ")
            stages.append(Stage(base, name, []))
        elif stages:
            stages[-1].instructions.append(one)
        else:
            assert one.keyword == "ARG"
            name, _, value = one.text.partition("=")
            arguments[name] = value
    return Dockerfile(arguments, stages)


def build(
    stage: Stage,
    into: Path,
    *,
    arguments: Mapping[str, str] = MappingProxyType({}),
    path: Sequence[Path] = (),
    java_home: Path | None = None,
) -> None:
    """Runs a stage's instructions with `into` in the place of `/`, for folders that the stage itself makes.

    arguments: of the file, which the stage may ask for. path: comes first on PATH, as what the base image
    brings. java_home: stands for the JRE that is copied.
    """
    environment = os.environ | {"PATH": ":".join([*map(str, path), os.environ["PATH"]])}
    directory = into

    def inside(text: str) -> str:
        text = text.replace("/opt/java/openjdk", str(java_home))
        return re.sub(r"(?<![\w.])(?=/(?:opt/icestream|src|wheels)\b)", str(into), text)

    for one in stage.instructions:
        match one.keyword:
            case "ARG":
                environment |= {one.text: arguments[one.text]}
            case "ENV":
                environment |= {name: inside(value) for name, value in variables(one).items()}
            case "WORKDIR":
                directory = Path(inside(one.text))
                directory.mkdir(parents=True, exist_ok=True)
            case "COPY" if not one.text.startswith("--from="):
                *sources, target = one.words
                for source in sources:
                    if (ROOT / source).is_dir():
                        shutil.copytree(ROOT / source, directory / target, dirs_exist_ok=True)
                    else:
                        (directory / target).mkdir(parents=True, exist_ok=True)
                        shutil.copy(ROOT / source, directory / target)
            case "RUN":
                done = subprocess.run(
                    ["sh", "-euc", inside(one.text)],
                    cwd=directory,
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=PATIENCE_SECONDS,
                )
                assert done.returncode == 0, f"{one.text}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
