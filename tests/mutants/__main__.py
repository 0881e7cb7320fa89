"""Makes small mistakes in copies of the code, a fixed sample of them, and tells which ones no test notices.

Cosmic Ray makes the mistakes. Each is tried in a copy below build/mutants with the tests of its area, of
those that `make test` runs, until one fails. Left out is what means nothing by itself: annotations, constants
that benchmarks chose, caches, and `is` for `==`.
"""

from __future__ import annotations

import argparse
import ast
import multiprocessing
import os
import random
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkResult

from tests.mutants.areas import AREAS, Area

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "mutants"
COPIES = 2
WANTED = 0.95
_SEED = 1
_SAME = ("Eq_Is", "Is_Eq", "NotEq_IsNot", "IsNot_NotEq", "RemoveDecorator")
"""Changes nothing for None, enums and small numbers; or only how fast it is, or how it is written."""
Position = tuple[int, int]


@dataclass(frozen=True)
class Trial:
    area: Area
    mutation: MutationSpec
    longest_seconds: float


def main() -> None:
    arguments = argparse.ArgumentParser(prog="make mutants")
    arguments.add_argument("areas", nargs="*", choices=[[], *(area.name for area in AREAS)])
    arguments.add_argument("--share", type=float, default=1.0, help="of the sample, such as 0.1")
    given = arguments.parse_args()
    areas = [area for area in AREAS if not given.areas or area.name in given.areas]
    shutil.rmtree(BUILD, ignore_errors=True)
    copies: Queue[Path] = multiprocessing.Manager().Queue()
    for number in range(COPIES):
        copies.put(_copy(number))
    with ProcessPoolExecutor(COPIES, initializer=_enter_copy, initargs=(copies,)) as pool:
        seconds = dict(zip(areas, pool.map(_unchanged, areas), strict=True))
        trials = [
            Trial(area, mutation, 60 + 4 * seconds[area])
            for area in areas
            for mutation in sample(area, round(area.sample * given.share))
        ]
        pending = {pool.submit(_try, trial): trial for trial in trials}
        survivors = []
        for done, future in enumerate(as_completed(pending), 1):
            trial, result = pending[future], future.result()
            if result.test_outcome is TestOutcome.SURVIVED:
                survivors.append((trial, result))
            _say(f"{done} of {len(trials)}, {len(survivors)} survived: {_words(trial)}")
    for trial, result in survivors:
        _say(f"\n{_words(trial)} survived:\n{result.diff}")
    killed = len(trials) - len(survivors)
    for area in areas:
        mine = [trial for trial in trials if trial.area is area]
        left = sum(trial.area is area for trial, _ in survivors)
        _say(f"{area.name}: {len(mine) - left} of {len(mine)} were killed")
    _say(f"{killed} of {len(trials)} mutants were killed; at least {WANTED:.0%} have to be.")
    sys.exit(killed < WANTED * len(trials))


def sample(area: Area, size: int) -> list[MutationSpec]:
    """Mutations at `size` places of the area's modules, the same ones each time."""
    paths = sorted(path.relative_to(ROOT) for pattern in area.modules for path in ROOT.glob(pattern))
    with use_db(":memory:", WorkDB.Mode.create) as session:
        init(paths, session, {})
        found = [item.mutations[0] for item in session.work_items]
    written = {path: list(_meaningless((ROOT / path).read_text())) for path in paths}
    at: dict[tuple[Path, Position], list[MutationSpec]] = {}
    for mutation in found:
        if mutation.operator_name.endswith(_SAME) or _is_within(mutation, written[mutation.module_path]):
            continue
        at.setdefault((mutation.module_path, mutation.start_pos), []).append(mutation)
    chance = random.Random(_SEED)
    places = chance.sample(sorted(at), min(size, len(at)))
    return [
        chance.choice(sorted(at[place], key=lambda one: (one.operator_name, one.occurrence)))
        for place in places
    ]


def _meaningless(source: str) -> Iterator[tuple[Position, Position]]:
    """Where annotations, aliases of types and constants stand."""
    module = ast.parse(source)
    for statement in module.body:
        if isinstance(statement, ast.Assign):
            yield _span(statement.value)
    for node in ast.walk(module):
        for name in ("annotation", "returns"):
            written = getattr(node, name, None)
            if isinstance(written, ast.expr):
                yield _span(written)


def _span(node: ast.expr) -> tuple[Position, Position]:
    assert node.end_lineno is not None and node.end_col_offset is not None  # noqa: PT018
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def _is_within(mutation: MutationSpec, spans: Sequence[tuple[Position, Position]]) -> bool:
    return any(start <= mutation.start_pos < end for start, end in spans)


def _copy(number: int) -> Path:
    """What git knows of, as it is staged, with everything compiled: the tests compile nothing then."""
    copy = BUILD / str(number)
    subprocess.run(["git", "checkout-index", "--all", f"--prefix={copy}/"], cwd=ROOT, check=True)
    (copy / ".venv").symlink_to(ROOT / ".venv")
    packages = ("service", "worker", "telemetry", "stores", "trust", "icestream", "tests")
    subprocess.run([sys.executable, "-m", "compileall", "-qq", *packages], cwd=copy, check=True)
    return copy


def _enter_copy(copies: Queue[Path]) -> None:
    copy = copies.get()
    os.chdir(copy)
    os.environ["PYTHONPATH"] = str(copy)


def _command(area: Area) -> str:
    options = ("-x", "-q", "-m", "not thorough", "-p", "no:cacheprovider")
    return shlex.join((sys.executable, "-m", "pytest", *options, *area.tests))


def _unchanged(area: Area) -> float:
    """Seconds that the tests of an area take without a mistake."""
    begun = time.monotonic()
    ran = subprocess.run(shlex.split(_command(area)), capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"The tests of {area.name} fail without a mutant:\n{ran.stdout}{ran.stderr}")
    seconds = time.monotonic() - begun
    _say(f"{area.name}: its tests pass in {seconds:.0f} s")
    return seconds


def _try(trial: Trial) -> WorkResult:
    return mutate_and_test([trial.mutation], _command(trial.area), trial.longest_seconds)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _words(trial: Trial) -> str:
    mutation = trial.mutation
    operator = mutation.operator_name.partition("/")[2]
    return f"{mutation.module_path}:{mutation.start_pos[0]} {operator}"


if __name__ == "__main__":
    main()
