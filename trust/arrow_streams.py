"""A stranger's Arrow stream, before anything decodes it: how many rows it says it has, and that it is plain.

Arrow's own reader allocates what a stream claims. A few kilobytes can claim any amount: by compression, by a
dictionary of one long value, by columns within columns, or by metadata that names one text many times. So
only what keys need is let through: flat columns, uncompressed, in batches whose buffers lie in the stream.
What is in the buffers is for the reader to check (`validate(full=True)`).

Arrow columnar format, "Encapsulated message format" and "IPC Streaming Format"; FlatBuffers, "Internals".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

STREAM_TYPE: Final = "application/vnd.apache.arrow.stream"
MESSAGES: Final = 10_001
"""A schema, and at most so many batches less one."""
COLUMNS: Final = 1_000
METADATA_BYTES: Final = 128 * 1024
"""Of one message."""
WORD_BYTES: Final = 256 * 1024
"""Of all names and metadata of the schema, each as often as it is named."""

_CONTINUES: Final = b"\xff\xff\xff\xff"
_SCHEMA, _RECORD_BATCH = 1, 3
_KINDS: Final = {2: "dictionaries", 4: "tensors", 5: "sparse tensors"}
_DECIMAL = 7
_DIGITS: Final = {32: 9, 64: 18, 128: 38, 256: 76}
"""That a decimal of so many bits may have."""
_BUFFER_BYTES: Final = 16
"""Of what a batch says of each buffer: where it begins, and its length."""


class ArrowStreamError(Exception):
    """It is no Arrow stream, or none of plain columns; the text says what is wrong with it."""


def count_rows(stream: bytes) -> int:
    """As its batches say, which the reader must find again. Raises ArrowStreamError."""
    rows = 0
    try:
        for number, message in enumerate(_messages(stream)):
            kind = message.number(1, "B")
            if kind != (_RECORD_BATCH if number else _SCHEMA):
                what = _KINDS.get(kind, "messages out of their order")
                raise ArrowStreamError(
                    f"It has {what}; a schema and record batches of plain columns are read."
                )
            header = message.table(2)
            if number:
                rows += _rows(header)
            else:
                _check_schema(header)
            if any(True for _ in message.tables(4)):
                raise ArrowStreamError("Its messages have metadata of their own.")
    except (struct.error, IndexError) as error:
        raise ArrowStreamError(f"It is damaged: {error}.") from error
    return rows


def _messages(stream: bytes) -> Iterator[_Table]:
    at, whole = 0, memoryview(stream)
    for _ in range(MESSAGES + 1):
        marker, size = stream[at : at + 4], struct.unpack_from("<i", whole, at + 4)[0]
        if marker != _CONTINUES:
            raise ArrowStreamError("It is not in the streaming format of Arrow IPC, or damaged.")
        at += 8
        if size == 0:
            if at != len(stream):
                raise ArrowStreamError("Something follows its end.")
            return
        if not 0 < size <= METADATA_BYTES:
            raise ArrowStreamError(f"A message has {size:,} bytes of metadata; {METADATA_BYTES:,} are read.")
        if at + size > len(stream):
            raise ArrowStreamError("It ends in the middle of a message.")
        metadata = whole[at : at + size]
        message = _Table(metadata, struct.unpack_from("<I", metadata)[0])
        yield message
        at += size
        body_bytes = message.number(3, "q")
        if not 0 <= body_bytes <= len(stream) - at:
            raise ArrowStreamError("It ends in the middle of a message.")
        at += body_bytes
    raise ArrowStreamError(f"It has more than {MESSAGES:,} messages.")


def _check_schema(schema: _Table) -> None:
    word_bytes = 0
    for at, field in enumerate(schema.tables(1)):
        if at == COLUMNS:
            raise ArrowStreamError(f"It has more than {COLUMNS:,} columns.")
        if any(True for _ in field.tables(5)):
            raise ArrowStreamError("It has columns within columns, which are no keys.")
        if field.number(2, "B") == _DECIMAL:
            _check_decimal(field.table(3))
        word_bytes = _more(word_bytes, field.text_bytes(0))
        for pair in field.tables(6):
            word_bytes = _more(word_bytes, pair.text_bytes(0) + pair.text_bytes(1))
    for pair in schema.tables(2):
        word_bytes = _more(word_bytes, pair.text_bytes(0) + pair.text_bytes(1))


def _check_decimal(kind: _Table) -> None:
    """Arrow's reader takes any scale, and its casts leave a table of powers of ten by it."""
    precision, scale, bits = kind.number(0, "i"), kind.number(1, "i"), kind.number(2, "i") or 128
    if not 0 <= scale <= precision <= _DIGITS.get(bits, 0):
        raise ArrowStreamError(
            f"It has decimals of {precision} digits, {scale} of them behind the point, in {bits} bits."
        )


