"""Counting in sentences that people read, alike in service and worker."""


def counted(number: int, noun: str) -> str:
    """`1 data file`, `2 data files`, `2 entries`."""
    several = f"{noun.removesuffix('y')}ies" if noun.endswith(("ry", "cy")) else f"{noun}s"
    return f"{number:,} {noun if number == 1 else several}"
