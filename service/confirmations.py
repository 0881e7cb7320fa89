"""What is asked about before it is done, on the pages and on the command line, and the words that say why.

Whatever can't be undone is here, and what stops or replaces something for more than one table.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

MIGRATING_BACK = (
    "The columns and tables that the older schema does not know are dropped, with what is in them. That "
    "can't be undone: see first that there is a backup of the control database."
)
_CALLS = {
    "attach_policy": "The policy that is attached there no longer applies there.",
    "create_erasure": "The rows are erased for good, from old snapshots too. That can't be undone.",
    "delete_catalog": (
        "Icestream forgets the catalog and its patterns. The catalog and its tables stay as they are."
    ),
    "delete_pattern": (
        "Tables that are created later are no longer enrolled. What it has enrolled stays enrolled."
    ),
    "delete_policy": "The policy and its settings will be gone.",
    "delete_rows": "A commit deletes the rows of these keys, whatever other columns they have.",
    "delete_sender": "What the sender signs counts no more. Tables are polled as before.",
    "delete_table": (
        "Icestream forgets the table; the Iceberg table stays as it is. Waiting jobs are cancelled, a "
        "running one is asked to stop."
    ),
    "delete_webhook": "What waits to be sent is forgotten, too.",
    "pause_catalog": "No job of its tables starts until the catalog is resumed; running ones end as usual.",
    "pause_system": ("No job of any table starts until the system is resumed; running ones end as usual."),
    "revoke_api_key": (
        "Whoever uses the key is refused from now on, and browsers that it signed in are signed out. That "
        "can't be undone."
    ),
    "rotate_api_key": "The key gets a new secret. Whoever uses the present one needs the new one in time.",
}
"""By the operation's id."""
_JOBS = {
    "delete": _CALLS["delete_rows"],
    "expire_snapshots": (
        "The snapshots can be read no more, and the files that only they needed are deleted. That can't be "
        "undone."
    ),
    "publish": (
        "The branch gets nothing that the skipped snapshot adds, and keeps what it deletes. That can't be "
        "made up for once the staging branch is cleared."
    ),
    "remove_orphan_files": (
        "A job deletes the listed files that are orphans still when it runs. That can't be undone. See first "
        "that nothing else has put its files into the table's location."
    ),
}
"""Of jobs that are requested or retried, by their kind."""
_DROPPED = "A job deletes the files of its index."
_OF_JOBS = ("request_job", "retry_job")


def words_before(operation_id: str, body: Mapping[str, Any] = MappingProxyType({})) -> str | None:
    """What a call of the API would do that is to be asked about first; None for all others.

    body: as it is sent, and what its query says; of a retry, the job that is to run again. A policy takes the
    place of another one only where one is, which is for the caller to look at.
    """
    if body.get("dry_run"):
        return None
    if operation_id not in _OF_JOBS:
        words = _CALLS.get(operation_id)
        return f"{words} {_DROPPED}" if body.get("drop_index") and words else words
    if body.get("kind") == "publish" and "skip" not in (body.get("parameters") or {}):
        return None
    return _JOBS.get(str(body.get("kind")))


def may_ask(operation_id: str) -> bool:
    """Whether the call may be one that is asked about."""
    return operation_id in _OF_JOBS or operation_id in _CALLS
