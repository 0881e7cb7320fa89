"""Makes small mistakes in copies of the code, a fixed sample of them, and tells which ones no test notices.

Cosmic Ray makes the mistakes. Each is tried in a copy below build/mutants with those tests of its area that
run its line, until one fails: those without Spark first, and the shortest; with all of the area, if none
does, as of lines that run in processes of Spark alone. Only tests that `make test` runs count. Left out is
what means nothing by itself: annotations, constants that benchmarks chose, caches, frozen dataclasses,
`strict` of zip, `is` for `==`, what is no Python, and what `equivalent.py` lists.
"""

from __future__ import annotations

import argparse
import ast
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from difflib import unified_diff
from enum import Enum
from hashlib import sha256
from importlib import import_module
from itertools import islice
from pathlib import Path
from queue import Queue

import pytest
from cosmic_ray.commands.init import init
from cosmic_ray.mutating import MutationVisitor
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec

from tests.mutants.areas import AREAS, Area, shortfalls

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "mutants"
COPIES = 2
_PACKAGES = (
    *("service", "worker", "telemetry", "stores", "staging", "trust", "icestream", "conformance"),
    "tests",
)
_SLOW_IMPORTS = (
    "alembic.command",
    "fastapi",
    "hypothesis.strategies",
    "moto.server",
    "polars",
    "psycopg",
    "pyiceberg.catalog.glue",
    "pyiceberg.catalog.hive",
    "pyiceberg.catalog.rest",
    "pyiceberg.catalog.sql",
    "pypaimon",
    "pyspark.sql",
    "sqlmodel",
    "uvicorn",
)
"""Half of what a run of pytest takes. They are imported once, and each run forks from there."""
_FORK = multiprocessing.get_context("fork")
_SAME = re.compile(r"Eq_Is|Is_Eq|NotEq_IsNot|IsNot_NotEq|Is(Not)?_[LG]tE?|RemoveDecorator")
"""Changes nothing for None, enums and small numbers, or fails wherever it stands, as `<` of None does; or
changes only how fast it is, or how it is written."""
Position = tuple[int, int]


class Outcome(Enum):
    KILLED = "killed"
    HUNG = "hung"
    """And the same tests right after it, without the mistake, did not."""
    TIMED_OUT = "timed out"
    """As they did, on a busy machine: evidence of nothing."""
    SURVIVED = "survived"

    @property
    def is_noticed(self) -> bool:
        return self in (Outcome.KILLED, Outcome.HUNG)


@dataclass(frozen=True)
class Unchanged:
    """What the tests of an area do without a mistake."""

    seconds: dict[str, float]
    """By test."""
    on_spark: frozenset[str]
    """Tests that start a JVM first of all."""
    lines: dict[str, dict[int, list[str]]]
    """By module and line, the tests that run it."""

    @property
    def longest_seconds(self) -> float:
        return 60 + 2 * sum(self.seconds.values())

    def tests_of(self, mutation: MutationSpec) -> list[str]:
        """Those that run the line, first without Spark and the shortest; of a statement over many lines, what
        is noted is the first or one in its midst. Those that call the function, if it is one of its defaults;
        none if the line runs when the module is imported, which is the first test's to do."""
        lines = self.lines.get(str(mutation.module_path), {})
        within = _body(mutation)
        if within is None:
            return []
        begin, at = within.start, mutation.start_pos[0]
        runs_before = (line for line in lines if begin <= line <= at)
        line = max(runs_before, default=min((line for line in lines if line in within), default=0))
        tests = [test for test in lines.get(line, ()) if test in self.seconds]
        return sorted(tests, key=lambda test: (test in self.on_spark, self.seconds[test]))


@dataclass(frozen=True)
class Trial:
    area: Area
    mutation: MutationSpec
    tests: Sequence[str]
    longest_seconds: float


@dataclass(frozen=True)
class Result:
    outcome: Outcome
    diff: str
    by: str
    """The test that failed."""


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
        unchanged = dict(zip(areas, pool.map(_unchanged, areas), strict=True))
        trials = [
            Trial(
                area,
                mutation,
                unchanged[area].tests_of(mutation) or area.tests,
                unchanged[area].longest_seconds,
            )
            for area in areas
            for mutation in to_try(area, given.share)
        ]
        pending = {pool.submit(_try, trial): trial for trial in trials}
        results: list[tuple[Trial, Result]] = []
        for future in as_completed(pending):
            trial, result = pending[future], future.result()
            results.append((trial, result))
            _say(f"{len(results)} of {len(trials)} {result.outcome.value}: {_words(trial)} {result.by}")
    _report(areas, results)


