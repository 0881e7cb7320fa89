"""Counting in sentences that people read."""


def counted(number: int, noun: str) -> str:
    """`1 data file`, `2 data files`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
