"""The process of `icestream accept`: asks whether its plan is meant, tells its steps, writes the report."""

import argparse
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from py4j.java_gateway import JVMView
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from rich.console import Console
from rich.status import Status

from icestream.connection import Connection
from trust.locations import AmbiguousLocationError, parse_location
from worker.acceptance.earlier_runs import plan_clean_up
from worker.acceptance.lake import Lake
from worker.acceptance.report import ALL_PASSED, FAILED, Outcome, Report, Step
from worker.acceptance.run import Acceptance, Wanted, clean_up, problem_of, versions_here
from worker.acceptance.service import Service
from worker.process.redaction import Redaction
from worker.spark.session import create_spark
from worker.table.record_properties import secrets_of

_CALL_SECONDS = 120.0
"""How long a call waits for a service that is busy."""
_NAMESPACE = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")
_SIGNS = {
    Outcome.PASSED: ("ok", "green"),
    Outcome.FAILED: ("FAILED", "bold red"),
    Outcome.NOT_TRIED: ("--", "yellow"),
    Outcome.NOT_POSSIBLE: ("n/a", "yellow"),
}
_NEVER_BEGAN = 2
_DRIVER_MEMORY = "1g"
"""Of this process, whatever the workers have where it runs."""


class Progress:
    """A line for each step that has ended, and what goes on now where somebody looks.

    redaction: takes secrets out of every line. has_begun: something may have been made.
    """

    def __init__(self, console: Console) -> None:
        self.redaction, self.has_begun = Redaction(), False
        self._console, self._status, self._named = console, Status("", console=console), ""

    def say(self, text: str, style: str | None = None) -> None:
        with _nobody_has_to_look():
            told = self.redaction.text(text)
            self._console.print(told, style=style, highlight=False, markup=False, soft_wrap=True)

    def begins(self, step: Step) -> None:
        self._named, self.has_begun = f"{step.table}: {step.name}", True
        self.watch("")
        if self._console.is_terminal:
            with _nobody_has_to_look():
                self._status.start()

    def watch(self, said: str) -> None:
        with _nobody_has_to_look():
            self._status.update(f"{self._named} {said}".strip())

    def ended(self, step: Step) -> None:
        with _nobody_has_to_look():
            self._status.stop()
        sign, style = _SIGNS[step.outcome]
        self.say(f"{sign:>6}  {step.table:<6}  {step.seconds:5.1f} s  {step.name}: {_seen(step)}", style)


@contextmanager
def _nobody_has_to_look() -> Iterator[None]:
    """A terminal that was closed, or a signal amid a line, ends no removal."""
    with suppress(OSError, RuntimeError):
        yield


