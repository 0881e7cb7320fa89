"""Keys that are erased from tables: asked for, waited for, and the signed receipt."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from icestream.connection import Connection, Json, json_of
from icestream.errors import IcestreamError
from icestream.jobs import wait_until_ended
from icestream.writes import json_rows

_SIGNED: Final = ("webhook-id", "webhook-timestamp", "webhook-signature")
_PREFIX: Final = "whsec_"
_KEY_BYTES: Final = range(24, 65)
_SECRET_NAMED: Final = b"erasure_secret_id"


class ReceiptForgedError(IcestreamError):
    """A receipt that was not signed with the secret, or was changed since."""


@dataclass(frozen=True)
class Receipt:
    """What an erasure has come to: the bytes as the service gave them, and the headers that sign them."""

    body: bytes
    headers: dict[str, str]

    @property
    def content(self) -> Json:
        """All that it says; docs/erasure.md explains it."""
        content: Json = json.loads(self.body)
        return content

    @property
    def complete(self) -> bool:
        """Whether all jobs had ended; only then it stays as it is."""
        return bool(self.content["complete"])

    @property
    def counts(self) -> dict[str, int]:
        """How many keys are `gone`, `held`, `invisible` or `unknown`, each counted in each table; without
        those of jobs that have told nothing."""
        found: Counter[str] = Counter()
        for table in self.content["tables"]:
            found.update(table["counts"] or {})
        return dict(found)

    def verify(self, secret: str) -> None:
        """Raises ReceiptForgedError unless it was signed with this, ICESTREAM_RECEIPT_SECRET, at whatever
        time; and ValueError for a secret that the service would not sign with."""
        given = [self.headers.get(name, "") for name in _SIGNED]
        signed = b".".join((*(part.encode() for part in given[:2]), self.body))
        theirs = [one.removeprefix("v1,").encode() for one in given[2].split()]
        for key in _keys(secret):
            ours = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest())
            if any(hmac.compare_digest(ours, one) for one in theirs):
                return
        raise ReceiptForgedError(
            "The receipt was not signed with this secret, or was changed since.",
            "Ask the service for it again, and whoever runs it for the secret.",
        )

    def state_of(self, key: Mapping[str, Any], erasure_secret: str) -> dict[str, str]:
        """The state of a key by names of tables, of those whose receipt is about it.

        key: as it was given to `erase`. erasure_secret: ICESTREAM_ERASURE_SECRET. Raises ValueError if the
        receipt's keys were hashed with another one.
        """
        hashed_with = self.content.get("erasure_secret_id")
        if hashed_with not in (None, secret_id(erasure_secret)):
            raise ValueError(f"the keys of this receipt were hashed with another secret, of id {hashed_with}")
        (sent,) = json_rows([key])
        hashed = key_hash(erasure_secret, sent)
        return {
            f"{table['catalog']}.{table['table']}@{table['branch']}": str(one["state"])
            for table in self.content["tables"]
            for one in table["keys"]
            if one["hash"] == hashed
        }

    def save(self, directory: str | Path) -> None:
        """Writes `receipt.json` and `receipt.headers.json`, from which `load` makes the same."""
        place = Path(directory)
        (place / "receipt.json").write_bytes(self.body)
        (place / "receipt.headers.json").write_text(json.dumps(self.headers))

    @classmethod
    def load(cls, directory: str | Path) -> Receipt:
        place = Path(directory)
        return cls(
            (place / "receipt.json").read_bytes(), json.loads((place / "receipt.headers.json").read_text())
        )


class Erasure:
    """An erasure that was asked for."""

    def __init__(self, connection: Connection, erasure_id: str) -> None:
        self.id = erasure_id
        self._connection = connection

    def view(self) -> Json:
        """How far each of its tables has come."""
        found: Json = json_of(self._connection.request("GET", f"/api/v1/erasures/{self.id}"))
        return found

    def wait(self, wait_seconds: float = 3600) -> Json:
        """Waits until all its jobs have ended, however they do, and tells how.

        Raises TimeoutError for one that goes on after `wait_seconds`, and IcestreamError.
        """
        return wait_until_ended(
            self.view,
            wait_seconds,
            f"Erasure {self.id}",
            first_pause_seconds=0.1,
            longest_pause_seconds=5.0,
        )

    def receipt(self) -> Receipt:
        """What has become of each key, so far if `complete` is false. Raises IcestreamError."""
        answer = self._connection.request("GET", f"/api/v1/erasures/{self.id}/receipt")
        return Receipt(answer.content, {name: answer.headers.get(name, "") for name in _SIGNED})


def ask(connection: Connection, body: Json) -> Json:
    """Asks for an erasure, once however often it has to be sent."""
    headers = {"Idempotency-Key": str(uuid4())}
    given = {name: value for name, value in body.items() if value is not None}
    answer: Json = json_of(connection.request("POST", "/api/v1/erasures", json=given, headers=headers))
    return answer


def key_hash(erasure_secret: str, key: Mapping[str, Any]) -> str:
    """What a receipt has in the place of a key. key: as it was sent, in JSON."""
    written = json.dumps(dict(key), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hmac.new(erasure_secret.encode(), written.encode(), hashlib.sha256).hexdigest()


def secret_id(erasure_secret: str) -> str:
    """What a receipt calls the secret that its keys were hashed with."""
    return hmac.new(erasure_secret.encode(), _SECRET_NAMED, hashlib.sha256).hexdigest()[:16]


def _keys(secret: str) -> Sequence[bytes]:
    """An empty or short key signs too, and whoever forges a receipt would find it."""
    keys = [
        base64.b64decode(one.removeprefix(_PREFIX), validate=True) if one.startswith(_PREFIX) else b""
        for one in secret.split()
    ]
    if not keys or not all(len(key) in _KEY_BYTES for key in keys):
        told = f"{_PREFIX} and {_KEY_BYTES[0]} to {_KEY_BYTES[-1]} bytes in base64"
        raise ValueError(f"the secret of receipts is {told}")
    return keys
