"""Mutants that are no mistakes: nothing that a test could see is different. They are not tried, nor counted.

Few, and each with its reason. Whatever a caller can notice, if only rarely, gets a test instead.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Equivalent:
    module: str
    line: str
    """What is changed, without its margin: lines move, and their numbers tell nothing."""
    mutated: str
    reason: str
