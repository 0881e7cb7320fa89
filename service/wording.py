"""Counting, and what is wrong with a field, in sentences that people read."""

import math
from collections.abc import Mapping
from typing import Any

_BYTE_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")
# By Pydantic's type of an error, or its beginning; the longest that fits counts.
_MISTAKES = {
    "missing": "This is needed.",
    "extra_forbidden": "This is not known here.",
    "int": "This takes a whole number.",
    "float": "This takes a number.",
    "finite_number": "This takes a finite number.",
    "bool": "This is either on or off.",
    "string": "This takes text.",
    "string_pattern_mismatch": "This takes letters, digits, dots, hyphens and underscores, and begins with "
    "a letter or digit.",
    "string_too_short": "This takes {min_length} characters at least.",
    "string_too_long": "This takes {max_length} characters at most.",
    "greater_than": "This must be more than {gt}.",
    "greater_than_equal": "This must be {ge} or more.",
    "less_than": "This must be less than {lt}.",
    "less_than_equal": "This must be {le} or less.",
    "literal_error": "This is one of {expected}.",
    "enum": "This is one of {expected}.",
    "list": "This takes a list.",
    "too_short": "This takes {min_length} entries at least.",
    "too_long": "This takes {max_length} entries at most.",
    "dict": "This can't be read.",
    "model": "This can't be read.",
    "date": "This takes a date such as 2030-01-31.",
    "datetime": "This takes a date and a time such as 2030-01-31 22:00.",
    "time": "This takes a time of day such as 22:00.",
    "url": "This takes an address such as https://host/path.",
    "json": "This can't be read.",
}


def mistake(kind: str, message: str, limits: Mapping[str, Any]) -> str:
    """What is wrong with a field of a form; kind, message, limits are Pydantic's `type`, `msg` and `ctx`.

    What our own checks say stands as it is.
    """
    fitting = [known for known in _MISTAKES if kind == known or kind.startswith(f"{known}_")]
    if not fitting:
        return message.removeprefix("Value error, ")
    return _MISTAKES[max(fitting, key=len)].format_map(limits)


def counted(number: int, noun: str) -> str:
    """`1 data file`, `2 data files`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def aged(seconds: float) -> str:
    """`45 seconds`, `3 days`: in the largest unit of which there is at least one, cut off."""
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            return counted(int(seconds // length), unit)
    return counted(int(seconds), "second")


def sized(value_bytes: float) -> str:
    """`999 B`, `1.5 MB`: decimal units, as object stores bill them."""
    power = min(int(math.log10(value_bytes) // 3), len(_BYTE_UNITS) - 1) if value_bytes >= 1 else 0
    scaled = value_bytes / 1000**power
    digits = f"{scaled:.0f}" if power == 0 or scaled >= 100 else f"{scaled:.1f}"
    return f"{digits} {_BYTE_UNITS[power]}"
