"""Nouns beside their numbers."""

import pytest

from telemetry.plurals import counted


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [
        (1, "data file", "1 data file"),
        (0, "data file", "0 data files"),
        (1200, "entry", "1,200 entries"),
        (2, "policy", "2 policies"),
        (2, "day", "2 days"),
    ],
)
def test_nouns_follow_their_numbers(number: int, noun: str, said: str) -> None:
    assert counted(number, noun) == said
