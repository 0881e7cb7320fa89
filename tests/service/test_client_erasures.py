"""The Python client's erasures, and receipts that it verifies whenever they were issued."""

from __future__ import annotations

import base64
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import SecretStr

import icestream
from icestream.erasures import Receipt, key_hash, secret_id
from service.erasures import receipt as issuing
from service.settings import Settings
from service.webhooks.signing import new_secret
from tests.patience import PATIENCE_SECONDS
from tests.service.conftest import ADMIN_KEY, Running, alike_on_both
from tests.service.iceberg_tables import IcebergCatalog

database_kind = alike_on_both

RECEIPT_SECRET, NEXT_SECRET = new_secret(), new_secret()
ERASURE_SECRET = "what hashes the keys of these tests"
KEY = {"id": 17, "name": "Ådå", "at": None}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    both = SecretStr(f"{NEXT_SECRET} {RECEIPT_SECRET}")
    return settings.model_copy(update={"erasure_secret": SecretStr(ERASURE_SECRET), "receipt_secret": both})


@pytest.fixture
def client(service: Running, iceberg: IcebergCatalog) -> Any:
    service.register(iceberg)
    service.enroll()
    with icestream.Client(service.url, ADMIN_KEY) as client:
        yield client


def finish_soon(service: Running, keys: int) -> threading.Thread:
    def work() -> None:
        found = service.claim(service.start_worker(), wait_seconds=20)
        assert found is not None
        told = {"keys": keys, "looked_at": "2026-03-01T12:00:00Z", "counts": {"gone": keys}}
        service.finish(found, result={"erasure": told})

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_keys_are_erased_waited_for_and_the_receipt_verified(
    service: Running, client: icestream.Client, tmp_path: Path
) -> None:
    erasure = client.erase([KEY], tables=["db.t"], key_columns=list(KEY), note="ticket 4711")
    assert erasure.receipt().complete is False
    worker = finish_soon(service, 1)
    assert erasure.wait(PATIENCE_SECONDS)["status"] == "succeeded"
    worker.join(PATIENCE_SECONDS)

    receipt = client.erasure(erasure.id).receipt()

    for secret in (RECEIPT_SECRET, NEXT_SECRET, f"{new_secret()} {RECEIPT_SECRET}"):
        receipt.verify(secret)
    assert (receipt.complete, receipt.counts) == (
        True,
        {"gone": 1, "held": 0, "invisible": 0, "unknown": 0},
    )
    assert receipt.state_of(KEY, ERASURE_SECRET) == {"local.db.t@main": "gone"}
    assert receipt.state_of({**KEY, "id": 18}, ERASURE_SECRET) == {}
    with pytest.raises(ValueError, match="hashed with another secret"):
        receipt.state_of(KEY, ERASURE_SECRET + "!")
    receipt.save(tmp_path)
    kept = Receipt.load(tmp_path)
    assert kept == receipt
    kept.verify(RECEIPT_SECRET)


def test_a_receipt_that_was_changed_or_signed_by_others_is_none(
    service: Running, client: icestream.Client
) -> None:
    receipt = client.erase(pa.table({"id": [1, 2]}), pattern="db.*").receipt()
    forged = Receipt(receipt.body.replace(b"unknown", b"gone"), receipt.headers)
    moved = Receipt(receipt.body, receipt.headers | {"webhook-timestamp": "1"})
    for wrong, secret in (
        (forged, RECEIPT_SECRET),
        (moved, RECEIPT_SECRET),
        (receipt, new_secret()),
        (Receipt(receipt.body, {}), RECEIPT_SECRET),
    ):
        with pytest.raises(icestream.ReceiptForgedError):
            wrong.verify(secret)
    short = base64.b64encode(bytes(23)).decode()
    for unusable in ("", "whsec_", f"whsec_{short}", f"{RECEIPT_SECRET} whsec_", RECEIPT_SECRET[6:]):
        with pytest.raises(ValueError, match="whsec_ and 24"):
            receipt.verify(unusable)


def test_client_and_service_hash_keys_alike() -> None:
    secret = SecretStr(ERASURE_SECRET)
    assert secret_id(ERASURE_SECRET) == issuing.secret_id(secret)
    keys: list[dict[str, Any]] = [KEY, {"b": 1.5, "a": "\u2028"}, {"nested": {"z": [1, True], "a": "é"}}]
    for key in keys:
        assert key_hash(ERASURE_SECRET, key) == issuing.key_hash(secret, key)


def test_what_is_refused_is_raised(client: icestream.Client) -> None:
    with pytest.raises(icestream.InvalidError):
        client.erase([KEY], tables=["db.nope"])
    with pytest.raises(ValueError, match="no rows"):
        client.erase([], tables=["db.t"])
