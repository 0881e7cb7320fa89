"""Deletion vectors in Puffin files: the bytes that the `deletes` stage leaves in a format V3 table.

Invariant: a vector is read back only if its length, magic and checksum hold, so a torn or wrong range of a
file is an error and never a wrong set of positions. Source: Iceberg's Puffin spec, `deletion-vector-v1`, and
`BaseDVFileWriter` and `BitmapPositionDeleteIndex` of Iceberg Java.
"""

import json
import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from worker.io.storage import Storage

Positions = npt.NDArray[np.int64]

PUFFIN_MAGIC = b"PFA1"
VECTOR_MAGIC = b"\xd1\xd3\x39\x64"
ROW_POSITION_FIELD_ID = 2147483645  # the reserved column `_pos`
CREATED_BY = "Icestream"
_FRAME_BYTES = 12  # length, magic, checksum


class CorruptDeletionVectorError(Exception):
    """The range of the file holds no intact deletion vector. A retry can't help."""


class Sink(Protocol):
    """Where bytes are appended."""

    def write(self, content: bytes, /) -> object: ...


@dataclass(frozen=True, slots=True)
class VectorRange:
    """Where one deletion vector lies in its Puffin file, and how many positions it holds."""

    referenced_data_file: str
    content_offset: int
    content_size_bytes: int
    cardinality: int


class PuffinWriter:
    """Appends deletion vectors to one file, holding one of them in memory at a time.

    The file is whole after `finish`; without it readers can't open it.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._ranges: list[VectorRange] = []
        self.size_bytes = 0
        self._append(PUFFIN_MAGIC)

    def write(self, referenced_data_file: str, positions: BitMap64) -> VectorRange:
        """Appends the vector of one data file; at most one vector a data file."""
        vector = encode_vector(positions)
        written = VectorRange(referenced_data_file, self.size_bytes, len(vector), len(positions))
        self._append(vector)
        self._ranges.append(written)
        return written

    def finish(self) -> int:
        """Appends the footer; returns the size of the file in bytes."""
        payload = _footer(self._ranges)
        self._append(PUFFIN_MAGIC + payload + struct.pack("<ii", len(payload), 0) + PUFFIN_MAGIC)
        return self.size_bytes

    def _append(self, content: bytes) -> None:
        self._sink.write(content)
        self.size_bytes += len(content)


def _footer(ranges: Sequence[VectorRange]) -> bytes:
    # Snapshot id and sequence number are not known before the commit: -1 says that they are inherited.
    footer = {
        "blobs": [
            {
                "type": "deletion-vector-v1",
                "fields": [ROW_POSITION_FIELD_ID],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": vector.content_offset,
                "length": vector.content_size_bytes,
                "properties": {
                    "referenced-data-file": vector.referenced_data_file,
                    "cardinality": str(vector.cardinality),
                },
            }
            for vector in ranges
        ],
        "properties": {"created-by": CREATED_BY},
    }
    return json.dumps(footer, separators=(",", ":")).encode()


_EMPTY_FILE_BYTES = 3 * len(PUFFIN_MAGIC) + len(_footer([])) + 8
_VECTOR_IN_FOOTER_BYTES = len(_footer([VectorRange("", 0, 0, 0)])) - len(_footer([])) - len('""000')
LEAST_OF_OTHERS_BYTES = _EMPTY_FILE_BYTES + 2 * _VECTOR_IN_FOOTER_BYTES
"""That a file with several vectors has beside one of these and the path of its data file."""


def size_of_file(vectors: Iterable[VectorRange]) -> int:
    """In bytes, of a file in which `PuffinWriter` writes these and no others."""
    sizes = [
        one.content_size_bytes
        + _VECTOR_IN_FOOTER_BYTES
        + len(json.dumps(one.referenced_data_file))
        + sum(len(str(number)) for number in (one.content_offset, one.content_size_bytes, one.cardinality))
        for one in vectors
    ]
    return _EMPTY_FILE_BYTES + sum(sizes) + max(len(sizes) - 1, 0)  # with commas


def has_others(file_size_bytes: int, content_size_bytes: int, referenced_data_file: str) -> bool:
    """Whether a file of `PuffinWriter`'s, with a vector of this size, was written with further ones."""
    return file_size_bytes - content_size_bytes >= LEAST_OF_OTHERS_BYTES + len(
        json.dumps(referenced_data_file)
    )


