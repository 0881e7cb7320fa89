"""`make soak`: runs histories and goes on after failures; exit code 1 if there were any."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from tests.factories import spark_session
from tests.soak.seeds import ERASURES, REWRITINGS, TABLES, WRITES, run_seed, shrink
from tests.soak.world import World
from tests.writers.history import WRITERS
from tests.writers.served import Served

PROGRESS_SECONDS = 5.0


def main() -> int:
    arguments = _arguments()
    failed: list[int] = []
    kind = arguments.kind
    with tempfile.TemporaryDirectory(prefix="icestream-soak-") as directory, ExitStack() as services:
        spark = spark_session()
        spark.sparkContext.setLogLevel("ERROR")
        of_tables = World.create(spark, Path(directory))
        world: World | Served = of_tables
        if kind is WRITERS:
            world = services.enter_context(Served.serving(of_tables))
        seeds = iter(arguments.seed) if arguments.seed else count(arguments.start)
        until = time.monotonic() + arguments.minutes * 60 if arguments.minutes else None
        started = told = time.monotonic()
        done = 0
        for seed in seeds:
            failure = run_seed(world, seed, kind)
            done += 1
            if failure is not None:
                failed.append(seed)
                _say(str(failure))
                cause = failure.error.cause
                if not isinstance(cause, AssertionError):
                    _say("".join(traceback.format_tb(cause.__traceback__)[-4:]))
                if not arguments.no_shrinking:
                    _say(shrink(world, failure))
            now = time.monotonic()
            if now - told >= PROGRESS_SECONDS:
                told = now
                told_of = f"{done:,} histories{_disturbances(world)} in {now - started:.0f} s"
                _say(f"{told_of}, last seed {seed}, {len(failed)} failed")
            if until is not None and now >= until:
                break
            if until is None and not arguments.seed and done >= arguments.histories:
                break
        services.close()
        spark.stop()
    told_of = f"{done:,} histories{_disturbances(world)}, {len(failed)} failed"
    _say(told_of + (f": seeds {failed}" if failed else ""))
    return 1 if failed else 0


def _disturbances(world: World | Served) -> str:
    """In how many places somebody came in between a job, or it died."""
    return f" with {world.disturbances:,} disturbances" if isinstance(world, Served) else ""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--seed", type=int, action="append", help="replay this seed (may be repeated)")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--minutes", type=float, help="run for so long, instead of a number of histories")
    kinds = parser.add_mutually_exclusive_group()
    for kind, about in (
        (WRITES, "histories that are about writes by key"),
        (WRITERS, "histories of several writers by key, through the service"),
        (ERASURES, "histories that are about erasures"),
        (REWRITINGS, "histories that are about maintenance: rewritings, expiry and orphan files"),
    ):
        kinds.add_argument(
            kind.argument, dest="kind", action="store_const", const=kind, default=TABLES, help=about
        )
    parser.add_argument("--no-shrinking", action="store_true")
    return parser.parse_args()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
