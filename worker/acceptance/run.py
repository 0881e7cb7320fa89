"""One run of an acceptance: what it will make, its steps in order, and the removal of what it has made.

Invariant: whatever happens, what was made is removed, unless it is to be kept; and what could not be removed
is told, and is a failure.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from uuid import uuid4

from py4j.java_gateway import JVMView

from icestream.errors import IcestreamError, NotFoundError, ProblemError
from telemetry.plurals import counted
from trust.locations import is_table_bucket
from worker.acceptance import checks
from worker.acceptance.checks import Check
from worker.acceptance.earlier_runs import TableOfRun, is_of_run, plan_clean_up, remove, remove_namespace
from worker.acceptance.lake import PLACES_ARE_GIVEN, Lake, LakeError, NotOursError, lake_error_of
from worker.acceptance.report import Outcome, Problem, Report, Requests, Step
from worker.acceptance.service import JobEndedError, Service, StoppedError
from worker.acceptance.trial import NotPossibleError, NotTriedError, Trial, WrongError, WrongRowsError
from worker.process.redaction import Redaction

ALL = "all"
"""The name, in the report, of what is about no single table."""
_COMPARED = 100
"""So many tables of others are opened before and after; of more, only the names are compared."""
_BY_REGION, _PLAIN = ("order_id", "region"), ("order_id",)


@dataclass(frozen=True)
class Wanted:
    """What somebody asks for. location: a prefix for the tables; None for where the catalog puts them."""

    catalog: str
    namespace: list[str]
    location: str | None = None
    keep: bool = False


@dataclass
class Acceptance:
    """step_begins, step_done: are told each step. of_earlier_runs: tables that are left of these."""

    service: Service
    lake: Lake
    wanted: Wanted
    step_begins: Callable[[Step], None] = lambda _: None
    step_done: Callable[[Step], None] = lambda _: None
    run: str = field(default_factory=lambda: f"a{datetime.now(UTC):%Y%m%d_%H%M%S}_{uuid4().hex[:6]}")
    trials: list[Trial] = field(init=False)
    report: Report = field(init=False)
    of_earlier_runs: list[str] = field(init=False)
    _namespace_was_there: bool = field(init=False)
    _has_made_namespace: bool = field(init=False, default=False)
    _tables_before: set[str] = field(init=False)
    _states_before: dict[str, tuple[str, str] | None] = field(init=False)
    _redaction: Redaction = field(init=False)
    _rows_are_wrong: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Looks at what is there. Raises LakeError and IcestreamError."""
        lake, wanted = self.lake, self.wanted
        if lake.is_s3_tables and wanted.location is not None:
            raise LakeError("S3 Tables puts each table into a bucket of its own.", PLACES_ARE_GIVEN)
        self._namespace_was_there = lake.has_namespace(wanted.namespace)
        self._tables_before = {one for one in lake.table_names(wanted.namespace) if not is_of_run(one)}
        compared = sorted(self._tables_before)[:_COMPARED]
        self._states_before = {name: lake.state_of([*wanted.namespace, name]) for name in compared}
        self.of_earlier_runs = [
            one.name for one in plan_clean_up(self.service, lake, wanted.namespace).to_remove
        ]
        self.trials = [
            self._trial("v2", 2, _BY_REGION),
            self._trial("v3", 3, _PLAIN),
            self._trial("faults", 2, _PLAIN),  # which all catalogs have
        ]
        self._redaction = Redaction(lake.secrets)
        self.report = Report(
            run=self.run,
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            service=self.service.url,
            catalog=lake.name,
            catalog_type=lake.type,
            store="",
            namespace=".".join(wanted.namespace),
        )

    def _trial(self, name: str, format_version: int, key: tuple[str, ...]) -> Trial:
        table = f"{self.run}_{name}"
        place = None if self.wanted.location is None else f"{self.wanted.location.rstrip('/')}/{table}"
        return Trial(
            lake=self.lake,
            service=self.service,
            mark=self.run,
            name=name,
            identifier=[*self.wanted.namespace, table],
            format_version=format_version,
            key=key,
            by_region=key == _BY_REGION,
            wanted_location=place,
        )

    def plan(self) -> list[str]:
        """In words, a line each: what will be made, and what becomes of it."""
        namespace = ".".join(self.wanted.namespace)
        there = "which is there" if self._namespace_was_there else "which will be made"
        names = ", ".join(trial.identifier[-1] for trial in self.trials)
        place = self.wanted.location or "where the catalog puts them"
        end = "They stay (--keep)." if self.wanted.keep else "All of it is removed at the end."
        lines = [
            f"Service {self.service.url}, catalog {self.lake.name} ({self.lake.type}).",
            f"Tables in namespace {namespace}, {there}: {names}.",
            f"Their files: {place}. Their indexes: in the index warehouse of the catalog.",
            f"A few hundred rows each, through all kinds of jobs. {end}",
        ]
        if self.of_earlier_runs:
            found = ", ".join(self.of_earlier_runs)
            lines.append(f"Earlier runs have left {found}: `icestream accept --clean-up` removes that.")
        return lines

    # steps

    def go(self, versions: dict[str, str]) -> Report:
        """Through all steps, and the removal. versions: of what runs here."""
        started, report = time.monotonic(), self.report
        report.versions, report.not_counted = versions, _not_counted(self.lake)
        try:
            if self._try(ALL, "workers", self._workers) is Outcome.PASSED:
                self._try(ALL, "catalog, as the service sees it", self._catalog)
                if self._try(ALL, "namespace", self._make_namespace) is Outcome.PASSED:
                    for trial in self.trials:
                        self._go_through(trial)
        except StoppedError:
            report.stopped = True
        finally:
            for trial in self.trials:
                if all(step.table != trial.name for step in report.steps):
                    self._leave(trial, _checks_of(trial), "The run did not get there.")
            self.service.stopping = threading.Event()  # nobody sets it: what is removed is waited for
            if not self.wanted.keep:
                self._remove_all()
            report.seconds = round(time.monotonic() - started, 3)
            report.requests = self._requests_since({})
        return report

    def _go_through(self, trial: Trial) -> None:
        wanted = _checks_of(trial)
        for at, check in enumerate(wanted):
            try:
                outcome = self._try(trial.name, check.name, partial(_looked_at, check, trial))
            except StoppedError:
                self._leave(trial, wanted[at + 1 :], "The run was stopped.")
                raise
            if (place := trial.location) and not self.report.store:
                self.report.store = place if is_table_bucket(place) else place.rpartition("/")[0]
            why, left = f"It rests on `{check.name}`, which", wanted[at + 1 :]
            if check.essential and outcome is Outcome.NOT_POSSIBLE:
                self._leave(trial, left, f"{why} is not possible here.", outcome)
                return
            if outcome is Outcome.FAILED and (check.essential or self._rows_are_wrong):
                self._leave(trial, left, f"{why} failed.")
                return

    def _leave(
        self, trial: Trial, left: Iterable[Check], why: str, outcome: Outcome = Outcome.NOT_TRIED
    ) -> None:
        self.report.steps += [Step(trial.name, check.name, outcome, why) for check in left]

    def _try(self, table: str, name: str, act: Callable[[], str]) -> Outcome:
        """One step. act: returns what was seen. Raises StoppedError."""
        step, started, before = Step(table, name), time.monotonic(), self._requests()
        self.report.steps.append(step)
        self.step_begins(step)
        self.service.jobs, self._rows_are_wrong = [], False
        try:
            if self.service.stopping.is_set():
                raise StoppedError
            step.said, step.outcome = act(), Outcome.PASSED
        except StoppedError:
            step.said = "The run was stopped."
            raise
        except NotTriedError as error:
            step.said = str(error)
        except NotPossibleError as error:
            step.said, step.outcome = str(error), Outcome.NOT_POSSIBLE
        except Exception as error:  # of a catalog, a store or a library: each is what the run is to find
            step.outcome, step.problem = Outcome.FAILED, problem_of(error)
            self._rows_are_wrong = isinstance(error, WrongRowsError)
        finally:
            step.seconds = round(time.monotonic() - started, 3)
            step.requests = self._requests_since(before)
            step.jobs = self.service.jobs
            self._hide_secrets(step)
            self.step_done(step)
        return step.outcome

    def _requests(self) -> Requests:
        return {
            "service": dict(self.service.requests),
            "catalog": dict(self.lake.requests),
            "store": dict(self.lake.of_store),
        }

    def _requests_since(self, before: Requests) -> Requests:
        now = self._requests()
        made = {whom: Counter(kinds) - Counter(before.get(whom)) for whom, kinds in now.items()}
        return {whom: dict(kinds) for whom, kinds in made.items() if kinds}

    def _hide_secrets(self, step: Step) -> None:
        text = self._redaction.text
        step.said = text(step.said)
        if (problem := step.problem) is not None:
            step.problem = replace(
                problem, title=text(problem.title), detail=text(problem.detail), remedy=text(problem.remedy)
            )

    def _workers(self) -> str:
        service = self.service
        self.report.versions["service"] = str(service.get("/system")["version"])
        me = service.get("/me")
        alive = service.items("/workers", alive="true")
        if not alive:
            raise WrongError("No worker is alive: start one that has what the catalog's record refers to.")
        self.report.versions["workers"] = ", ".join(sorted({str(one["version"]) for one in alive}))
        if me["role"] not in ("operator", "admin"):
            raise WrongError(f"The API key has the role {me['role']}: an acceptance needs operator or admin.")
        return f"{counted(len(alive), 'worker')}, alive. The API key has the role {me['role']}."

    def _catalog(self) -> str:
        found = self.service.post(f"/catalogs/{self.service.catalog(self.lake.name)['id']}/check")
        if not found["ok"]:
            said, remedy = found["explanation"], found["remedy"] or ""
            raise JobEndedError(Problem("catalog_check", "The catalog's check fails", said, remedy))
        return str(found["explanation"])

    def _make_namespace(self) -> str:
        lake, namespace = self.lake, self.wanted.namespace
        if lake.has_namespace(namespace):
            self._namespace_was_there = True  # somebody may have made it since the run looked first
            return "It was there."
        lake.create_namespace(namespace, self.run)
        self._has_made_namespace = True
        return "It was made."

    # removal

    def _remove_all(self) -> None:
        for trial in self.trials:
            self._try(ALL, f"remove {trial.name}", partial(self._remove, trial))
        self._try(ALL, "all is as before", self._as_before)

    def _remove(self, trial: Trial) -> str:
        """Raises what stands in the way, once all has been tried."""
        if trial.table_uuid is None and not self.lake.has_table(trial.identifier):
            return "It was not made."
        parts = (self._forget, self._drop, self._clear, self._look_for_index)
        errors = [error for part in parts if (error := _error_of(part, trial)) is not None]
        if errors:
            raise errors[0]
        return "Enrolment, index, table and files are gone."

    def _forget(self, trial: Trial) -> None:
        """The enrolment, with its jobs, and the index."""
        if trial.table_id is None:
            return
        try:
            job = self.service.delete(f"/tables/{trial.table_id}", drop_index="true", leave_staged="true")
        except NotFoundError:
            return
        if job is not None:
            self.service.result_of(job)

    def _drop(self, trial: Trial) -> None:
        if trial.is_dropped:
            return
        if not self.lake.has_table(trial.identifier):
            raise NotOursError(
                f"{'.'.join(trial.identifier)} is not in the catalog, and the run has not dropped it. It may"
                f" have another name by now, so its files stay: {trial.location}."
            )
        trial.drop()

    def _clear(self, trial: Trial) -> None:
        """Files in its place that are left once the table is gone: there were none before the table."""
        storage, place = trial.kept_storage, trial.location
        if storage is None or place is None or not trial.is_dropped or is_table_bucket(place):
            return
        self.lake.clear(storage, place)

    def _look_for_index(self, trial: Trial) -> None:
        warehouse, table_uuid = trial.index_warehouse, trial.table_uuid
        if warehouse is None or table_uuid is None:
            return
        storage = trial.kept_storage or trial.storage()
        if found := self.lake.index_databases(storage, warehouse, table_uuid):
            raise WrongError(f"Its index is still there: {warehouse}/{found[0]}.db.")

    def _as_before(self) -> str:
        lake, wanted = self.lake, self.wanted
        tables = lake.table_names(wanted.namespace)
        if own := {trial.identifier[-1] for trial in self.trials} & tables:
            raise WrongError(f"{min(own)} is still in the catalog.")
        others = self._others(tables)
        if self._has_made_namespace and not tables and lake.has_namespace(wanted.namespace):
            lake.drop_namespace(wanted.namespace)
        there = lake.has_namespace(wanted.namespace)
        if there and self._has_made_namespace and not tables:
            raise WrongError(f"Namespace {'.'.join(wanted.namespace)} is still there.")
        enrolled = self.service.items("/tables", catalog=lake.name, namespace=".".join(wanted.namespace))
        if own := {one["identifier"][-1] for one in enrolled} & {t.identifier[-1] for t in self.trials}:
            raise WrongError(f"{min(own)} is still enrolled.")
        if there and self._has_made_namespace:
            return f"The namespace has {counted(len(tables), 'table')} of somebody else by now, so it stays."
        return others if there else "The namespace is gone, as before."

    def _others(self, tables: Collection[str]) -> str:
        """What has become of tables that were there before; others may write to them meanwhile.

        tables: of now. Raises WrongError for one that is gone or is another one.
        """
        namespace, changed = self.wanted.namespace, []
        if gone := self._tables_before.difference(tables):
            raise WrongError(f"{min(gone)} was there before and is gone. This run has not touched it.")
        for name, before in self._states_before.items():
            now = self.lake.state_of([*namespace, name])
            if before is None or now == before:
                continue
            if now is None or now[0] != before[0]:
                what = "can't be opened any more" if now is None else "is another table than before"
                raise WrongError(f"{name} {what}. This run has not touched it.")
            changed.append(name)
        by_name = len(self._tables_before) - len(self._states_before)
        said = f"The namespace has {counted(len(self._tables_before), 'table')} of others, as before."
        if by_name:
            said += f" {by_name} of them were compared by their names alone."
        if changed:
            said += f" Somebody else has committed to {', '.join(changed)} meanwhile."
        return said