def read_deletion_vector(
    storage: Storage,
    location: str,
    content_offset: int,
    content_size_bytes: int,
    cardinality: int | None = None,
) -> BitMap64:
    """The deleted positions (0-based) in one range of a Puffin file, read without its footer.

    cardinality: the record count that the manifest states, checked when given.
    Raises CorruptDeletionVectorError, FileNotFoundError, or OSError (a retry can help).
    """
    [positions] = read_deletion_vectors(
        storage, location, [(content_offset, content_size_bytes, cardinality)]
    )
    return positions


def read_deletion_vectors(
    storage: Storage, location: str, ranges: Sequence[tuple[int, int, int | None]]
) -> list[BitMap64]:
    """The same of several ranges (offset, size and cardinality), and of what is between, by one request."""
    start = min(offset for offset, _, _ in ranges)
    content = storage.read(location, start, max(offset + size for offset, size, _ in ranges) - start)
    return [
        _checked(content[offset - start : offset - start + size], location, offset, size, cardinality)
        for offset, size, cardinality in ranges
    ]


def _checked(vector: bytes, location: str, offset: int, size_bytes: int, cardinality: int | None) -> BitMap64:
    place = f"{location} [{offset}, +{size_bytes})"
    if len(vector) != size_bytes:
        raise CorruptDeletionVectorError(f"{place}: the file ends after {len(vector)} bytes of the vector")
    positions = decode_vector(vector, place)
    if cardinality is not None and len(positions) != cardinality:
        raise CorruptDeletionVectorError(
            f"{place}: the vector holds {len(positions)} positions, the manifest says {cardinality}"
        )
    return positions


def encode_vector(positions: BitMap64) -> bytes:
    """The blob of a deletion vector; run-length encodes `positions` in place, which keeps its content."""
    positions.run_optimize()
    content = VECTOR_MAGIC + positions.serialize()
    return struct.pack(">i", len(content)) + content + struct.pack(">I", crc32(content))


def decode_vector(vector: bytes, place: str = "deletion vector") -> BitMap64:
    """The positions in a blob; `place` names it in errors. Raises CorruptDeletionVectorError."""
    if len(vector) < _FRAME_BYTES:
        raise CorruptDeletionVectorError(f"{place}: {len(vector)} bytes are too few for a deletion vector")
    (length,) = struct.unpack_from(">i", vector)
    content = vector[4:-4]
    if length != len(content):
        raise CorruptDeletionVectorError(f"{place}: states {length} bytes of content, has {len(content)}")
    if content[:4] != VECTOR_MAGIC:
        raise CorruptDeletionVectorError(f"{place}: the magic number is {content[:4].hex()}")
    (checksum,) = struct.unpack_from(">I", vector, len(vector) - 4)
    if checksum != crc32(content):
        raise CorruptDeletionVectorError(f"{place}: the checksum does not match the content")
    try:
        return BitMap64.deserialize(content[4:])
    except MemoryError:
        raise
    except Exception as error:  # the library names no type
        raise CorruptDeletionVectorError(f"{place}: the bitmap can't be read: {error}") from error


def bitmap_of(positions: Positions) -> BitMap64:
    """A bitmap of non-negative positions in any order; repeated ones count once."""
    if len(positions) and int(positions.min()) < 0:
        raise ValueError(f"position {int(positions.min())} is negative")
    # The library reads an array of unsigned 64-bit integers without making a Python object of each.
    return BitMap64(array("Q", np.ascontiguousarray(positions, np.int64).tobytes()))


def positions_of(bitmap: BitMap64) -> Positions:
    """The positions of a bitmap, ascending."""
    return np.frombuffer(bitmap.to_array(), dtype=np.int64)
