"""Whose a worker is: it belongs to the key, or the subject of an issuer, that registered it.

Nobody else claims as it or reports about its attempts, whatever the role.
"""

from sqlmodel import Session

from service.auth.models import Principal
from service.errors import ForbiddenError, NotFoundError
from service.records.jobs import Attempt
from service.records.workers import Worker


def own_worker(session: Session, worker_id: str, caller: Principal) -> Worker:
    """A worker of the caller's. Raises NotFoundError, and ForbiddenError for somebody else's."""
    worker = session.get(Worker, worker_id)
    if worker is None:
        raise _unknown(worker_id)
    check_owner(worker, caller)
    return worker


def check_owner(worker: Worker, caller: Principal) -> None:
    """Raises ForbiddenError if somebody else registered a worker.

    Raises NotFoundError for one that was registered before this was kept: it may be anybody's.
    """
    if worker.registered_by is None:
        raise _unknown(worker.id)
    if worker.registered_by != caller.key:
        raise ForbiddenError(
            "worker-not-yours",
            f"{caller.name!r} did not register the worker {worker.id}.",
            "Use the key that registered it, or register a worker of your own.",
            action="worker.act",
            target=worker.id,
        )


def _unknown(worker_id: str) -> NotFoundError:
    return NotFoundError(
        "worker-not-found",
        f"There is no worker {worker_id!r}.",
        "Register it again; workers do so by themselves.",
    )


def is_own_attempt(session: Session, job_id: str, attempt: int, caller: Principal) -> bool:
    """Whether an attempt was given to a worker of the caller's."""
    found = session.get(Attempt, (job_id, attempt))
    return found is not None and session.get_one(Worker, found.worker_id).registered_by == caller.key