def _seen(step: Step) -> str:
    if (problem := step.problem) is None:
        return step.said
    return f"{problem.title} ({problem.code}). {problem.detail} {problem.remedy}".strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 if all passed, 1 if something failed, 2 if nothing began, 3 if not all was tried, and
    4 if it was stopped.
    """
    options = _options().parse_args(arguments)
    progress = Progress(Console(stderr=True))
    wanted, reports = _wanted(options, progress), [Path(one) for one in options.report]
    stopping = threading.Event()
    try:
        with Connection(wait_seconds=_CALL_SECONDS) as connection:
            service = Service(connection, stopping, progress.watch)
            record = service.catalog(wanted.catalog)  # before anything is started
            progress.redaction = Redaction(secrets_of(record["properties"]))
            progress.say("Starting Java ...")
            signals = _outlive_the_terminal()
            os.environ["ICESTREAM_DRIVER_MEMORY"] = _DRIVER_MEMORY
            spark = create_spark("local[1]", "icestream accept")
            spark.sparkContext.setLogLevel("ERROR")
            try:
                lake = Lake(_jvm(spark), record)
                return _run(options, wanted, reports, service, lake, spark, progress, signals)
            finally:
                spark.stop()
    except KeyboardInterrupt:
        _refuse(progress, "Stopped.")
    except PySparkRuntimeError as error:
        _refuse(progress, f"Java can't be started: {error}. Install Java 17 or newer, or set JAVA_HOME.")
    except Exception as error:  # whatever a catalog, a store or a library raises ends as a sentence
        problem = problem_of(error)
        progress.say(f"{problem.title}: {problem.detail} {problem.remedy}".strip(), "bold red")
        return FAILED if progress.has_begun else _NEVER_BEGAN


def _run(
    options: argparse.Namespace,
    wanted: Wanted,
    reports: Sequence[Path],
    service: Service,
    lake: Lake,
    spark: SparkSession,
    progress: Progress,
    signals: Sequence[signal.Signals],
) -> int:
    if options.clean_up:
        return confirm_and_clean_up(options, wanted.namespace, service, lake, progress, signals)
    acceptance = Acceptance(service, lake, wanted, progress.begins, progress.ended)
    for line in acceptance.plan():
        progress.say(line)
    if not options.yes:
        _make_sure(progress, "Nothing was made.")
    stop_on_signals(signals, service, progress)
    report = acceptance.go(versions_here(_jvm(spark), spark.version))
    are_written = [is_written(report, path, progress) for path in reports]
    progress.say(f"{report.verdict}, in {report.seconds:.0f} s.", "green" if report.exit_code == 0 else "red")
    return report.exit_code if all(are_written) else FAILED


def confirm_and_clean_up(
    options: argparse.Namespace,
    namespace: Sequence[str],
    service: Service,
    lake: Lake,
    progress: Progress,
    signals: Sequence[signal.Signals],
) -> int:
    plan = plan_clean_up(service, lake, namespace, options.run)
    for line in plan.stays:
        progress.say(line)
    if not plan.to_remove:
        progress.say("No run has left anything else there.")
        return ALL_PASSED
    progress.say(f"To be removed from namespace {'.'.join(namespace)} of catalog {lake.name}:")
    for one in plan.to_remove:
        progress.say(f"  {one.name}: {one.words}")
    if not options.yes:
        _make_sure(progress, "Nothing was removed.")
    stop_on_signals(signals, service, progress)
    service.stopping = threading.Event()  # nobody sets it: what is removed is waited for
    all_gone = clean_up(service, lake, namespace, plan.to_remove, progress.say)
    return ALL_PASSED if all_gone else FAILED


def _jvm(spark: SparkSession) -> JVMView:
    return spark.sparkContext._jvm


def _options() -> argparse.ArgumentParser:
    """As `icestream accept` hands them on."""
    parser = argparse.ArgumentParser(prog="icestream accept")
    parser.add_argument("--catalog", required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--location")
    parser.add_argument("--report", action="append", default=[])
    parser.add_argument("--run", action="append", default=[])
    for flag in ("--keep", "--yes", "--clean-up"):
        parser.add_argument(flag, action="store_true")
    return parser


def _wanted(options: argparse.Namespace, progress: Progress) -> Wanted:
    """Ends the process for what is no name, no place and no kind of report."""
    if not _NAMESPACE.fullmatch(options.namespace):
        _refuse(
            progress,
            f"--namespace {options.namespace!r}: write letters, digits and _, with dots between parts.",
        )
    if options.location is not None:
        try:
            parse_location(options.location)
        except AmbiguousLocationError as error:
            _refuse(progress, f"--location: {error}.")
    for one in options.report:
        if Path(one).suffix not in (".json", ".md"):
            _refuse(progress, f"--report {one}: end it with .json or .md.")
        if not Path(one).absolute().parent.is_dir():
            _refuse(progress, f"--report {one}: there is no such folder.")
        if Path(one).is_dir() or not os.access(
            one if Path(one).exists() else Path(one).absolute().parent, os.W_OK
        ):
            _refuse(progress, f"--report {one}: it can't be written there.")
    if options.run and not options.clean_up:
        _refuse(progress, "--run says whose tables --clean-up removes: give that, too.")
    return Wanted(options.catalog, options.namespace.split("."), options.location, options.keep)


def _refuse(progress: Progress, sentence: str) -> NoReturn:
    progress.say(sentence, "bold red")
    raise SystemExit(_NEVER_BEGAN)


def _make_sure(progress: Progress, otherwise: str) -> None:
    if not sys.stdin.isatty():
        _refuse(progress, f"Nobody can be asked whether that is meant: say so with --yes. {otherwise}")
    progress.say("Is that what you want? [y/N] ")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        _refuse(progress, otherwise)


def _outlive_the_terminal() -> Sequence[signal.Signals]:
    """Before Java starts, which inherits it: Java removes what was made. Returns what is to stop a run."""
    stops = [signal.SIGINT, signal.SIGTERM]
    if signal.signal(signal.SIGHUP, signal.SIG_IGN) is not signal.SIG_IGN:  # as under nohup
        stops.append(signal.SIGHUP)
    return stops


def stop_on_signals(signals: Sequence[signal.Signals], service: Service, progress: Progress) -> None:
    """The first one ends what waits, but no removal, which follows; the next one ends the process."""
    stopping = service.stopping  # of the steps: the removal has one of its own

    def stop(number: int, _: object) -> None:
        for one in signals:
            signal.signal(one, signal.SIG_DFL)
        stopping.set()
        progress.say(f"Stopping after {signal.Signals(number).name}: what was made is removed. Wait for it.")

    for one in signals:
        signal.signal(one, stop)


def is_written(report: Report, path: Path, progress: Progress) -> bool:
    try:
        write(report, path)
    except OSError as error:
        progress.say(f"{path} can't be written: {error}.", "bold red")
        return False
    return True


def write(report: Report, path: Path) -> None:
    path.write_text(report.to_json() if path.suffix == ".json" else report.to_markdown())


if __name__ == "__main__":
    sys.exit(main())
