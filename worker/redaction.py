"""What is secret is told to nobody: neither the service, which keeps what it is told, nor a log.

A catalog may repeat in its answer whatever it was sent.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

_MASK = "***"
_SHORTEST_SECRET = 4  # a shorter one is part of other words
_AUTHORIZATION = re.compile(r"\b((?:Basic|(?i:Bearer))\s+)[\w.~+/=-]{8,}")
_NAMES_A_FILE = "file_path"
"""The field of a report by which the service knows a file again."""


class Redaction:
    """Takes some secrets out of texts, and what follows `Bearer` and `Basic`."""

    def __init__(self, secrets: Collection[str] = ()) -> None:
        long_enough = {one for one in secrets if len(one) >= _SHORTEST_SECRET}
        # One may be a part of another.
        self._secrets = sorted(long_enough, key=len, reverse=True)

    def text(self, said: str) -> str:
        for secret in self._secrets:
            said = said.replace(secret, _MASK)
        return _AUTHORIZATION.sub(rf"\1{_MASK}", said)

    def report(self, value: Any) -> Any:
        """The same of every text in a JSON value, but of names of files."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                key: inner if key == _NAMES_A_FILE else self.report(inner) for key, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.report(inner) for inner in value]
        return value
