"""What deletes by position tell: places of data files, which may name a partition, and seldom the rows.

Invariant: of a position delete file every path is read. Of a Puffin file it is the footer: what is between is
told by its type, and has no keys if that is known.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from worker.deletes.puffin import PUFFIN_MAGIC
from worker.erasure.keys import ErasedKeys
from worker.erasure.trace import Trace
from worker.io.file_formats import check_size, field_id_of, open_columns
from worker.io.storage import Storage
from worker.keys.read import missing_file
from worker.process.errors import Reason
from worker.table.files import DeleteFile
from worker.table.manifests import FILE_PATH_FIELD_ID

POSITION_FIELD_IDS = frozenset({FILE_PATH_FIELD_ID, 2147483545, 2147483544})
"""Of the columns that a file of position deletes may have."""
_DELETED_ROWS = Reason(
    "deleted_rows_kept",
    "it has more than a path and a position, such as the rows that it deletes",
    "Rewrite the table's position deletes (rewrite_position_delete_files), and erase again.",
)
_WITHOUT_KEYS = frozenset({"deletion-vector-v1", "apache-datasketches-theta-v1"})
"""Types of blobs: positions, and sketches of hashes."""
_TAIL = struct.Struct("<ii4s")  # size of the footer's payload, flags, magic
_FOOTER_BYTES = 16 * 2**20


def search_positions(storage: Storage, keys: ErasedKeys, file: DeleteFile) -> Trace:
    """Of a file of position deletes, or of deletion vectors. Raises OSError (a retry can help)."""
    if file.is_deletion_vector:
        return search_puffin(storage, keys, file.path, file.file_size_bytes)
    found: set[int] = set()

    def read() -> None:
        with open_columns(storage, file.path, file.file_format, file.file_size_bytes) as source:
            named = {field_id_of(field): field.name for field in source.schema}
            if len(source.schema.names) > 2:
                raise _KeepsRowsError
            name = named.get(FILE_PATH_FIELD_ID, "file_path")
            for batch in source.batches([(name,)]):
                for path in batch.column(name).unique().to_pylist():
                    found.update(keys.in_path(str(path)))

    try:
        read()
    except _KeepsRowsError:
        return Trace(frozenset(found), _DELETED_ROWS)
    except FileNotFoundError as error:
        return Trace(why=missing_file(error))
    except (OSError, pa.ArrowException, ValueError, KeyError, EOFError) as error:
        if storage.is_at_fault(error, [file.path], read):
            raise
        why = Reason("unreadable_position_deletes", str(error), "Restore the file.")
        return Trace(frozenset(found), why)
    return Trace(frozenset(found), size_bytes=file.file_size_bytes)


class _KeepsRowsError(Exception):
    """The file has more than positions."""


def search_puffin(storage: Storage, keys: ErasedKeys, location: str, size_bytes: int) -> Trace:
    """By its footer. Raises OSError (a retry can help)."""
    try:
        footer = _footer(storage, location, size_bytes)
        kinds = {str(blob["type"]) for blob in footer.get("blobs", ())}
        found = keys.in_texts(_properties(footer))
    except FileNotFoundError as error:
        return Trace(why=missing_file(error))
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError, struct.error) as error:
        return Trace(why=_unreadable(f"its footer can't be read: {error}"))
    if unknown := sorted(kinds - _WITHOUT_KEYS):
        return Trace(found, _unreadable(f"it has blobs of types that may have keys, such as {unknown[0]}"))
    return Trace(found, size_bytes=size_bytes)


def _footer(storage: Storage, location: str, size_bytes: int) -> dict[str, Any]:
    """Raises ValueError."""
    with storage.open_input(location) as source:
        check_size(source, size_bytes)
        if size_bytes < _TAIL.size + 2 * len(PUFFIN_MAGIC):
            raise ValueError("the file is too short")
        payload_bytes, flags, magic = _TAIL.unpack(source.read_at(_TAIL.size, size_bytes - _TAIL.size))
        if magic != PUFFIN_MAGIC or flags:
            raise ValueError("it is packed, or no footer")
        if not 0 <= payload_bytes <= min(_FOOTER_BYTES, size_bytes - _TAIL.size):
            raise ValueError(f"it says that it has {payload_bytes:,} bytes")
        told = json.loads(source.read_at(payload_bytes, size_bytes - _TAIL.size - payload_bytes))
    if not isinstance(told, dict):
        raise ValueError("it is no object")
    return told


def _properties(footer: dict[str, Any]) -> Iterator[str]:
    for one in (footer, *footer.get("blobs", ())):
        for name, value in (one.get("properties") or {}).items():
            yield name
            yield str(value)


def _unreadable(reason: str) -> Reason:
    remedy = "Remove what names it (the table's statistics), or rewrite its deletes, and erase again."
    return Reason("unreadable_puffin", reason, remedy)
