"""Policy settings as people type them: `10 min`, `64 MB`, `50%`, `sat, sun 22:00-06:00`. Pure.

What is written into a form reads back as the very same value.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.policies.schedules import Window
from service.policies.settings import PolicySettings
from service.ui.formats import POLICY_SECTIONS, POLICY_SETTINGS, SHARES

_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_AMOUNT = re.compile(r"(-?[0-9][0-9_,]*(?:\.[0-9]+)?(?:e-?[0-9]+)?)\s*([a-zA-Z%]*)")
_EXAMPLES = {
    "from": "ingest",
    "cron": "0 3 * * *",
    "time_zone": "Europe/Berlin",
    "windows": "sat, sun 22:00-06:00",
    "readers": "athena, trino-475",
}
_WINDOW = re.compile(r"(?:(.*\S)\s+)?(\S+)\s*-\s*(\S+)")


@dataclass(frozen=True)
class Setting:
    name: str
    """Dotted, as in the effective policy."""
    label: str
    help: str
    kind: str
    """`switch`, `windows` or `text`."""
    example: str
    """How such a value is written, if that is not plain."""
    inherited: str
    """What holds if the field stays empty, as it would be written there."""


def sections(inherited: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, list[Setting]]]:
    """All settings that a policy can have, under their headings. inherited: values by dotted name."""
    for section, part in PolicySettings.model_fields.items():
        fields = part.annotation.model_fields if part.annotation is not None else {}
        yield (
            POLICY_SECTIONS[section],
            [
                Setting(
                    f"{section}.{name}",
                    POLICY_SETTINGS[f"{section}.{name}"],
                    (field.description or "").replace("`", ""),
                    {"enabled": "switch", "windows": "windows"}.get(name, "text"),
                    _EXAMPLES.get(name, ""),
                    " or ".join(
                        write_setting(f"{section}.{name}", value).replace("\n", "; ")
                        for value in inherited[f"{section}.{name}"]
                    ),
                )
                for name, field in ((field.alias or name, field) for name, field in fields.items())
            ],
        )


def write_setting(name: str, value: Any) -> str:
    """What stands in the field; nothing for a setting that is inherited."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if name.endswith(".windows"):
        return "\n".join(str(Window.model_validate(each)) for each in value) or "always"
    if name.endswith(".readers"):
        return ", ".join(value) or "none"
    if isinstance(value, str):
        return value or "none"
    if name.endswith(SHARES):
        percent = f"{value * 100:g}%"
        return percent if read_setting(name, percent) == value else str(value)
    units = _units(name)
    whole = int(value) if value == int(value) else value
    factor, unit = max(
        ((factor, unit) for unit, factor in units.items() if value and value % factor == 0), default=(1, "")
    )
    return f"{whole // factor:,} {unit}".strip() if unit else f"{whole:,}" if units == {} else str(whole)


def read_setting(name: str, text: str) -> Any:
    """The value that a field stands for; None if it is empty. What can't be read stays text, which the
    policy refuses."""
    text = text.strip()
    if not text:
        return None
    if name.endswith(".enabled"):
        return {"on": True, "off": False}.get(text, text)
    if name.endswith(".windows"):
        return [] if text == "always" else [_window(line) for line in text.splitlines() if line.strip()]
    if name.endswith(".readers"):
        return [] if text == "none" else [one.strip() for one in text.split(",") if one.strip()]
    if name.endswith((".cron", ".from")):
        return "" if text == "none" else text
    found = _AMOUNT.fullmatch(text)
    if found is None:
        return text
    digits, unit = found[1].replace(",", "").replace("_", ""), found[2]
    number = float(digits) if {".", "e"} & set(digits) else int(digits)
    if unit == "%" and name.endswith(SHARES):
        return number / 100
    factor = (_units(name) | {"": 1}).get(unit)
    if factor is None:
        return text
    scaled = number * factor
    return int(scaled) if scaled == int(scaled) else scaled


def _window(line: str) -> Any:
    found = _WINDOW.fullmatch(line.strip())
    if found is None:
        return line.strip()
    days = [day.strip() for day in (found[1] or "").split(",") if day.strip()]
    return {"start": found[2], "end": found[3]} | ({"days": days} if days else {})


def _units(name: str) -> dict[str, int]:
    name = name.removesuffix("_per_day")
    return _SECONDS if name.endswith("_seconds") else _BYTES if name.endswith("bytes") else {}
