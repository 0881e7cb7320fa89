"""Budgets share one thread, which cuts each one's connections in time."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from tests.patience import PATIENCE_SECONDS, wait_until
from trust import bounds
from trust.bounds import Budget


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(PATIENCE_SECONDS)
        yield here


def cut_in_time(connection: socket.socket) -> bool:
    """Whether a read that nobody answers ends with its budget."""
    with Budget(0.05) as budget, budget.holding(connection):
        assert connection.recv(1) == b""
        return budget.is_ended


def test_a_call_within_a_budget_starts_no_thread(connection: socket.socket) -> None:
    with Budget(PATIENCE_SECONDS) as budget, budget.holding(connection):
        pass
    with patch.object(threading.Thread, "start", side_effect=AssertionError):
        for _ in range(3):
            with Budget(PATIENCE_SECONDS) as budget, budget.holding(connection):
                budget.check()


def test_a_budget_ends_before_one_that_began_earlier(connection: socket.socket) -> None:
    with Budget(PATIENCE_SECONDS) as longer, socket.socket() as other, longer.holding(other):
        wait_until(lambda: bounds._watch._looks_at <= longer.deadline, "the thread to wait for that")
        assert cut_in_time(connection)
        assert not longer.is_ended


def test_a_budget_that_is_left_ends_nothing(connection: socket.socket) -> None:
    with Budget(PATIENCE_SECONDS) as budget, budget.holding(connection):
        pass
    assert budget not in bounds._watch._budgets


def test_a_child_process_has_a_thread_of_its_own(connection: socket.socket) -> None:
    with Budget(PATIENCE_SECONDS) as budget, budget.holding(connection):
        if not (child := os.fork()):
            is_cut = False
            try:
                is_cut = cut_in_time(connection)
            finally:
                os._exit(not is_cut)
        assert os.waitpid(child, 0)[1] == 0
