"""How figures and times are written on the pages. Pure; None is always a dash."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup, escape

from service.http.paging import Total
from service.policies.models import EffectiveValue, ValueSource
from service.policies.schedules import Window
from service.quantities import sized

NONE = "\N{EM DASH}"
_SPACE = "\N{NO-BREAK SPACE}"
_BREAKS = re.compile(r"(?<=[._])(?=.)", re.DOTALL)
_MARKED = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC|`[^`]+`)")
POLICY_SECTIONS = {
    "index": "Index new data files",
    "convert": "Convert equality deletes",
    "publish": "Publish what is staged",
    "expire_snapshots": "Let snapshots expire",
    "rewrite_data_files": "Rewrite data files",
    "rewrite_position_delete_files": "Rewrite small position delete files",
    "rewrite_manifests": "Rewrite small manifests",
    "compact": "Compact the index",
    "verify": "Verify the index",
    "schedule": "When jobs start by themselves",
    "retries": "When a job fails or takes too long",
    "resources": "Resources of a job",
    "budget": "Daily budget",
}
POLICY_SETTINGS = {
    "index.enabled": "Starts by itself",
    "index.data_files": "At this many new files",
    "index.rows": "At this many new rows",
    "index.bytes": "At this size of new files",
    "index.age_seconds": "Or this long after the last job",
    "index.cron": "Also at times (cron)",
    "convert.enabled": "Starts by itself",
    "convert.delete_files": "At this many delete files",
    "convert.deletes": "At this many deletes",
    "convert.bytes": "At this size of delete files",
    "convert.age_seconds": "At this age of the oldest",
    "convert.when": "When reached, or worthwhile",
    "convert.reads_per_day": "Full reads a day",
    "convert.max_read_ratio": "Most that a read costs, of a fresh one",
    "convert.cron": "Also at times (cron)",
    "convert.max_delete_files_per_commit": "Most delete files per commit",
    "convert.deletion_vector_files": "Puffin files, one per",
    "convert.readers": "Read by",
    "publish.from": "Staging branch",
    "publish.enabled": "Starts by itself",
    "publish.rows": "At this many staged rows",
    "publish.age_seconds": "At this age of the oldest",
    "publish.cron": "Also at times (cron)",
    "expire_snapshots.enabled": "Starts by itself",
    "expire_snapshots.older_than_seconds": "What is older than this",
    "expire_snapshots.retain_last": "But keep this many of each branch",
    "expire_snapshots.snapshots": "At this many snapshots",
    "expire_snapshots.age_seconds": "At this age of the oldest",
    "expire_snapshots.min_interval_seconds": "At least this long apart",
    "expire_snapshots.cron": "Also at times (cron)",
    "expire_snapshots.windows": "Only within",
    "expire_snapshots.max_seconds_per_day": "Time of such jobs a day",
    "rewrite_data_files.enabled": "Starts by itself",
    "rewrite_data_files.strategy": "How rows are put together",
    "rewrite_data_files.target_file_size_bytes": "Size of new files",
    "rewrite_data_files.min_input_files": "Small ones of a partition, at least",
    "rewrite_data_files.size_ratio": "As large as the others together, times",
    "rewrite_data_files.delete_ratio_threshold": "Or this share of deleted rows",
    "rewrite_data_files.max_bytes": "Most bytes of a job",
    "rewrite_data_files.small_data_files": "At this many small files",
    "rewrite_data_files.deleted_data_files": "Or this many with deleted rows",
    "rewrite_data_files.min_interval_seconds": "At least this long apart",
    "rewrite_data_files.cron": "Also at times (cron)",
    "rewrite_data_files.windows": "Only within",
    "rewrite_data_files.max_seconds_per_day": "Time of such jobs a day",
    "rewrite_position_delete_files.enabled": "Starts by itself",
    "rewrite_position_delete_files.target_file_size_bytes": "Size of new files",
    "rewrite_position_delete_files.min_input_files": "Small ones of a partition, at least",
    "rewrite_position_delete_files.small_delete_files": "At this many small files",
    "rewrite_position_delete_files.min_interval_seconds": "At least this long apart",
    "rewrite_position_delete_files.cron": "Also at times (cron)",
    "rewrite_position_delete_files.windows": "Only within",
    "rewrite_position_delete_files.max_seconds_per_day": "Time of such jobs a day",
    "rewrite_manifests.enabled": "Starts by itself",
    "rewrite_manifests.manifests": "At this many small manifests",
    "rewrite_manifests.min_interval_seconds": "At least this long apart",
    "rewrite_manifests.cron": "Also at times (cron)",
    "rewrite_manifests.windows": "Only within",
    "rewrite_manifests.max_seconds_per_day": "Time of such jobs a day",
    "compact.enabled": "Starts by itself",
    "compact.sorted_runs": "At this many sorted runs",
    "compact.dead_ratio": "At this share of dead entries",
    "compact.dead_bytes": "At this size of dead entries",
    "compact.min_interval_seconds": "At least this long apart",
    "compact.cron": "Also at times (cron)",
    "verify.enabled": "Starts by itself",
    "verify.data_files": "At this many unverified files",
    "verify.rows": "At this many unverified rows",
    "verify.bytes": "At this size of unverified files",
    "verify.age_seconds": "Or this long after the last job",
    "verify.cron": "Also at times (cron)",
    "schedule.time_zone": "Time zone",
    "schedule.windows": "Only within",
    "schedule.priority": "Priority",
    "schedule.idle_pause_seconds": "Pause if nothing was found",
    "schedule.max_idle_pause_seconds": "Longest such pause",
    "retries.max_attempts": "Most attempts",
    "retries.backoff_seconds": "Pause after a failed attempt",
    "retries.max_backoff_seconds": "Longest such pause",
    "retries.timeout_seconds": "Longest attempt",
    "retries.pause_seconds": "Pause after a failed job",
    "retries.max_pause_seconds": "Longest such pause",
    "resources.max_tasks": "Tasks at a time",
    "resources.memory_fraction": "Share of the usual memory",
    "budget.table_seconds_per_day": "Time of this table's jobs",
    "budget.table_bytes_per_day": "Bytes of this table's jobs",
    "budget.catalog_seconds_per_day": "Time of the catalog's jobs",
    "budget.catalog_bytes_per_day": "Bytes of the catalog's jobs",
}
SHARES = ("_ratio", "_fraction", "_threshold")
"""How the names of settings end that are shares of something."""
BUDGETS = ("_seconds_per_day", "_bytes_per_day")
"""How the names of settings end that limit what jobs take in a day."""
_ZERO = {
    "convert.max_delete_files_per_commit": "all",
    "resources.max_tasks": "one per core",
    "rewrite_data_files.target_file_size_bytes": "as the table says",
    "rewrite_position_delete_files.target_file_size_bytes": "as the table says",
    "retries.timeout_seconds": "no limit",
}
"""What 0 stands for; in a budget for no limit."""


_NAMED = 8
"""So many columns of a key are named."""
_LONGEST_NAME = 64


def count(value: float | None) -> str:
    """12345 -> `12,345`."""
    return NONE if value is None else f"{value:,.0f}"


def short_count(value: float) -> str:
    """12345 -> `12.3 k`: where exact figures tell no more."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{_SPACE}{unit}"
    return f"{value:.3g}"