def _report(areas: Sequence[Area], results: Sequence[tuple[Trial, Result]]) -> None:
    for trial, result in results:
        if not result.outcome.is_noticed:
            _say(f"\n{_words(trial)} {result.outcome.value}:\n{result.diff}")
    noticed = {}
    for area in areas:
        outcomes = [result.outcome for trial, result in results if trial.area is area]
        counts = Counter(outcomes)
        _say(f"{area.name}: " + ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome))
        noticed[area.name] = [outcome.is_noticed for outcome in outcomes]
    short = list(shortfalls(noticed))
    for sentence in short:
        _say(f"{sentence}.")
    sys.exit(bool(short))


def to_try(area: Area, share: float) -> list[MutationSpec]:
    """What the sample begins with, but for equivalent mutants. What is listed as one has to be one still."""
    possible = list(_possible(area))
    listed = {(one.module, one.line, one.mutated) for one in area.equivalent}
    lines = {(module, line) for module, line, _ in listed}
    here = {_change(one) for one in possible if (str(one.module_path), _line(one).strip()) in lines}
    if gone := listed - here:
        raise SystemExit(f"{area.name} has no such mutants any more, take them from equivalent.py: {gone}")
    chosen = islice(_sample(possible), round(area.sample * share))
    return [mutation for mutation in chosen if _change(mutation) not in listed]


def _sample(mutations: Sequence[MutationSpec]) -> Iterator[MutationSpec]:
    """One at each place, in an order by chance that is the same each time.

    It depends on nothing but the line itself: whatever changes elsewhere, the same ones are tried.
    """
    at: dict[tuple[str, str, int], list[MutationSpec]] = {}
    for mutation in mutations:
        line = _line(mutation)
        place = (str(mutation.module_path), line.lstrip(), mutation.start_pos[1] - len(line))
        at.setdefault(place, []).append(mutation)
    for place in sorted(at, key=_by_chance):
        # Of those that are the same in equal lines, the first.
        ordered = sorted(at[place], key=lambda one: one.occurrence)
        chosen = min(ordered, key=lambda one: _by_chance((place, one.operator_name, one.operator_args)))
        if _is_python(chosen):
            yield chosen


def _by_chance(what: object) -> bytes:
    return sha256(repr(what).encode()).digest()


def _line(mutation: MutationSpec) -> str:
    return str(mutation.module_path.read_text().splitlines()[mutation.start_pos[0] - 1])


def _possible(area: Area) -> Iterator[MutationSpec]:
    paths = sorted(path.relative_to(ROOT) for pattern in area.modules for path in ROOT.glob(pattern))
    with use_db(":memory:", WorkDB.Mode.create) as session:
        init(paths, session, {})
        found = [item.mutations[0] for item in session.work_items]
    written = {path: list(_meaningless((ROOT / path).read_text())) for path in paths}
    for mutation in found:
        operator = mutation.operator_name.removeprefix("core/").removeprefix("ReplaceComparisonOperator_")
        if not _SAME.fullmatch(operator) and not _is_within(mutation, written[mutation.module_path]):
            yield mutation


