"""The worker's only HTTP: claims jobs, keeps their lease, reports. The OpenAPI document is the contract.

Invariant: every report names its attempt; after a StaleAttemptError the attempt is no longer the job's, and
nothing more is done in its name.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, NamedTuple, TypeVar

import httpx
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from telemetry.logs import add_process_ids
from telemetry.traces import HEADER, current_traceparent
from trust.egress import Egress
from worker.io.storage import ALLOWED_LOCATIONS, OWN_FILES
from worker.process.errors import OutOfMemoryError, SparkEndedError
from worker.process.redaction import Redaction

log = logging.getLogger(__name__)
_TIMEOUT_SECONDS = 10.0
_STALE = "/problems/stale-attempt"
"""Of an answer 409; any other one says that somebody was faster, and that the call may be made again."""
_REFUSED = (httpx.codes.UNPROCESSABLE_ENTITY, httpx.codes.REQUEST_ENTITY_TOO_LARGE)
_LEAVE_TIMEOUT_SECONDS = 3.0
"""A process that ends has little time, and the service goes on without it."""


class StaleAttemptError(Exception):
    """The attempt was taken from this worker (lease expired, job cancelled or done elsewhere)."""


class ControlPlaneError(Exception):
    """The service can't be reached or answered with an error; a retry can help."""


class RefusedKeyError(ControlPlaneError):
    """The service does not take the worker's key, or not from a worker."""


class RefusedReportError(ControlPlaneError):
    """The service refused a call as malformed or too large: the same call will never succeed."""


class UnknownToServiceError(ControlPlaneError):
    """The service does not know the worker or the job that a call names."""


