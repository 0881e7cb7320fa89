"""How texts tell keys of one column that are texts: they stand in them, as people or programs write them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from urllib.parse import unquote, unquote_plus

SHORT = 4
"""Characters below which a text is a key only if it stands by itself: it is in too many words."""
_NUMERAL = re.compile(r"\d+|[0-9a-fA-F]{1,15}")  # which counts, times and UUIDs have in them
_ESCAPES = re.compile(r"\\|%[0-9a-fA-F]{2}")
_CODE_UNIT = re.compile(r"\\u([0-9a-fA-F]{4})")


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
                here = {spelled[at : at + size] for at in range(len(spelled) - size + 1)}
                for word in words & here:
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
    """A text as it is, and as URLs and JSON would have it."""
    yield text
    if "%" in text or "+" in text:
        yield unquote(text)
        yield unquote_plus(text)
    if "\\u" in text:
        units = _CODE_UNIT.sub(lambda unit: chr(int(unit[1], 16)), text)
        yield units.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
