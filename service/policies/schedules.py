"""When a policy lets jobs start: cron expressions and windows, in the time zone of the policy. Pure.

Moments come and go in UTC. Days and hours are those of the time zone: a window that ends before it begins
ends on the next day, and the hour that is left out or repeated when clocks change is handled as cron does.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Self
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import ConfigDict, field_validator, model_validator

from service.http.messages import ClosedMessage


class Day(StrEnum):
    MONDAY = "mon"
    TUESDAY = "tue"
    WEDNESDAY = "wed"
    THURSDAY = "thu"
    FRIDAY = "fri"
    SATURDAY = "sat"
    SUNDAY = "sun"


EVERY_DAY = tuple(Day)
MAX_WINDOWS = 50
"""Of one policy: each is looked at with every decision."""


class Window(ClosedMessage):
    """A time of day in which jobs may start by themselves; from `start` up to, not including, `end`."""

    model_config = ConfigDict(frozen=True)

    days: tuple[Day, ...] = EVERY_DAY
    """The window begins on these days."""
    start: str
    """The window begins at a time such as `22:00`."""
    end: str
    """The window ends at a time such as `06:00`; of the next day if not after `start`."""

    @model_validator(mode="before")
    @classmethod
    def _check_form(cls, value: object) -> object:
        if isinstance(value, str):
            raise ValueError(f"{value!r} is no window with a start and an end, such as 22:00 and 06:00")
        return value

    @field_validator("start", "end")
    @classmethod
    def _check_time(cls, value: str) -> str:
        time_of_day(value)
        return value

    @model_validator(mode="after")
    def _check_days(self) -> Self:
        if not self.days:
            raise ValueError("days must name one day at least; leave it out for every day")
        return self

    def __str__(self) -> str:
        days = "" if set(self.days) == set(EVERY_DAY) else f"{', '.join(self.days)} "
        return f"{days}{self.start}-{self.end}"


def time_of_day(value: str) -> time:
    """Raises ValueError for anything but `HH:MM`."""
    try:
        parsed = datetime.strptime(value, "%H:%M")  # noqa: DTZ007 - a time of day has no zone
    except ValueError:
        raise ValueError(f"{value!r} is no time of day such as 22:00") from None
    return parsed.time()


def check_cron(expression: str) -> str:
    """Raises ValueError for anything but five cron fields that some moment matches."""
    if expression:
        try:
            next(CronSim(expression, datetime(2026, 1, 1, tzinfo=UTC)))
        except CronSimError as error:
            raise ValueError(f"{expression!r} is no cron expression such as '0 3 * * *': {error}") from None
        except StopIteration:
            raise ValueError(f"{expression!r} never comes") from None
    return expression


def check_time_zone(name: str) -> str:
    """Raises ValueError for anything but a name of the IANA database."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"{name!r} is no IANA time zone such as Europe/Berlin or UTC") from None
    return name


def day_of(zone: str, now: datetime) -> tuple[datetime, datetime]:
    """When the day of `now` began, and when it turns."""
    today = now.astimezone(ZoneInfo(zone)).date()
    begin, end = (
        datetime.combine(date, time(), ZoneInfo(zone)).astimezone(UTC)
        for date in (today, today + timedelta(days=1))
    )
    return begin, end


def last_fire(expression: str, zone: str, now: datetime) -> datetime:
    """The latest moment of a cron expression that is not after `now`."""
    # Searched backwards from the next minute, since the search leaves its start out.
    start = (now + timedelta(minutes=1)).astimezone(ZoneInfo(zone))
    for fire in CronSim(expression, start, reverse=True):
        if fire <= now:
            return fire.astimezone(UTC)
    raise AssertionError("check_cron lets no expression pass that never comes")


def fires(expression: str, zone: str, after: datetime, until: datetime) -> Iterator[datetime]:
    """Its moments after one moment, up to and including another."""
    for fire in CronSim(expression, after.astimezone(ZoneInfo(zone))):
        if fire > until:
            return
        if fire > after:
            yield fire.astimezone(UTC)


def is_open(windows: Sequence[Window], zone: str, now: datetime, until: datetime | None = None) -> bool:
    """Whether some window is open, and still is at `until`; without windows, always."""
    last = max(until or now, now)
    return not windows or any(begin <= now and last < end for begin, end in _around(windows, zone, now))


def next_opening(windows: Sequence[Window], zone: str, now: datetime) -> datetime:
    """When the first window opens after `now`. There must be a window."""
    return min(begin for begin, _ in _around(windows, zone, now) if begin > now)


def openings(windows: Sequence[Window], zone: str, after: datetime, until: datetime) -> list[datetime]:
    """When windows open after one moment, up to and including another of the same week; in order."""
    return sorted({begin for begin, _ in _around(windows, zone, after) if after < begin <= until})


def _around(windows: Sequence[Window], zone: str, now: datetime) -> Sequence[tuple[datetime, datetime]]:
    """Every window's begin and end, from yesterday to the same day of the next week, in UTC."""
    return _around_day(tuple(windows), zone, now.astimezone(ZoneInfo(zone)).date())


@lru_cache(maxsize=256)
def _around_day(windows: tuple[Window, ...], zone: str, today: date) -> list[tuple[datetime, datetime]]:
    days = list(Day)
    found = []
    for offset in range(-1, 9):
        first = today + timedelta(days=offset)
        for window in windows:
            if days[first.weekday()] not in window.days:
                continue
            start, end = time_of_day(window.start), time_of_day(window.end)
            last = first if end > start else first + timedelta(days=1)
            begins, ends = (
                datetime.combine(day, at, ZoneInfo(zone)).astimezone(UTC)
                for day, at in ((first, start), (last, end))
            )
            found.append((begins, ends))
    return found
