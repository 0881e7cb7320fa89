"""Deletion vectors, decoded by the specifications of Puffin and of Roaring's portable format alone."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from zlib import crc32


def positions(blob: bytes) -> list[int]:
    """Raises ValueError for what is no vector."""
    (length,), content, (checksum,) = (
        struct.unpack(">i", blob[:4]),
        blob[4:-4],
        struct.unpack(">I", blob[-4:]),
    )
    if length != len(content) or content[:4] != b"\xd1\xd3\x39\x64" or checksum != crc32(content):
        raise ValueError("no deletion vector")
    (count,) = struct.unpack_from("<Q", content, 4)
    at, found = 12, []
    for _ in range(count):
        (key,) = struct.unpack_from("<I", content, at)
        lows, at = _bitmap(content, at + 4)
        found += [key << 32 | low for low in lows]
    if at != len(content):
        raise ValueError("bytes are left")
    return found


def _bitmap(content: bytes, at: int) -> tuple[list[int], int]:
    begin = at
    (cookie,) = struct.unpack_from("<I", content, at)
    at += 4
    if cookie & 0xFFFF == 12347:
        count = (cookie >> 16) + 1
        flags = int.from_bytes(content[at : at + -(-count // 8)], "little")
        at += -(-count // 8)
    elif cookie == 12346:
        (count,), flags = struct.unpack_from("<I", content, at), 0
        at += 4
    else:
        raise ValueError("no bitmap")
    heads = [struct.unpack_from("<HH", content, at + 4 * i) for i in range(count)]
    at += 4 * count
    offsets = None
    if not flags or count >= 4:
        offsets = struct.unpack_from(f"<{count}I", content, at)
        at += 4 * count
    found = []
    for i, (high, last) in enumerate(heads):
        if offsets is not None and offsets[i] != at - begin:
            raise ValueError("a container lies elsewhere than its offset says")
        lows, at = _container(content, at, last + 1, is_run=bool(flags >> i & 1))
        if len(lows) != last + 1:
            raise ValueError("another number of positions than the head says")
        found += [high << 16 | low for low in lows]
    return found, at


def _container(content: bytes, at: int, cardinality: int, *, is_run: bool) -> tuple[list[int], int]:
    if is_run:
        (runs,) = struct.unpack_from("<H", content, at)
        pairs = struct.iter_unpack("<HH", content[at + 2 : at + 2 + 4 * runs])
        return [low for first, more in pairs for low in range(first, first + more + 1)], at + 2 + 4 * runs
    if cardinality > 4096:
        return list(_bits(content[at : at + 8192])), at + 8192
    end = at + 2 * cardinality
    return list(struct.unpack(f"<{cardinality}H", content[at:end])), end


def _bits(words: bytes) -> Iterator[int]:
    for at, byte in enumerate(words):
        for bit in range(8):
            if byte >> bit & 1:
                yield 8 * at + bit
