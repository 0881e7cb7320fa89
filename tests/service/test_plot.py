"""What plots show: when values held, with no peak lost, in few points."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.ui.plot import Plot, Unit, moments, plot

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
NOW = BEGIN + timedelta(hours=1)


def draw(samples: Sequence[tuple[float, float]], **how: object) -> Plot:
    """samples: seconds since BEGIN, and values."""
    times = [(BEGIN + timedelta(seconds=second), value) for second, value in samples]
    drawn = plot("x", Unit.SECONDS if how.get("ages") else Unit.COUNT, times, NOW, **how)  # type: ignore[arg-type]
    assert drawn is not None
    return drawn


def points(drawn: Plot) -> list[tuple[float, float]]:
    return [((at - BEGIN).total_seconds(), value) for at, value in drawn.points]


def test_nothing_is_drawn_of_less_than_two_samples() -> None:
    assert plot("x", Unit.COUNT, [], NOW) is None
    assert plot("x", Unit.COUNT, [(BEGIN, 1.0)], NOW) is None


def test_a_value_holds_until_the_next_sample() -> None:
    drawn = draw([(0, 0), (900, 0), (1800, 4)])
    assert points(drawn) == [(0, 0), (1800, 4), (3600, 4)]
    assert (drawn.highest, drawn.latest) == ("4", "4")
    half = BEGIN + timedelta(minutes=30)
    told = [drawn.at(moment) for moment in (BEGIN - timedelta(1), half - timedelta(seconds=1), half, NOW)]
    assert told == ["\N{EM DASH}", "0", "4", "4"]
    data = json.loads(drawn.data)
    assert (data["began"], data["ends"]) == (BEGIN.timestamp(), NOW.timestamp())
    assert (data["times"], data["values"], data["marks"]) == ([0, 1800, 3600], [0, 4, 4], [])


def test_no_peak_is_lost_and_marks_outside_are_left_out() -> None:
    marks = [BEGIN - timedelta(days=1), NOW]
    drawn = draw([(second, float(second == 1800)) for second in range(3600)], marks=marks)
    assert points(drawn) == [(0, 0), (1800, 1), (1801, 0), (3600, 0)]
    assert (drawn.highest, drawn.marks, drawn.shares_marks) == ("1", [NOW], False)
    dense = draw([(second, float(second % 2)) for second in range(3600)], marks=[NOW, NOW], columns=30)
    assert len(dense.points) <= 4 * 30 + 1
    assert (dense.marks, dense.shares_marks) == ([NOW], True)


def test_a_drop_shows_when_it_was_measured_however_close_to_the_peak() -> None:
    assert points(draw([(0, 5), (2, 80), (4, 0), (1800, 7)])) == [
        (0, 5),
        (2, 80),
        (4, 0),
        (1800, 7),
        (3600, 7),
    ]


def test_what_held_before_the_left_edge_shows_from_there_on() -> None:
    drawn = draw([(-3 * 86_400, 4), (1800, 0)], since=BEGIN)
    assert points(drawn) == [(0, 4), (1800, 0), (3600, 0)]
    assert drawn.began_at == BEGIN


def test_an_age_grows_while_it_is_that_of_the_same_and_nowhere_else() -> None:
    # Since 20 min before the beginning until it was converted at 30 min; anew from 35 min on.
    ages = [(-600, 600), (900, 2100), (1800, 0), (2700, 600), (3600, 1500)]
    drawn = draw(ages, since=BEGIN, ages=True)
    assert points(drawn) == [
        (0, 1200),
        (900, 2100),
        (1800, 2100),
        (1800, 0),
        (2700, 0),
        (2700, 600),
        (3600, 1500),
    ]
    assert drawn.latest == "25\N{NO-BREAK SPACE}min"
    assert drawn.at(BEGIN + timedelta(seconds=450)) == "27\N{NO-BREAK SPACE}min 30\N{NO-BREAK SPACE}s"
    assert drawn.at(BEGIN + timedelta(seconds=1800)) == "0\N{NO-BREAK SPACE}s"


@pytest.mark.parametrize("ages", [False, True])
@given(values=st.lists(st.floats(0, 1e15), min_size=2, max_size=50))
def test_points_are_in_order_from_edge_to_edge_and_only_of_what_was_measured(
    ages: bool, values: list[float]
) -> None:
    drawn = draw([(float(number), value) for number, value in enumerate(values)], ages=ages)
    times = [at for at, _ in drawn.points]
    assert times == sorted(times)
    assert (times[0], times[-1]) == (BEGIN, NOW)
    assert {value for _, value in drawn.points} <= set(values) or ages
    assert max(value for _, value in drawn.points) <= max(values) + 3600 * ages


def test_moments_of_a_table_go_from_now_back_to_the_left_edge() -> None:
    drawn = draw([(0, 1), (60, 2)])
    assert moments([drawn], 3) == [NOW, BEGIN + timedelta(minutes=30), BEGIN]