def _checks_of(trial: Trial) -> Sequence[Check]:
    return checks.FAULTS if trial.name == "faults" else checks.checks_of(trial.format_version)


def _error_of(part: Callable[[Trial], None], trial: Trial) -> Exception | None:
    """What stands in the way of a part; the others are to be tried, too."""
    try:
        part(trial)
    except Exception as error:
        return error
    return None


def _looked_at(check: Check, trial: Trial) -> str:
    """What a check has seen, and all rows after it."""
    try:
        said = check.run(trial)
    except LakeError as error:
        if error.is_unsupported and not check.essential:
            raise NotPossibleError(str(error)) from error
        raise
    if not check.compares:
        return said
    try:
        return f"{said} {trial.compare()}"
    except WrongRowsError:
        raise
    except Exception as error:
        raise WrongRowsError(f"The rows can't be read: {problem_of(error).detail}") from error


def clean_up(
    service: Service,
    lake: Lake,
    namespace: Sequence[str],
    tables: Sequence[TableOfRun],
    say: Callable[[str], None],
) -> bool:
    """Says of each what came of it. False if one is still there."""
    all_gone = True
    for one in tables:
        try:
            remove(one, service, lake, namespace)
            say(f"{one.name} is gone{one.what_may_be_left}.")
        except Exception as error:  # the others are to be removed, too
            all_gone = False
            problem = problem_of(error)
            say(f"{one.name} could not be removed: {problem.detail} {problem.remedy}".strip())
    try:
        if remove_namespace(lake, namespace):
            say(f"Namespace {'.'.join(namespace)}, which a run has made, is gone.")
    except LakeError as error:
        all_gone = False
        say(f"Namespace {'.'.join(namespace)} could not be removed: {error}")
    return all_gone


