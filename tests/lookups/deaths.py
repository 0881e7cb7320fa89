"""Death of a process between two of its changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

from pypaimon.filesystem.local_file_io import LocalFileIO

from worker.index.checksums import CheckedFiles
from worker.index.warehouse import IndexWarehouse
from worker.io.storage import Storage


class DiedError(BaseException):
    """No program expects it, so none of it handles it."""


@contextmanager
def dying_after(changes: int | None) -> Iterator[None]:
    """Whatever changes a store dies after so many changes; None: it lives."""
    if changes is None:
        yield
        return
    made = count()

    def counted(change: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if next(made) >= changes:
            raise DiedError
        return change(*arguments, **named)

    with ExitStack() as patches:
        for kind, names in (
            (Storage, ("write", "create", "open_output", "delete")),
            (CheckedFiles, ("open_output",)),
            (IndexWarehouse, ("create",)),
            (LocalFileIO, ("delete",)),  # of whole tables
        ):
            for name in names:
                change = getattr(kind, name)
                method = lambda self, *a, change=change, **n: counted(change, self, *a, **n)  # noqa: E731
                patches.enter_context(patch.object(kind, name, method))
        yield