def _is_python(mutation: MutationSpec) -> bool:
    """Not so `if not x := y`; and of `x is "y"` Python warns. No test needs to find these."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            compile(_mutated(mutation), mutation.module_path, "exec")
        except SyntaxError:
            return False
    return True


def _mutated(mutation: MutationSpec) -> str:
    operator = get_operator(mutation.operator_name)(**mutation.operator_args)
    source = mutation.module_path.read_text()
    return str(MutationVisitor.mutate_code(source, operator, mutation.occurrence))


def _change(mutation: MutationSpec) -> tuple[str, str, str]:
    """Its module, the line that it changes, and what becomes of it."""
    changes = list(_diff(mutation.module_path.read_text(), _mutated(mutation), context_lines=0))[1:]
    before, after = ([line[1:].strip() for line in changes if line[0] == sign] for sign in "-+")
    return str(mutation.module_path), "\n".join(before), "\n".join(after)


def _diff(before: str, after: str, *, context_lines: int) -> Iterator[str]:
    lines = unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=context_lines)
    return islice(lines, 2, None)  # without the names of files


def _body(mutation: MutationSpec) -> range | None:
    """The lines of the body of the innermost function that a mutation is in."""
    at = mutation.start_pos[0]
    found = None
    for node in ast.walk(ast.parse(mutation.module_path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            if node.lineno <= at <= node.end_lineno:
                found = range(node.body[0].lineno, node.end_lineno + 1)  # those within come later
    return found


def _meaningless(source: str) -> Iterator[tuple[Position, Position]]:
    """Where annotations, aliases of types, constants, decorators and `strict` of zip stand."""
    module = ast.parse(source)
    for statement in module.body:
        if isinstance(statement, ast.Assign):
            yield _span(statement.value)
    for node in ast.walk(module):
        for name in ("annotation", "returns"):
            written = getattr(node, name, None)
            if isinstance(written, ast.expr):
                yield _span(written)
        for decorator in getattr(node, "decorator_list", ()):
            yield _span(decorator)
        if isinstance(node, ast.keyword) and node.arg == "strict":
            yield _span(node.value)


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
    subprocess.run([sys.executable, "-m", "compileall", "-qq", *_PACKAGES], cwd=copy, check=True)
    return copy


def _enter_copy(copies: Queue[Path]) -> None:
    copy = copies.get()
    os.chdir(copy)
    # Of a module that changes twice a second, Python would take the compiled one.
    os.environ |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.path.insert(0, str(copy))
    for name in _SLOW_IMPORTS:
        import_module(name)


def _pytest(*arguments: str, longest_seconds: float | None = None) -> tuple[int | None, str]:
    """Its exit code, unless it takes longer, and what it says."""
    said = Path("said.txt")
    process = _FORK.Process(target=_in_child, args=(arguments, said))
    process.start()
    process.join(longest_seconds)
    code = process.exitcode
    if code is None:
        assert process.pid is not None
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    return code, said.read_text()


def _in_child(arguments: Sequence[str], said: Path) -> None:
    os.setsid()  # so that what hangs can be ended with all that it started
    with said.open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    for name in [name for name in sys.modules if name.partition(".")[0] in _PACKAGES]:
        del sys.modules[name]  # these, and no others, come from the copy
    options = ("-x", "-q", "-m", "not thorough", "--tb=line", "-p", "tests.mutants.lines")
    # Starts a second sooner: without what no area needs, and without compiling the assertions of tests.
    without = (f"-pno:{plugin}" for plugin in ("cacheprovider", "cloudcoil", "schemathesis", "playwright"))
    code = pytest.main([*options, "--assert=plain", *without, *arguments])
    sys.stdout.flush()
    os._exit(code)


def _unchanged(area: Area) -> Unchanged:
    begun = time.monotonic()
    kept = BUILD / f"{area.name}.json"
    lines = (f"--lines-into={kept}", *(f"--lines-of={module}" for module in area.modules))
    code, said = _pytest(*lines, *area.tests)
    if code:
        raise SystemExit(f"The tests of {area.name} fail without a mutant:\n{said}")
    _say(f"{area.name}: its tests pass in {time.monotonic() - begun:.0f} s")
    written = json.loads(kept.read_text())
    # Else whoever can't name its tests would seem to have found each mutant.
    code, said = _pytest("--collect-only", *written["seconds"])
    if code:
        raise SystemExit(f"The tests of {area.name} can't be named one by one:\n{said}")
    run_by = {
        module: {int(line): tests for line, tests in by_line.items()}
        for module, by_line in written["lines"].items()
    }
    return Unchanged(written["seconds"], frozenset(written["on_spark"]), run_by)


def _try(trial: Trial) -> Result:
    module: Path = trial.mutation.module_path
    before, after = module.read_text(), _mutated(trial.mutation)
    module.write_text(after)
    code, said = _pytest(*trial.tests, longest_seconds=trial.longest_seconds)
    module.write_text(before)
    diff = "\n".join(_diff(before, after, context_lines=2))
    if code is None:
        code, _ = _pytest(*trial.tests, longest_seconds=trial.longest_seconds)
        return Result(Outcome.TIMED_OUT if code is None else Outcome.HUNG, diff, "")
    if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return Result(Outcome.SURVIVED, diff, "")
    failed = re.search(r"^(?:FAILED|ERROR) (tests/.*?)(?: - |$)", said, re.MULTILINE)
    return Result(Outcome.KILLED, diff, f"by {failed[1]}" if failed else "")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _words(trial: Trial) -> str:
    mutation = trial.mutation
    operator = mutation.operator_name.partition("/")[2]
    return f"{mutation.module_path}:{mutation.start_pos[0]} {operator}"


if __name__ == "__main__":
    main()
