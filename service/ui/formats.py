"""How figures and times are written on the pages. Pure; None is always a dash."""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime

from markupsafe import Markup

from service.policies.models import EffectiveValue, ValueSource
from service.policies.schedules import Window
from service.wording import sized

NONE = "\N{EM DASH}"
_SPACE = "\N{NO-BREAK SPACE}"
_TIME = "%Y-%m-%d %H:%M:%S"
_WRITTEN_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC)")
POLICY_SECTIONS = {
    "index": "Index new data files",
    "convert": "Convert equality deletes",
    "compact": "Compact the index",
    "verify": "Verify the index",
    "schedule": "When jobs start by themselves",
    "retries": "When a job fails or takes too long",
    "resources": "What a job takes of its worker",
    "budget": "What jobs may take within a day (0: any amount)",
}
POLICY_SETTINGS = {
    "index.enabled": "by itself",
    "index.data_files": "as soon as this many files are new",
    "index.rows": "or this many rows",
    "index.bytes": "or this many bytes",
    "index.age_seconds": "or this long after the last index job",
    "index.cron": "or at the times of this cron expression",
    "convert.enabled": "by itself",
    "convert.delete_files": "as soon as there are this many delete files",
    "convert.deletes": "or this many deletes in them",
    "convert.bytes": "or this many bytes of them",
    "convert.age_seconds": "or when the oldest one is this old",
    "convert.cron": "or at the times of this cron expression",
    "convert.max_delete_files_per_commit": "delete files in one commit at most (0: all)",
    "compact.enabled": "by itself",
    "compact.sorted_runs": "as soon as it has this many sorted runs",
    "compact.dead_ratio": "or this share of dead entries",
    "compact.dead_bytes": "or this many bytes of them",
    "compact.min_interval_seconds": "but not sooner after the last compact job than",
    "compact.cron": "or at the times of this cron expression",
    "verify.enabled": "by itself",
    "verify.data_files": "as soon as this many files are new since the last verification",
    "verify.rows": "or this many rows",
    "verify.bytes": "or this many bytes",
    "verify.age_seconds": "or this long after it",
    "verify.cron": "or at the times of this cron expression",
    "schedule.time_zone": "time zone of cron expressions and windows",
    "schedule.windows": "only within",
    "schedule.priority": "priority: of waiting jobs, the highest runs first",
    "schedule.idle_pause_seconds": "pause after a job that found nothing to do",
    "schedule.max_idle_pause_seconds": "doubled each time, up to",
    "retries.max_attempts": "attempts at most",
    "retries.backoff_seconds": "pause after the first attempt that failed",
    "retries.max_backoff_seconds": "doubled each time, up to",
    "retries.timeout_seconds": "time that an attempt may take (0: any)",
    "retries.pause_seconds": "pause after the first job that failed with all attempts",
    "retries.max_pause_seconds": "doubled each time, up to",
    "resources.max_tasks": "tasks at a time (0: as many as there are cores)",
    "resources.memory_fraction": "of what it usually holds in memory",
    "budget.table_seconds_per_day": "time of this table's jobs",
    "budget.table_bytes_per_day": "bytes of this table's jobs",
    "budget.catalog_seconds_per_day": "time of the catalog's jobs",
    "budget.catalog_bytes_per_day": "bytes of the catalog's jobs",
}


def count(value: float | None) -> str:
    """12345 -> `12,345`."""
    return NONE if value is None else f"{value:,.0f}"


def short_count(value: float) -> str:
    """12345 -> `12.3 k`: for axes, where exact figures stand elsewhere."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{_SPACE}{unit}"
    return f"{value:.3g}"


def plural(value: float | None, noun: str, nouns: str | None = None) -> str:
    """1, `file` -> `1 file`; 2, `file` -> `2 files`."""
    return f"{count(value)}{_SPACE}{noun if value == 1 else nouns or noun + 's'}"


def size(value_bytes: float | None) -> str:
    """Decimal units, as object stores bill them."""
    return NONE if value_bytes is None else sized(value_bytes).replace(" ", _SPACE)


def duration(seconds: float | None) -> str:
    """The two largest units: `0.35 s`, `42 s`, `3 min 12 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds is None:
        return NONE
    if seconds == 0:
        return f"0{_SPACE}s"
    if seconds < 10:
        return f"{seconds:.1f}{_SPACE}s" if seconds >= 1 else f"{seconds:.2f}{_SPACE}s"
    whole = round(seconds)
    parts = [
        (whole // 86400, "d"),
        (whole // 3600 % 24, "h"),
        (whole // 60 % 60, "min"),
        (whole % 60, "s"),
    ]
    first = next(index for index, (value, _) in enumerate(parts) if value)
    return " ".join(f"{value}{_SPACE}{unit}" for value, unit in parts[first : first + 2] if value)


def percent(ratio: float | None) -> str:
    """Rounded down, so that only what is complete reads 100%."""
    return NONE if ratio is None else f"{math.floor(ratio * 1000 + 1e-9) / 10:g}%"


def aware(moment: datetime | str) -> datetime:
    """A time from a model, or its RFC 3339 text from JSON."""
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    return moment.astimezone(UTC)


def rfc3339(moment: datetime | str) -> str:
    return aware(moment).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment(value: datetime | str | None) -> str:
    """A <time> in UTC; the script rewrites it in the viewer's zone and leaves UTC as the tooltip."""
    if value is None:
        return NONE
    text = f"{aware(value):{_TIME}} UTC"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(rfc3339(value), text, text)


def with_times(text: str) -> str:
    """The same with each time that stands in it as a <time> of its own, as `moment` writes it."""
    return Markup("").join(
        _read_time(part) if number % 2 else part for number, part in enumerate(_WRITTEN_TIME.split(text))
    )


def _read_time(text: str) -> str:
    try:
        return moment(datetime.fromisoformat(text.replace(" UTC", "Z")))
    except ValueError:
        return text


def breakable(name: str) -> str:
    """A name that may break after its dots and underscores, and nowhere else."""
    return Markup("<wbr>").join(part for part in re.split(r"(?<=[._])", name) if part)


def seconds_between(began: datetime | str, ended: datetime | str) -> float:
    return max((aware(ended) - aware(began)).total_seconds(), 0.0)


def sentence(text: str | None) -> str:
    """With a capital first and a full stop last, whoever wrote it."""
    text = (text or "").strip()
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text[-1] in ".!?:" else ".")


def policy_sections(
    values: Mapping[str, EffectiveValue],
) -> list[tuple[str, list[tuple[str, str, ValueSource]]]]:
    """Title of each section, and for each setting in it: words, value, source."""
    sections: dict[str, list[tuple[str, str, ValueSource]]] = {}
    for name, item in values.items():
        section, _, rest = name.partition(".")
        title = POLICY_SECTIONS.get(section, section.replace("_", " ").capitalize())
        words = POLICY_SETTINGS.get(name, rest.replace("_", " "))
        sections.setdefault(title, []).append((words, setting(item.value, name), item.source))
    return list(sections.items())


def setting(value: object, name: str) -> str:
    """The value of a policy setting, with the unit that its name ends in."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int | float):
        if name.endswith(("_ratio", "_fraction")):
            return f"{value:.0%}"
        unit = name.removesuffix("_per_day")
        if unit.endswith("bytes"):
            return size(value)
        return duration(value) if unit.endswith("_seconds") else count(value)
    if name.endswith(".windows"):
        windows = [Window.model_validate(each) for each in value] if isinstance(value, list) else []
        return " or ".join(map(str, windows)) or "always"
    return str(value) or "none"