class Body(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


B = TypeVar("B", bound=Body)


class WriteParameters(Body):
    """Options of a job that writes rows by key."""

    key_columns: list[str] | None = None
    only_if_newer_than: str | None = None
    insert_only: bool = False
    duplicates: str = "refuse"  # or last
    files: list[str] = []
    """Have the rows, or keys of rows to be deleted, that are not in the assignment."""


class EraseParameters(Body):
    """Options of a job that erases the rows of keys, of which `WriteParameters` has the keys."""

    erasure_id: str
    expire_snapshots: bool = True


class ExpireParameters(Body):
    """Options of a job that lets snapshots expire."""

    older_than_seconds: float
    retain_last: int = 1
    """So many snapshots of each branch stay."""


class RemoveOrphanFilesParameters(Body):
    """Options of a job that deletes orphan files."""

    older_than_seconds: float
    """A file that is younger may be one that is about to be committed."""


class SortField(Body):
    """One of the columns by which rows are sorted."""

    column: str
    direction: str = "asc"  # or desc
    null_order: str = "nulls-first"  # or nulls-last


class RewriteDataFilesParameters(Body):
    """Options of a job that writes data files anew, as Iceberg's action names them."""

    strategy: str = "binpack"  # or sort
    sort_order: list[SortField] = []
    """Of the table if it is empty."""
    target_file_size_bytes: int = 0
    """As the table says if it is 0."""
    min_input_files: int = 5
    size_ratio: float = 1
    """A small file is at most so many times as large as all others together that are written anew
    of its partition."""
    delete_ratio_threshold: float = 0.3
    max_bytes: int = 100 * 2**30
    """Of the data files that one job writes anew, unless the first group has more."""


class RewritePositionDeleteFilesParameters(Body):
    """Options of a job that writes position delete files anew, as Iceberg's action names them."""

    target_file_size_bytes: int = 0
    """As the table says if it is 0."""
    min_input_files: int = 5


class PublishParameters(Body):
    """Options of a job that publishes on the table's branch."""

    model_config = ConfigDict(populate_by_name=True)

    source: str = Field(alias="from")
    """The staging branch."""
    after: int | None = None
    """A snapshot of it that counts as published where the table does not say."""
    skip: int | None = None
    """The first that waits, which can't be published: it is left out."""
    renew: bool = False
    """The branch begins anew after its first snapshot, if all that it has is published."""


class AssignedJob(Body):
    id: str
    kind: str
    dry_run: bool = False
    parameters: dict[str, Any] = {}

    @property
    def names_keys(self) -> bool:
        """Whether its rows are keys alone."""
        return self.kind in ("delete", "erase")

    @property
    def erase(self) -> EraseParameters:
        """Of a job that erases."""
        return EraseParameters.model_validate(self.parameters)

    @property
    def expire(self) -> ExpireParameters:
        """Of a job that lets snapshots expire."""
        return ExpireParameters.model_validate(self.parameters)

    @property
    def remove_orphan_files(self) -> RemoveOrphanFilesParameters:
        """Of a job that deletes orphan files."""
        return RemoveOrphanFilesParameters.model_validate(self.parameters)

    @property
    def rewrite_data_files(self) -> RewriteDataFilesParameters:
        """Of a job that writes data files anew."""
        return RewriteDataFilesParameters.model_validate(self.parameters)

    @property
    def rewrite_position_delete_files(self) -> RewritePositionDeleteFilesParameters:
        """Of a job that writes position delete files anew."""
        return RewritePositionDeleteFilesParameters.model_validate(self.parameters)

    @property
    def publish(self) -> PublishParameters:
        """Of a job that publishes."""
        return PublishParameters.model_validate(self.parameters)

    @property
    def write(self) -> WriteParameters:
        """Of a job that writes rows by key."""
        return WriteParameters.model_validate(self.parameters)


class AssignedTable(Body):
    id: str
    identifier: list[str]
    table_uuid: str = ""
    location: str = ""
    """Where the service saw it last; empty if it does not say."""
    branch: str
    staging_branch: str | None = None
    """What is published on the branch."""
    key_sets: list[list[str]] | None = None
    seen_equality_field_ids: list[list[int]] = []
    overlapping_locations: list[str] = []
    snapshots_expire_elsewhere: bool = False
    """Whether somebody else was seen to let snapshots of the table expire."""


class AssignedCatalog(Body):
    name: str
    type: str
    properties: dict[str, str]


class AssignedIndex(Body):
    warehouse: str
    takes_new_files: bool = False
    """Whether a conversion indexes what is new, so that no index job has to."""


class AssignedConvertPolicy(Body):
    max_delete_files_per_commit: int = 0
    """Equality delete files that one commit removes at most; 0 for no bound."""
    deletion_vector_files: str = ""
    """`one_per_task`, or one for each data file."""
    readers: list[str] = []
    """Engines that read the table, as `icestream.readers` knows them."""


class AssignedExpiryPolicy(Body):
    enabled: bool = False


class AssignedRewritePolicy(Body):
    """Which files are counted that a rewriting would take."""

    enabled: bool = False
    target_file_size_bytes: int = 0
    min_input_files: int = 5
    size_ratio: float = 1
    delete_ratio_threshold: float = 0.3
    max_bytes: int = 100 * 2**30


class AssignedResources(Body):
    max_tasks: int = 0
    """Tasks of a stage that run at a time, on the driver and on Spark; 0 for as many as there are cores."""
    memory_fraction: float = 1.0
    """Of what a job usually holds in memory at once."""


class AssignedPolicy(Body):
    convert: AssignedConvertPolicy = AssignedConvertPolicy()
    expire_snapshots: AssignedExpiryPolicy = AssignedExpiryPolicy()
    rewrite_data_files: AssignedRewritePolicy = AssignedRewritePolicy()
    rewrite_position_delete_files: AssignedRewritePolicy = AssignedRewritePolicy()
    resources: AssignedResources = AssignedResources()


class PreviousAttempt(Body):
    status: str = ""
    error: dict[str, Any] | None = None

    @property
    def told_lack_of_memory(self) -> bool:
        return (self.error or {}).get("code") in (OutOfMemoryError.code, SparkEndedError.code)

    @property
    def may_lack_memory(self) -> bool:
        """It said so, or its worker vanished, as one does that the system kills for taking too much."""
        was_lost = self.status == "lost" and (self.error or {}).get("code") == "worker_lost"
        return was_lost or self.told_lack_of_memory


class AttemptId(Body):
    job_id: str
    attempt: int


class AnnouncedPlan(Body):
    """Delete files that an attempt is about to write or to commit; see worker.jobs.files_of_dead_attempts.

    number: of the attempt's plans. tasks: that write, so far. files_per_task: that each writes at most.
    removes: the path of a delete file, or of a data file, that the commit removes; None as long as none is
    about to be made. only_on: instead of that, the head of the branch that the commit needs.
    data_files: so many new ones have names. has_folder: they lie in a folder of the plan's own, whatever they
    are named. expires: snapshots that are about to. location, properties: of the table, as far as the files'
    names depend on them.
    """

    number: int
    tasks: int
    files_per_task: int
    removes: str | None = None
    only_on: int | None = None
    data_files: int = 0
    has_folder: bool = False
    expires: list[int] = []
    location: str
    properties: dict[str, str] = {}


class EndedAttempt(AttemptId):
    """Of an attempt that ended, and what it had announced."""

    plans: list[AnnouncedPlan]


class Limits(Body):
    """What the service lets a catalog, its tables and their metadata lead to."""

    allowed_locations: list[str] | None = None
    allowed_hosts: list[str] | None = None
    allowed_secrets: list[str] | None = None
    own_files: list[str] = []

    @property
    def egress(self) -> Egress:
        """The hosts that the service lets the catalog lead to."""
        return Egress(None if self.allowed_hosts is None else tuple(self.allowed_hosts))

    @property
    def location_limits(self) -> dict[str, str]:
        """What limits a `Storage` to the places that the service allows."""
        allowed = self.allowed_locations
        roots = {} if allowed is None else {ALLOWED_LOCATIONS: "\n".join(allowed)}
        return roots | ({OWN_FILES: "\n".join(self.own_files)} if self.own_files else {})


class Assignment(Limits):
    """A job that this worker holds the lease of."""

    job: AssignedJob
    traceparent: str | None = None
    attempt: int
    previous_attempts: list[PreviousAttempt] = []
    ended_attempts: list[EndedAttempt] = []
    lease_seconds: float
    timeout_seconds: float = 0
    """After which the attempt ends; 0 for any time."""
    table: AssignedTable
    catalog: AssignedCatalog
    index: AssignedIndex
    policy: AssignedPolicy = AssignedPolicy()
    rows: list[dict[str, Any]] | None = None
    """What a job writes by key: rows, or keys of rows to be deleted."""
    orphan_files: list[str] = []
    """What a dry run has listed, of which a removal of orphan files deletes those that are orphans still."""
    orphans_older_than: AwareDatetime | None = None
    """Before which these were written; None if there is no dry run, or none that counts any more."""


class _Registered(Body):
    id: str


class _Caller(Body):
    name: str
    role: str


class _RowAddressRange(Body):
    base_address: int


class _HeartbeatAnswer(Body):
    now: AwareDatetime
    cancel_requested: bool
    addresses: _RowAddressRange | None = None


class Renewed(NamedTuple):
    """What a heartbeat came to."""

    cancel_requested: bool
    base_address: int | None
    """Of the row addresses that were asked for; None if there were none, or of a service that grants none."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that the job decided or met, or a line of the worker's log, for the job's history."""

    level: str  # info, warning, error
    message: str
    kind: str = "message"  # or log
    fields: Mapping[str, Any] = field(default_factory=dict)


class ControlPlane:
    """One worker's side of the service's API. Thread-safe."""

    def __init__(self, url: str, api_key: str, name_lines: Callable[..., None] = add_process_ids) -> None:
        """name_lines: lets log lines name the `worker_id`, once it is known."""
        self._name_lines = name_lines
        try:
            self._client = httpx.Client(
                base_url=f"{url.rstrip('/')}/api/v1/",
                headers={"Authorization": f"Bearer {api_key}"},
                timeout=_TIMEOUT_SECONDS,
            )
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise ControlPlaneError(f"a call can't be made of this address and key: {error}") from error
        self._worker_id: str | None = None

    def check_key(self) -> None:
        """Raises RefusedKeyError unless the key is a worker's, ControlPlaneError if nobody can say."""
        try:
            answer = self._client.get("me")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ControlPlaneError(f"the service does not answer: {error}") from error
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise RefusedKeyError(f"the service answered {answer.status_code}: {_detail(answer)}")
        if answer.is_error:
            raise ControlPlaneError(f"the service answered {answer.status_code}: {_detail(answer)}")
        caller = _understood(answer, _Caller)
        if caller.role not in ("worker", "admin"):
            raise RefusedKeyError(f"{caller.name!r} has the role {caller.role}")

    def register(self, name: str, problem: str | None = None) -> None:
        """Makes this process known, and why it can't run jobs, if so. Raises ControlPlaneError."""
        body = {
            "name": name,
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            "version": version("icestream"),
            "problem": problem,
        }
        self._worker_id = _understood(self._post("workers", body), _Registered).id
        self._name_lines(worker_id=self._worker_id)

    def claim(self, wait_seconds: float, given_up: Sequence[AttemptId] = ()) -> Assignment | None:
        """The next job, or None after waiting. Raises UnknownToServiceError if it forgot this worker.

        given_up: attempts that this worker ran and could not report.
        """
        return _assigned(self._claim(wait_seconds, given_up, wait_seconds + _TIMEOUT_SECONDS))

    def leave(self, given_up: Sequence[AttemptId] = ()) -> None:
        """Hands back what the service gave to this worker and no claim's answer brought in time."""
        self._claim(0.0, given_up, _LEAVE_TIMEOUT_SECONDS, is_stopping=True)

    def _claim(
        self, wait_seconds: float, given_up: Sequence[AttemptId], timeout: float, **more: bool
    ) -> httpx.Response:
        assert self._worker_id is not None
        body = {"wait_seconds": wait_seconds, "given_up": [one.model_dump() for one in given_up], **more}
        return self._post(f"workers/{self._worker_id}/claim", body, timeout)

    def attempt(self, assignment: Assignment, redaction: Redaction) -> AttemptReport:
        return AttemptReport(self, assignment, redaction)

    def close(self) -> None:
        self._client.close()

    def _post(self, path: str, body: Mapping[str, Any], timeout: float = _TIMEOUT_SECONDS) -> httpx.Response:
        try:
            # Of an attempt, the calls are parts of its trace.
            traceparent = current_traceparent()
            headers = {HEADER: traceparent} if traceparent else {}
            response = self._client.post(path, json=body, headers=headers, timeout=timeout)
        except httpx.HTTPError as error:
            raise ControlPlaneError(f"the service does not answer: {error}") from error
        except ValueError as error:  # JSON has no such number
            raise RefusedReportError(f"the report can't be written: {error}") from error
        if response.status_code == httpx.codes.CONFLICT and _problem(response).get("type") == _STALE:
            raise StaleAttemptError(_detail(response))
        if response.status_code in _REFUSED:
            raise RefusedReportError(f"the service refused the report: {_detail(response)}")
        if response.status_code == httpx.codes.NOT_FOUND:
            raise UnknownToServiceError(f"the service knows no such thing: {_detail(response)}")
        if response.is_error:
            raise ControlPlaneError(f"the service answered {response.status_code}: {_detail(response)}")
        return response


class AttemptReport:
    """The calls of one attempt; each raises StaleAttemptError once the attempt is no longer the job's.

    Whatever a job tells goes through here, and `redaction` is of its catalog's secrets.
    """

    def __init__(self, control_plane: ControlPlane, assignment: Assignment, redaction: Redaction) -> None:
        self._control_plane = control_plane
        self._redaction = redaction
        self._path = f"jobs/{assignment.job.id}/attempts/{assignment.attempt}"
        self.seconds_ahead = 0.0
        """Of this machine's clock, at least, before the service's at the last heartbeat."""

    def heartbeat(
        self,
        progress: Mapping[str, Any] | None,
        events: Sequence[Event],
        plan: AnnouncedPlan | None = None,
        row_addresses: int = 0,
    ) -> Renewed:
        """Renews the lease. row_addresses: to be granted along, as `grant_row_addresses` does from 0 on."""
        body = {
            "progress": self._redaction.report(progress),
            "events": self._reported(events),
            "plan": plan.model_dump() if plan is not None else None,
            "addresses": {"rows": row_addresses} if row_addresses else None,
        }
        sent_at = datetime.now(UTC)  # so a slow answer makes this clock no later
        response = self._control_plane._post(f"{self._path}/heartbeat", body)
        answer = _understood(response, _HeartbeatAnswer)
        self.seconds_ahead = (sent_at - answer.now).total_seconds()
        granted = answer.addresses
        return Renewed(answer.cancel_requested, granted.base_address if granted is not None else None)

    def grant_row_addresses(self, rows: int, at_least: int) -> int:
        """The base address of `rows` addresses, from `at_least` on, that no other attempt gets."""
        body = {"rows": rows, "at_least": at_least}
        answer = self._control_plane._post(f"{self._path}/address-ranges", body)
        return _understood(answer, _RowAddressRange).base_address

    def finish(
        self,
        status: str,
        *,
        result: Mapping[str, Any] | None = None,
        error: Mapping[str, Any] | None = None,
        health: Mapping[str, Any] | None = None,
        cleared: Sequence[AttemptId] = (),
        stages: Sequence[Mapping[str, Any]] = (),
        rows: int = 0,
        bytes: int = 0,  # noqa: A002 - as the contract names it
        events: Sequence[Event] = (),
        claims_next: bool = False,
    ) -> Assignment | None:
        """The next job, if this worker claims one and one waits."""
        body = {
            "status": status,
            "result": self._redaction.report(result),
            "error": self._redaction.report(error),
            "health": self._redaction.report(health),
            "cleared": [one.model_dump() for one in cleared],
            "stages": list(stages),
            "rows": rows,
            "bytes": bytes,
            "events": self._reported(events),
            "claims_next": claims_next,
        }
        return _assigned(self._control_plane._post(f"{self._path}/finish", body))

    def _reported(self, events: Sequence[Event]) -> object:
        return self._redaction.report([asdict(event) for event in events])


def _assigned(response: httpx.Response) -> Assignment | None:
    return None if response.status_code == httpx.codes.NO_CONTENT else _understood(response, Assignment)


def _understood(response: httpx.Response, kind: type[B]) -> B:
    """The body of an answer. Raises ControlPlaneError: something else may have answered for the service."""
    try:
        return kind.model_validate_json(response.content)
    except ValidationError as error:
        raise ControlPlaneError(f"the service's answer can't be understood: {error}") from error


def _detail(response: httpx.Response) -> str:
    problem = _problem(response)
    return str(problem.get("detail") or problem.get("title") or problem)


def _problem(response: httpx.Response) -> Mapping[str, Any]:
    """What the service says, or whoever answered for it."""
    try:
        problem = response.json()
    except ValueError:
        problem = None
    return problem if isinstance(problem, dict) else {"detail": response.text[:200]}