def _not_counted(lake: Lake) -> list[str]:
    """Whose requests the report has no number of, a sentence each."""
    said = [
        "What the workers and the service ask of the catalog and the store. Of each job, the report has the"
        " bytes and the stages.",
        "What Iceberg's Java reads and writes in the store for this command: metadata, manifests, the rows of"
        " its reader. Nor what PyIceberg reads.",
        "How many requests an operation on a file takes: a file that is opened may be read by parts.",
    ]
    if lake.type != "rest":
        said.append(
            f"Requests to the catalog, which Iceberg's client for {lake.type} makes by itself. What is told"
            " is how often it was called; commits of tables are not among that."
        )
    return said


def versions_here(jvm: JVMView, spark: str) -> dict[str, str]:
    """Of what runs in this process."""
    iceberg = jvm.org.apache.iceberg.IcebergBuild
    return {
        "icestream": version("icestream"),
        "iceberg": str(iceberg.version()),
        "spark": spark,
        "java": str(jvm.java.lang.System.getProperty("java.version")),
        "pyiceberg": version("pyiceberg"),
    }


def problem_of(error: Exception) -> Problem:
    """Why a step failed, in the words of who knows it."""
    match error:
        case JobEndedError():
            return error.problem
        case ProblemError():
            code = error.type.rpartition("/")[2] or str(error.status)
            title = error.title or f"The service answered {error.status}"
            return Problem(code, title, error.detail, error.remedy)
        case IcestreamError():
            return Problem("service", "The service can't be asked", error.detail, error.remedy)
        case WrongRowsError():
            return Problem(
                "wrong_rows",
                "A reader does not show the rows that were written",
                str(error),
                "Run with --keep, and compare the table with what the jobs say that they did.",
            )
        case WrongError():
            return Problem("not_as_it_must_be", "What was looked at is not as it must be", str(error))
        case LakeError():
            return error.problem
        case NotOursError():
            return Problem("not_ours", "It is not what this run has made", str(error))
    if (said := lake_error_of(error, of_catalog=True)) is not None:
        return said.problem
    words = f"{type(error).__name__}: {error}"
    return Problem("unexpected", "An error that nobody foresaw", words, "Report it with this text.")
