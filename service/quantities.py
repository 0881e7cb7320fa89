"""Numbers with their nouns and units, in sentences that people read."""

import math

from telemetry.plurals import counted

_BYTE_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")


def aged(seconds: float) -> str:
    """`45 seconds`, `3 days`: in the largest unit of which there is at least one, cut off."""
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            return counted(int(seconds // length), unit)
    return counted(int(seconds), "second")


def brief(seconds: float) -> str:
    """`4ms`, `45s`, `12m`, `3h`, `4d`: as `aged`, for columns."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length:,.0f}{unit}"
    if 0 < seconds < 0.05:
        return f"{seconds * 1000:.0f}ms"
    return f"{seconds:.0f}s" if seconds >= 10 or seconds == int(seconds) else f"{seconds:.1f}s"


def sized(value_bytes: float) -> str:
    """`999 B`, `1.5 MB`: decimal units, as object stores bill them."""
    power = min(int(math.log10(value_bytes) // 3), len(_BYTE_UNITS) - 1) if value_bytes >= 1 else 0
    scaled = value_bytes / 1000**power
    digits = f"{scaled:.0f}" if power == 0 or scaled >= 100 else f"{scaled:.1f}"
    return f"{digits} {_BYTE_UNITS[power]}"
