"""Tells Icestream of commits by signed requests. Needs Python alone."""

import base64
import hashlib
import hmac
import json
import time
import urllib.request
import uuid
from typing import Any


def tell(service: str, sender_id: str, secret: str, told: dict[str, Any] | list[dict[str, Any]]) -> None:
    """Tell of `{"tables": [...]}`, of an event, or of several; an OSError says that it was not heard, and the
    next poll makes it good."""
    body = json.dumps(told).encode()
    message, sent_at = str(uuid.uuid4()), str(int(time.time()))
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = hmac.new(key, b".".join((message.encode(), sent_at.encode(), body)), hashlib.sha256).digest()
    headers = {
        "Content-Type": "application/json",
        "webhook-id": message,
        "webhook-timestamp": sent_at,
        "webhook-signature": "v1," + base64.b64encode(signed).decode(),
    }
    url = f"{service}/api/v1/notification-senders/{sender_id}/commit-events"
    urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=10).close()
