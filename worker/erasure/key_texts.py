"""How texts tell keys of one column that are texts: they stand in them, as people or programs write them."""

from __future__ import annotations

import html
import quopri
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from urllib.parse import unquote, unquote_plus

SHORT = 4
"""Characters below which a text is a key only if it stands by itself: it is in too many words."""
_NUMERAL = re.compile(r"\d+|[0-9a-fA-F]{1,15}")  # which counts, times and UUIDs have in them
_ESCAPES = re.compile(r"\\|%[0-9a-fA-F]{2}|&#?\w+;")
_BACKSLASH = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_CONTROLS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_DOUBLED = re.compile("(['\"])\\1")
_INTEGER = re.compile(r"-?\d+")
_NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")
_HAS_EXPONENT = re.compile("[eE]")
_DIGITS = 20  # more than keys have
_QUOTED_PRINTABLE = re.compile(r"=([0-9a-fA-F]{2}|\r?\n)")


class KeyTexts:
    def __init__(self, words: Mapping[str, Collection[int]]) -> None:
        """words: of each text which keys it is."""
        self._words = words
        self._by_size: dict[int, set[str]] = defaultdict(set)
        for word in words:
            self._by_size[len(word)].add(word)

    @lru_cache(maxsize=10_000)  # noqa: B019 - lives as long as a job; metadata files repeat each other
    def told_in(self, text: str) -> frozenset[int]:
        """Whatever the number of keys: only their lengths count."""
        found: set[int] = set()
        for spelled in spellings(text):
            for size, words in self._by_size.items():
                here = (spelled[at : at + size] for at in range(len(spelled) - size + 1))
                for word in {part for part in here if part in words}:
                    if _is_anywhere(word) or _stands_alone(word, spelled):
                        found.update(self._words[word])
        return frozenset(found)


def _is_anywhere(word: str) -> bool:
    return len(word) >= SHORT and not _NUMERAL.fullmatch(word)


def _stands_alone(word: str, text: str) -> bool:
    return re.search(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])", text) is not None


def is_escaped(text: str) -> bool:
    """Whether it may stand for other characters, in more ways than `spellings` knows."""
    return _ESCAPES.search(text) is not None


def spellings(text: str) -> Iterator[str]:
    """A text as it is, and what it would be to URLs, JSON, CSV or SQL, XML, and mail."""
    yield text
    if "%" in text or "+" in text:
        yield unquote(text)
        yield unquote_plus(text)
    if "\\" in text:
        units = _BACKSLASH.sub(_unescaped, text)
        yield units.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if _DOUBLED.search(text):
        yield _DOUBLED.sub(r"\1", text)
    if "&" in text:
        yield html.unescape(text)
    if _QUOTED_PRINTABLE.search(text):
        yield quopri.decodestring(text.encode(errors="surrogatepass")).decode(errors="replace")


def whole_numbers(texts: Iterable[str]) -> Iterator[int]:
    """Those that stand in texts, also before a point and as `1e16`. Raises ValueError if one is endless."""
    for text in texts:
        yield from map(int, _INTEGER.findall(text))
        for written in filter(_HAS_EXPONENT.search, _NUMBER.findall(text)):
            with suppress(InvalidOperation):  # an exponent that is endless
                number = Decimal(written)
                if number.adjusted() < _DIGITS and number == number.to_integral_value():
                    yield int(number)


def _unescaped(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else _CONTROLS.get(escape[2], escape[2])