def _more(word_bytes: int, further: int) -> int:
    word_bytes += 16 + further
    if word_bytes > WORD_BYTES:
        raise ArrowStreamError(f"Its schema has more than {WORD_BYTES:,} bytes of names and metadata.")
    return word_bytes


def _rows(batch: _Table) -> int:
    if batch.has(3):
        raise ArrowStreamError("It is compressed, and only what is not is read.")
    rows = batch.number(0, "q")
    if rows < 0:
        raise ArrowStreamError(f"A batch says that it has {rows:,} rows.")
    # How many buffers each column of views has. Arrow's reader makes room for them before it looks for them.
    buffers = batch.count(2, _BUFFER_BYTES)
    counts = batch.numbers(4, "q", at_most=buffers)
    if min(counts, default=0) < 0 or sum(counts) > buffers:
        raise ArrowStreamError("A batch says that it has more buffers than there are.")
    return rows


class _Table:
    """A table of a FlatBuffer. Raises struct.error or IndexError for what lies outside of the buffer."""

    def __init__(self, buffer: memoryview, at: int) -> None:
        self._buffer = buffer
        self._at = at
        self._fields = at - self._read("<i", at)
        self._fields_bytes = self._read("<H", self._fields)

    def has(self, field: int) -> bool:
        return self._place(field) is not None

    def number(self, field: int, kind: str) -> int:
        """kind: as `struct` has it; what is not there is 0."""
        place = self._place(field)
        return 0 if place is None else self._read(f"<{kind}", place)

    def table(self, field: int) -> _Table:
        place = self._place(field)
        if place is None:
            raise IndexError("a message has no header")
        return self._follow(place)

    def tables(self, field: int) -> Iterator[_Table]:
        start, count = self._vector(field)
        for number in range(count):
            yield self._follow(start + 4 * number)

    def numbers(self, field: int, kind: str, at_most: int) -> tuple[int, ...]:
        """A vector of as many. Raises IndexError if it says that it has more."""
        start, count = self._vector(field)
        if count > at_most:
            raise IndexError(f"a vector has {count:,} numbers")
        return struct.unpack_from(f"<{count}{kind}", self._buffer, start)

    def count(self, field: int, each_bytes: int) -> int:
        """Of structs in a vector, all of which are there. Raises IndexError if they are not."""
        start, count = self._vector(field)
        if start + count * each_bytes > len(self._buffer):
            raise IndexError(f"a vector has {count:,} structs")
        return count

    def text_bytes(self, field: int) -> int:
        return self._vector(field)[1]

    def _vector(self, field: int) -> tuple[int, int]:
        place = self._place(field)
        if place is None:
            return 0, 0
        start = place + self._read("<I", place)
        return start + 4, self._read("<I", start)

    def _follow(self, place: int) -> _Table:
        return _Table(self._buffer, place + self._read("<I", place))

    def _place(self, field: int) -> int | None:
        if 4 + 2 * field + 2 > self._fields_bytes:
            return None
        offset = self._read("<H", self._fields + 4 + 2 * field)
        return self._at + offset if offset else None

    def _read(self, kind: str, at: int) -> int:
        if at < 0:
            raise IndexError("an offset leads to before the beginning")
        return int(struct.unpack_from(kind, self._buffer, at)[0])
