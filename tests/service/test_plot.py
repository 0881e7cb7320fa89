"""Geometry of the plots."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.ui.formats import duration
from service.ui.plot import HEIGHT, WIDTH, plot, round_up, round_up_duration

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
NOW = BEGIN + timedelta(hours=1)


def test_nothing_is_drawn_of_less_than_two_samples() -> None:
    assert plot("x", [], NOW, str) is None
    assert plot("x", [(BEGIN, 1.0)], NOW, str) is None


def test_a_value_holds_until_the_next_sample() -> None:
    drawn = plot("x", [(BEGIN, 0), (BEGIN + timedelta(minutes=30), 4)], NOW, lambda value: f"{value:g}")
    assert drawn is not None
    assert drawn.line == "0,100 500,100 500,0 1000,0"
    assert (drawn.top, drawn.middle, drawn.highest, drawn.latest) == ("4", "2", "4", "4")
    assert [column.words for column in drawn.columns] == ["0", "4"]
    assert drawn.ticks == [BEGIN + timedelta(minutes=15 * number) for number in range(5)]


def test_no_peak_is_lost_and_marks_outside_are_left_out() -> None:
    samples = [(BEGIN + timedelta(seconds=second), float(second == 1800)) for second in range(3600)]
    drawn = plot("x", samples, NOW, str, marks=[BEGIN - timedelta(days=1), NOW])
    assert drawn is not None
    assert drawn.highest == "1.0"
    assert ",0 " in drawn.line
    assert drawn.marks == [WIDTH]
    assert len(drawn.columns) <= 240


def test_a_drop_shows_when_it_was_measured_however_close_to_the_peak() -> None:
    after = [(0, 5), (2, 80), (4, 0), (1800, 7)]
    drawn = plot("x", [(BEGIN + timedelta(seconds=second), value) for second, value in after], NOW, str)
    assert drawn is not None
    # 80 for two seconds, and then 0 for half an hour: in the drawing, and in what the tooltips say.
    assert drawn.line == "0,93.75 0.6,93.75 0.6,0 1.1,0 1.1,100 500,100 500,91.25 1000,91.25"
    assert [(column.x, column.words) for column in drawn.columns] == [(0, "80"), (1.1, "0"), (500, "7")]
    assert [(column.at - BEGIN).total_seconds() for column in drawn.columns] == [2, 4, 1800]


def test_what_held_before_the_left_edge_shows_from_there_on() -> None:
    samples = [(BEGIN - timedelta(days=3), 4), (BEGIN + timedelta(minutes=30), 0)]
    drawn = plot("x", samples, NOW, str, since=BEGIN)
    assert drawn is not None
    assert drawn.line == "0,0 500,0 500,100 1000,100"
    assert (drawn.ticks[0], drawn.columns[0].at) == (BEGIN, BEGIN - timedelta(days=3))


def test_an_age_grows_while_it_is_that_of_the_same_and_nowhere_else() -> None:
    at = [BEGIN + timedelta(minutes=minute) for minute in (-10, 15, 30, 45, 60)]
    # Since 20 min before the beginning until it was converted at 30 min; anew from 35 min on.
    ages = [600, 2100, 0, 600, 1500]
    drawn = plot("x", list(zip(at, ages, strict=True)), NOW, duration, since=BEGIN, ages=True, top=3000)
    assert drawn is not None
    assert drawn.line == "0,60 250,30 500,30 500,100 750,100 750,80 1000,50"
    assert drawn.latest == "25\N{NO-BREAK SPACE}min"
    flat = plot("x", list(zip(at, ages, strict=True)), NOW, duration, since=BEGIN, top=3000)
    assert flat is not None
    assert flat.line == "0,80 250,80 250,30 500,30 500,100 750,100 750,80 1000,80 1000,50"


@given(st.lists(st.floats(0, 1e15), min_size=2, max_size=50))
def test_every_point_lies_in_the_box(values: list[float]) -> None:
    samples = [(BEGIN + timedelta(seconds=number), value) for number, value in enumerate(values)]
    drawn = plot("x", samples, NOW, str)
    assert drawn is not None
    for point in drawn.line.split():
        x, y = map(float, point.split(","))
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT


@pytest.mark.parametrize("up", [round_up, round_up_duration])
@given(value=st.integers(0, 10**18))
def test_the_upper_edge_is_at_or_above_the_highest_value_and_not_far(
    up: Callable[[int], int], value: int
) -> None:
    assert value <= up(value) <= max(5 * value // 2, 1)


def test_the_upper_edge_of_durations_is_a_length_of_time_that_reads_well() -> None:
    assert [
        duration(round_up_duration(seconds)).replace("\N{NO-BREAK SPACE}", " ") for seconds in (7, 61, 20_000)
    ] == ["10 s", "2 min", "6 h"]
