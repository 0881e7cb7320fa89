"""What is secret is told to nobody: neither the service, which keeps what it is told, nor a log.

A catalog may repeat in its answer whatever it was sent.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from trust.secrets import redacted

_NO_CHARACTER = re.compile("[\x00\ud800-\udfff]")
"""NUL and half of a surrogate pair: the service takes no text with them, as no database keeps it."""
_NAMES_A_FILE = "file_path"
"""The field of a report by which the service knows a file again."""


class Redaction:
    """Takes some secrets out of texts, and what follows `Bearer` and `Basic`."""

    def __init__(self, secrets: Collection[str] = ()) -> None:
        self._groups: dict[object, Collection[str]] = {}
        self._add(secrets)

    @contextmanager
    def knowing(self, secrets: Collection[str]) -> Iterator[None]:
        """Takes these out as well meanwhile; several of these may run at a time."""
        key = self._add(secrets)
        try:
            yield
        finally:
            del self._groups[key]

    def _add(self, secrets: Collection[str]) -> object:
        key = object()
        self._groups[key] = frozenset(secrets)
        return key

    def text(self, said: str) -> str:
        return redacted(said, set().union(*tuple(self._groups.values())))

    def report(self, value: Any) -> Any:
        """The same of every text in a JSON value, but of names of files; and without what is no character."""
        if isinstance(value, str):
            return _NO_CHARACTER.sub("\ufffd", self.text(value))
        if isinstance(value, Mapping):
            return {
                key: inner if key == _NAMES_A_FILE else self.report(inner) for key, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.report(inner) for inner in value]
        return value
