"""Receipts: what an erasure came to, in the words of its workers, with hashes in the place of keys; signed.

Invariant: a key's state is never better than its worker reported. Where a report names too few keys to tell
which of them are in a state, these are called unknown.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from datetime import datetime

from pydantic import JsonValue, SecretStr, ValidationError
from standardwebhooks import Webhook as Signer

from service import __version__
from service.erasures.models import KeyState, Receipt, ReceiptKey, ReceiptTable
from service.errors import ConflictError, InvalidError, StartError
from service.records.erasures import Erasure, ErasureTable
from service.records.jobs import JobStatus
from service.records.reports import ErasureReport
from service.settings import Settings
from service.webhooks.signing import signature, signers_of

_SECRET_NAMED = b"erasure_secret_id"
_UNKNOWN_BY = ("unreadable_file",)
"""Of such a holder nobody knows whether it has the keys."""


def canonical(key: Mapping[str, JsonValue]) -> bytes:
    """A key as it is hashed: JSON in UTF-8 with its columns sorted, and no space."""
    return json.dumps(key, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def key_hash(secret: SecretStr, key: Mapping[str, JsonValue]) -> str:
    return hmac.new(secret.get_secret_value().encode(), canonical(key), hashlib.sha256).hexdigest()


def secret_id(secret: SecretStr) -> str:
    """Tells by which secret keys were hashed, and nothing of it."""
    return hmac.new(secret.get_secret_value().encode(), _SECRET_NAMED, hashlib.sha256).hexdigest()[:16]


def secrets_of(settings: Settings) -> tuple[SecretStr, list[Signer]]:
    """What hashes keys, and what signs receipts. Raises ConflictError if either is missing."""
    if settings.erasure_secret is None or settings.receipt_secret is None:
        missing = [
            name
            for name, value in (
                ("ICESTREAM_ERASURE_SECRET", settings.erasure_secret),
                ("ICESTREAM_RECEIPT_SECRET", settings.receipt_secret),
            )
            if value is None
        ]
        raise ConflictError("erasures-not-set-up", f"{' and '.join(missing)} must be set.")
    return settings.erasure_secret, signers_of(settings.receipt_secret.get_secret_value())


def check_secrets(settings: Settings) -> None:
    """Raises StartError for a secret that could not sign."""
    if settings.receipt_secret is None:
        return
    try:
        signers_of(settings.receipt_secret.get_secret_value())
    except InvalidError as error:
        raise StartError(f"ICESTREAM_RECEIPT_SECRET can't sign receipts. {error.remedy}") from None


def sign(signers: list[Signer], erasure_id: str, at: datetime, body: bytes) -> dict[str, str]:
    """The headers of a receipt. at: when it is handed out, which verifiers compare with their clock."""
    return {
        "webhook-id": erasure_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": signature(signers, erasure_id, at, body),
    }


def make_receipt(
    erasure: Erasure, parts: Sequence[tuple[ErasureTable, JobStatus]], issued_at: datetime
) -> Receipt:
    """parts: the tables, each with the status of its job."""
    return Receipt(
        erasure_id=erasure.id,
        complete=all(part.status is not None for part, _ in parts),
        issued_at=issued_at,
        icestream_version=__version__,
        requested_by=erasure.requested_by,
        requested_at=erasure.created_at,
        note=erasure.note,
        expire_snapshots=erasure.expire_snapshots,
        key_columns=erasure.key_columns,
        keys=len(erasure.key_hashes) or None,
        erasure_secret_id=erasure.erasure_secret_id,
        files=erasure.files,
        tables=[_of_table(erasure, part, status) for part, status in parts],
    )


def _of_table(erasure: Erasure, part: ErasureTable, status: JobStatus) -> ReceiptTable:
    report = report_of(part)
    states = key_states(report, len(erasure.key_hashes))
    return ReceiptTable(
        **part.model_dump(include=ReceiptTable.model_fields.keys() - {"status", "report", "keys"}),
        status=status,
        report=report,
        counts=None if report is None else report.counts,
        keys=[
            ReceiptKey(hash=hashed, state=state, held_by=held_by)
            for hashed, (state, held_by) in zip(erasure.key_hashes, states, strict=True)
        ],
    )


def report_of(part: ErasureTable) -> ErasureReport | None:
    """What a worker said of a table; None if it has said nothing that can be read."""
    try:
        return ErasureReport.model_validate(part.report)
    except ValidationError:
        return None


def key_states(report: ErasureReport | None, keys: int) -> list[tuple[KeyState, list[int]]]:
    """The state of each key, and the numbers of what holds it."""
    if report is None or report.keys != keys:
        return [("unknown", [])] * keys
    holders: list[list[int]] = [[] for _ in range(keys)]
    for number, holder in enumerate(report.held):
        for key in sorted(set(holder.keys)):
            holders[key].append(number)
    unknown, invisible = set(report.unknown), set(report.invisible)

    def told(key: int) -> KeyState | None:
        if key in unknown:
            return "unknown"
        if key in invisible:  # what holds it is told as well
            return "invisible"
        if not holders[key]:
            return None
        is_known = any(report.held[one].holder not in _UNKNOWN_BY for one in holders[key])
        return "held" if is_known else "unknown"

    states = [told(key) for key in range(keys)]
    # Those of which nothing is told are gone, unless others are among them that were too many to be named.
    rest: KeyState = "gone" if states.count(None) == report.counts.gone else "unknown"
    return [(state or rest, holders[key]) for key, state in enumerate(states)]
