"""Cron expressions, windows and time zones, also on the days on which clocks change."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from service.policies.schedules import Day, Window, fires, is_open, last_fire, next_opening, openings
from service.policies.settings import PolicySettings

BERLIN = "Europe/Berlin"
NIGHT = Window(start="22:00", end="06:00")
OFFICE = Window(days=(Day.MONDAY, Day.FRIDAY), start="09:00", end="17:00")


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("windows", "now", "expected"),
    [
        ([], "2026-06-01T12:00", True),
        ([NIGHT], "2026-06-01T19:59", False),  # 21:59 in Berlin
        ([NIGHT], "2026-06-01T20:00", True),
        ([NIGHT], "2026-06-02T03:59", True),
        ([NIGHT], "2026-06-02T04:00", False),
        ([NIGHT], "2026-12-01T21:00", True),  # winter: one hour later in UTC
        ([NIGHT], "2026-12-01T20:59", False),
        ([OFFICE], "2026-06-01T07:00", True),  # a Monday
        ([OFFICE], "2026-06-02T07:00", False),
        ([OFFICE, NIGHT], "2026-06-02T21:00", True),
        ([Window(days=(Day.MONDAY,), start="22:00", end="06:00")], "2026-06-02T03:00", True),
        ([Window(days=(Day.MONDAY,), start="22:00", end="06:00")], "2026-06-01T03:00", False),
        ([Window(start="00:00", end="00:00")], "2026-06-02T03:00", True),
    ],
)
def test_a_window_is_open_by_the_clock_of_its_zone(windows: list[Window], now: str, expected: bool) -> None:
    assert is_open(windows, BERLIN, utc(now)) is expected


@given(
    hours=st.integers(0, 365 * 24),
    minutes=st.integers(0, 59),
    days=st.sets(st.sampled_from(Day), min_size=1),
    start=st.integers(0, 23),
    end=st.integers(0, 23),
    zone=st.sampled_from(["UTC", BERLIN, "America/St_Johns", "Pacific/Apia"]),
)
def test_a_closed_window_opens_when_it_is_said_to(
    hours: int, minutes: int, days: set[Day], start: int, end: int, zone: str
) -> None:
    window = Window(days=tuple(days), start=f"{start:02d}:00", end=f"{end:02d}:00")
    moment = utc("2026-01-01T00:00") + timedelta(hours=hours, minutes=minutes)
    opening = next_opening([window], zone, moment)
    assert moment < opening <= moment + timedelta(days=9)
    # Where clocks skip its hour, a window may be empty.
    assert is_open([window], zone, opening) or opening.month in (3, 4, 9, 10, 11)
    until = moment + timedelta(days=3)
    assert openings([window], zone, moment, until)[:1] == [opening][: opening <= until]
    if not is_open([window], zone, moment):
        assert not is_open([window], zone, opening - timedelta(seconds=1))


def test_windows_open_one_after_the_other() -> None:
    after, until = utc("2026-06-01T07:00"), utc("2026-06-03T20:00")  # from Monday, nine o'clock in Berlin
    found = openings([NIGHT, OFFICE, NIGHT], BERLIN, after, until)
    assert found == [utc("2026-06-01T20:00"), utc("2026-06-02T20:00"), until]
    assert openings([], BERLIN, after, until) == []


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("2026-06-01T01:00", "2026-06-01T01:00"),  # 03:00 in Berlin, on the second
        ("2026-06-01T00:59", "2026-05-31T01:00"),
        ("2026-12-01T02:30", "2026-12-01T02:00"),
    ],
)
def test_the_last_moment_of_an_expression(now: str, expected: str) -> None:
    assert last_fire("0 3 * * *", BERLIN, utc(now)) == utc(expected)


def test_an_hour_that_clocks_skip_or_repeat_fires_once() -> None:
    skipped = list(fires("30 2 * * *", BERLIN, utc("2026-03-28T12:00"), utc("2026-03-30T12:00")))
    assert skipped == [utc("2026-03-29T01:00"), utc("2026-03-30T00:30")]
    repeated = list(fires("30 2 * * *", BERLIN, utc("2026-10-24T12:00"), utc("2026-10-25T12:00")))
    assert len(repeated) == 1


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"convert": {"cron": "0 3 * *"}}, "no cron expression"),
        ({"convert": {"cron": "0 3 31 2 *"}}, "31 2"),
        ({"schedule": {"time_zone": "Europe/Atlantis"}}, "no IANA time zone"),
        ({"schedule": {"time_zone": "../../etc/passwd"}}, "no IANA time zone"),
        ({"schedule": {"windows": [{"start": "25:00", "end": "06:00"}]}}, "no time of day"),
        ({"schedule": {"windows": [{"days": [], "start": "22:00", "end": "06:00"}]}}, "one day at least"),
        ({"schedule": {"priority": 1000}}, "100"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, object], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        PolicySettings.model_validate(settings)


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(ValidationError) as refused:
        PolicySettings.model_validate(
            {"index": {"cron": "x"}, "schedule": {"time_zone": "y", "priority": "z"}}
        )
    assert [error["loc"] for error in refused.value.errors()] == [
        ("index", "cron"),
        ("schedule", "time_zone"),
        ("schedule", "priority"),
    ]
