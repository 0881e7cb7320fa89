"""Signatures after the convention of Standard Webhooks: HMAC-SHA256 of id, time and body."""

import base64
import binascii
import hashlib
import hmac

from service.errors import InvalidError

PREFIX = "whsec_"
_BYTES = range(24, 65)


def keys_of(secret: str) -> list[bytes]:
    """The keys that sign, from a resolved secret. Raises InvalidError, which tells nothing of it."""
    keys = [_key(one) for one in secret.split()]
    if not keys or None in keys:
        raise InvalidError(
            "webhook-secret-unusable",
            "The secret is no key for signatures",
            f"What it refers to is not {PREFIX} and {_BYTES[0]} to {_BYTES[-1]} bytes in base64.",
            "Make one with: python -c 'import base64, secrets; "
            f'print("{PREFIX}" + base64.b64encode(secrets.token_bytes(32)).decode())\'',
        )
    return [key for key in keys if key]


def signature(keys: list[bytes], message_id: str, timestamp: str, body: bytes) -> str:
    """The value of the header `webhook-signature`: one signature for each key."""
    signed = b".".join((message_id.encode(), timestamp.encode(), body))
    digests = (hmac.new(key, signed, hashlib.sha256).digest() for key in keys)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


def _key(text: str) -> bytes | None:
    try:
        key = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        return None
    return key if text.startswith(PREFIX) and len(key) in _BYTES else None
