"""What is wrong with a field of a request, in sentences that people read."""

from collections.abc import Mapping
from typing import Any

from telemetry.plurals import counted

_UNITS = ("second", "byte")
# By Pydantic's type of an error, or its beginning; the longest that fits counts.
_MISTAKES = {
    "missing": "This is needed.",
    "extra_forbidden": "This is not known here.",
    "int": "This takes a whole number.",
    "float": "This takes a number.",
    "finite_number": "This takes a finite number.",
    "bool": "This is either on (true) or off (false).",
    "string": "This takes text.",
    "string_pattern_mismatch": "This takes letters, digits, dots, hyphens and underscores, and begins with "
    "a letter or digit.",
    "string_too_short": "This takes at least {min_length}.",
    "string_too_long": "This takes at most {max_length}.",
    "greater_than": "This must be more than {gt}.",
    "greater_than_equal": "This must be {ge} or more.",
    "less_than": "This must be less than {lt}.",
    "less_than_equal": "This must be {le} or less.",
    "literal_error": "This is one of {expected}.",
    "enum": "This is one of {expected}.",
    "list": "This takes a list.",
    "too_short": "This takes at least {min_length}.",
    "too_long": "This takes at most {max_length}.",
    "tuple": "This takes a list.",
    "dict": "This takes names with values.",
    "model": "This takes names with values.",
    "none_required": "This stays empty.",
    "uuid": "This takes a UUID.",
    "date": "This takes a date such as 2030-01-31.",
    "datetime": "This takes a date and a time such as 2030-01-31 22:00.",
    "timezone_aware": "This takes a time with its time zone, such as 2030-01-31T22:00:00Z.",
    "time": "This takes a time of day such as 22:00.",
    "url": "This takes an address such as https://host/path.",
    "json": "This can't be read as JSON.",
    "json_invalid": "This can't be read as JSON: {error}.",
}


def mistake(kind: str, message: str, limits: Mapping[str, Any], field: str = "") -> str:
    """What is wrong with a field; kind, message, limits are Pydantic's `type`, `msg` and `ctx`.

    field: its name, which ends with its unit. What our own checks say stands as it is.
    """
    fitting = [known for known in _MISTAKES if kind == known or kind.startswith(f"{known}_")]
    if not fitting:
        return message.removeprefix("Value error, ")
    noun = "character" if kind.startswith("string_") else "entry"
    unit = next((unit for unit in _UNITS if field.removesuffix("_per_day").endswith(f"{unit}s")), None)
    return _MISTAKES[max(fitting, key=len)].format_map(
        {name: _written(value, noun if name.endswith("_length") else unit) for name, value in limits.items()}
    )


def _written(limit: Any, unit: str | None) -> str:
    if isinstance(limit, float) and limit.is_integer():
        limit = int(limit)
    return counted(limit, unit) if unit and isinstance(limit, int) else str(limit)
