"""Signatures after the convention of Standard Webhooks, of what is sent and of what is taken."""

import base64
import binascii
import secrets
from datetime import datetime

from standardwebhooks import Webhook as Signer

from service.catalogs.allowlists import check_reference
from service.catalogs.secrets import resolve
from service.errors import InvalidError
from service.settings import Settings
from trust.secrets import is_reference

PREFIX = "whsec_"
_BYTES = range(24, 65)


def signers_of(secret: str) -> list[Signer]:
    """One for each key of a resolved secret. Raises InvalidError, which tells nothing of it."""
    keys = [_key(one) for one in secret.split()]
    if not keys or None in keys:
        raise InvalidError(
            "webhook-secret-unusable",
            f"What it refers to is not {PREFIX} and {_BYTES[0]} to {_BYTES[-1]} bytes in base64.",
            "Make one with: python -c 'import base64, secrets; "
            f'print("{PREFIX}" + base64.b64encode(secrets.token_bytes(32)).decode())\'',
        )
    return [Signer(key) for key in keys if key]


def check_secret(settings: Settings, reference: str) -> None:
    """Raise InvalidError for what is no reference, for one that is not allowed, or for an unusable secret."""
    if not is_reference("secret", reference):
        raise InvalidError(
            "secret-in-clear",
            "`secret` is no reference.",
            "Put it in an environment variable or a file that the service sees, and give `env:NAME` or "
            "`file:/path`.",
        )
    if not reference.startswith("env:WEBHOOK_"):
        check_reference(settings, "secret", reference)
    signers_at(settings, reference)


def signers_at(settings: Settings, reference: str) -> list[Signer]:
    """Of the secret that a reference names now. Raises InvalidError, as `signers_of` does."""
    return signers_of(resolve({"secret": reference}, settings.secret_rules, settings.own_files)["secret"])


def new_secret() -> str:
    """One that `signers_of` takes."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def signature(signers: list[Signer], message_id: str, at: datetime, body: bytes) -> str:
    """The value of the header `webhook-signature`: one signature for each key."""
    return " ".join(signer.sign(message_id, at, body.decode()) for signer in signers)


def _key(text: str) -> bytes | None:
    try:
        key = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        return None
    return key if text.startswith(PREFIX) and len(key) in _BYTES else None
