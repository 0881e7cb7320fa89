"""Checksums that files of the index carry in themselves: of all that leads a lookup to the pages.

Pages have Parquet's own. Parquet's footers and Paimon's manifests and snapshots have none: a flipped bit may
leave them readable and hide entries. So each has a CRC-32 of all its other bytes in a place that its readers
leave alone. A file without one, of another writer, is read unchecked.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any, Protocol
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq

from stores.avro_readers import SYNC_BYTES
from worker.io.parquet_footers import read_tail

NAME = "icestream.crc32"
BLANK = "00000000"  # is in the checksum's place until it is known
_AVRO = b"Obj\x01"
_SYNC_MARK = b"icecrc32"  # the first half of a sync marker, which Avro leaves to the writer
_IN_JSON = f'"{NAME}": "'.encode()
_IN_FOOTER = NAME.encode() + b"\x18\x08"  # as Thrift has a key, and a value of 8 bytes


class Stream(Protocol):
    """What a file is written to."""

    def write(self, content: bytes) -> Any: ...

    def close(self) -> None: ...


class FooterSink:
    """Where Arrow writes a Parquet file with `NAME: BLANK` in its metadata; the footer gets its checksum."""

    def __init__(self, sink: pa.NativeFile) -> None:
        self._sink = sink
        self._footer: bytearray | None = None
        self.closed = False

    def write(self, content: bytes) -> int:
        if self._footer is None:
            self._sink.write(content)
        else:
            self._footer += content
        return len(content)

    def tell(self) -> int:
        return int(self._sink.tell()) + len(self._footer or b"")

    def flush(self) -> None:
        """The store decides when."""

    def footer_follows(self) -> None:
        """No page is written from here on."""
        self._footer = bytearray()

    def close(self) -> int:
        """The size of the whole file, in bytes."""
        self._sink.write(_filled(bytes(self._footer or b""), _IN_FOOTER))
        size_bytes = int(self._sink.tell())
        self._sink.close()
        self.closed = True
        return size_bytes


def read_footer(source: pa.NativeFile, expected_bytes: int = 0) -> pq.FileMetaData:
    """The footer of a Parquet file, in one request if it has no more bytes than expected, else in two.

    Raises pa.ArrowException when it is damaged, and OSError.
    """
    tail, length = read_tail(source, expected_bytes)
    _check(tail[-length:], _IN_FOOTER)
    return pq.read_metadata(pa.BufferReader(tail))


def filled_json(content: bytes) -> bytes:
    """JSON with `NAME: BLANK` in it, indented, with its checksum."""
    return _filled(content, _IN_JSON)


class CheckedFiles:
    """Changes a FileIO of Paimon: what it writes in Avro gets a checksum, and what it reads is checked.

    It reads and writes whole files, of metadata only.
    """

    def __init__(self, file_io: Any) -> None:
        self._open_input, self._open_output = file_io.new_input_stream, file_io.new_output_stream
        file_io.new_input_stream, file_io.new_output_stream = self.open_input, self.open_output

    def open_input(self, path: str) -> BytesIO:
        """Raises pa.ArrowInvalid when it is damaged."""
        with self._open_input(path) as source:
            content = bytes(source.read())
        try:
            if content.startswith(_AVRO):
                _check_avro(content)
            else:
                _check(content, _IN_JSON)
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(f"{path}: {error}") from None
        return BytesIO(content)

    def open_output(self, path: str) -> _Manifest:
        return _Manifest(self._open_output(path))


class _Manifest:
    """A file that is written with one call."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def write(self, content: bytes) -> None:
        self._stream.write(_filled_avro(content) if content.startswith(_AVRO) else content)

    def __enter__(self) -> _Manifest:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


def _filled(content: bytes, mark: bytes) -> bytes:
    """With the checksum of the rest behind the mark, which stands behind whatever the table's rows say."""
    start = content.rindex(mark) + len(mark)
    return b"%b%b%b" % (content[:start], _checksum(content, start), content[start + len(BLANK) :])


def _check(content: bytes, mark: bytes) -> None:
    found = content.rfind(mark)
    start = found + len(mark)
    if found >= 0 and content[start : start + len(BLANK)] != _checksum(content, start):
        raise pa.ArrowInvalid("its checksum is that of another content")


def _checksum(content: bytes, start: int) -> bytes:
    """Of all but the place, from `start` on, that the checksum itself has."""
    return b"%08x" % crc32(content[start + len(BLANK) :], crc32(content[:start]))


# In Avro the checksum is the other half of the sync marker, which ends the header and each block: so a file
# keeps its size, which pypaimon writes down elsewhere.


def _filled_avro(content: bytes) -> bytes:
    random = content[-SYNC_BYTES:]
    return content.replace(random, _SYNC_MARK + _avro_checksum(content))


def _check_avro(content: bytes) -> None:
    marker = content[-SYNC_BYTES:]
    if marker.startswith(_SYNC_MARK) and not marker.endswith(_avro_checksum(content)):
        raise pa.ArrowInvalid("its checksum is that of another content")


def _avro_checksum(content: bytes) -> bytes:
    """Of all but the sync markers, of which there is one more than blocks."""
    return b"%08x" % crc32(content.replace(content[-SYNC_BYTES:], b""))