def at_least(counted: Total | int | None) -> str:
    """How many there are, as far as that was counted; empty if that tells nothing."""
    if isinstance(counted, Total):
        if counted.is_least and not counted.number:
            return ""
        return count(counted.number) + ("+" if counted.is_least else "")
    return count(counted)


def together(counted: Iterable[Total | int]) -> Total:
    """All of them, which are at least so many if one of them is."""
    numbers = [one if isinstance(one, Total) else Total(one) for one in counted]
    return Total(sum(one.number or 0 for one in numbers), any(one.is_least for one in numbers))


def plural(value: float | None, noun: str, nouns: str | None = None) -> str:
    """1, `file` -> `1 file`; 2, `file` -> `2 files`."""
    return f"{count(value)}{_SPACE}{noun if value == 1 else nouns or noun + 's'}"


def size(value_bytes: float | None) -> str:
    """Decimal units, as object stores bill them."""
    return NONE if value_bytes is None else sized(value_bytes).replace(" ", _SPACE)


def duration(seconds: float | None) -> str:
    """The two largest units: `4.2 ms`, `0.35 s`, `42 s`, `3 min 12 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds is None:
        return NONE
    if seconds == 0:
        return f"0{_SPACE}s"
    if seconds < 0.0995:
        return f"{seconds * 1000:.1f}{_SPACE}ms" if seconds < 0.00995 else f"{seconds * 1000:.0f}{_SPACE}ms"
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


def times(ratio: float) -> str:
    """`1.0x`, `12x`: how many times as much."""
    return f"{ratio:.1f}x" if ratio < 9.95 else f"{ratio:,.0f}x"


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
    told = rfc3339(value)
    text = f"{told[:10]} {told[11:19]} UTC"
    return Markup(f'<time datetime="{told}" title="{text}">{text}</time>')  # noqa: S704


def breakable(name: str) -> str:
    """A name that may break after its dots and underscores, and nowhere else."""
    return Markup(_BREAKS.sub("<wbr>", escape(name)))  # noqa: S704


def columns(names: Sequence[str]) -> str:
    """The names of a key, as a worker told them: the first few, each cut where it is long."""
    shown = ", ".join(
        name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + "…" for name in names[:_NAMED]
    )
    return shown + (f" and {count(len(names) - _NAMED)} more" if len(names) > _NAMED else "")


def seconds_between(began: datetime | str, ended: datetime | str) -> float:
    return max((aware(ended) - aware(began)).total_seconds(), 0.0)


def sentence(text: str | None) -> str:
    """With a capital first, unless that is an address, and a full stop last, whoever wrote it.

    Times in it become a <time> as `moment` writes it, and what stands in backticks becomes <code>.
    """
    text = (text or "").strip()
    if not text:
        return ""
    is_address = "://" in text.split(maxsplit=1)[0]
    first = text[0] if is_address else text[0].upper()
    whole = first + text[1:] + ("" if text[-1] in ".!?:" else ".")
    # Every second part is marked.
    parts = _MARKED.split(whole)
    return Markup("").join(_mark_up(part) if number % 2 else part for number, part in enumerate(parts))


def _mark_up(part: str) -> str:
    if part.startswith("`"):
        return Markup("<code>{}</code>").format(part[1:-1])
    try:
        return moment(datetime.fromisoformat(part.replace(" UTC", "Z")))
    except ValueError:
        return part


@dataclass(frozen=True)
class PolicySection:
    title: str
    source: ValueSource
    """Of most of its values."""
    settings: list[tuple[str, str, ValueSource]]
    """Of each: words, value, source."""


def policy_sections(values: Mapping[str, EffectiveValue]) -> list[PolicySection]:
    """The effective policy as people read it, in the order of the policy's parts."""
    sections: dict[str, list[tuple[str, str, ValueSource]]] = {}
    for name, item in values.items():
        title = POLICY_SECTIONS[name.partition(".")[0]]
        sections.setdefault(title, []).append((POLICY_SETTINGS[name], setting(item.value, name), item.source))
    found = []
    for title, settings in sections.items():
        sources = [source for _, _, source in settings]
        found.append(PolicySection(title, max(sources, key=sources.count), settings))
    return found


def setting(value: object, name: str) -> str:
    """The value of a policy setting, with the unit that its name ends in."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int | float):
        if name.endswith(SHARES):
            return f"{value:.0%}"
        if not value and (name in _ZERO or name.endswith(BUDGETS)):
            return _ZERO.get(name, "no limit")
        unit = name.removesuffix("_per_day")
        if unit.endswith("bytes"):
            return size(value)
        return duration(value) if unit.endswith("_seconds") else count(value)
    if isinstance(value, list) and name.endswith(".readers"):
        return ", ".join(value) or "none"
    if name.endswith(".windows"):
        windows = [Window.model_validate(each) for each in value] if isinstance(value, list) else []
        return " or ".join(map(str, windows)) or "always"
    return str(value) or "none"
