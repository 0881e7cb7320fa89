"""Questions that hold memory: together no more than there is budget for, whoever is alone what it wants."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from tests.patience import PATIENCE_SECONDS, wait_until
from worker.process.memory import MemoryBudget, ServerBusyError, holding, take_memory
from worker.process.slots import Threads


def test_who_finds_no_room_waits_until_another_is_over() -> None:
    budget = MemoryBudget(100, PATIENCE_SECONDS)
    holds, is_over = Event(), Event()

    def hold() -> None:
        with budget.shared():
            take_memory(60)
            holds.set()
            is_over.wait(PATIENCE_SECONDS)

    def follow() -> bool:
        with budget.shared():
            take_memory(40)
            is_over.set()
            take_memory(50)
            return True

    with ThreadPoolExecutor(2) as threads:
        threads.submit(hold)
        assert holds.wait(PATIENCE_SECONDS)
        assert threads.submit(follow).result(PATIENCE_SECONDS)


def test_who_has_waited_for_room_in_vain_is_refused_and_has_taken_nothing() -> None:
    budget = MemoryBudget(100, 0)
    with budget.shared():
        take_memory(60)
        with ThreadPoolExecutor(1) as threads:

            def ask(size_bytes: int) -> None:
                with budget.shared():
                    take_memory(size_bytes)
                    with holding(10):
                        pass
                    take_memory(size_bytes, waits=False)

            threads.submit(ask, 15).result()
            for too_much in (21, 41):
                with pytest.raises(ServerBusyError) as refused:
                    threads.submit(ask, too_much).result()
                assert refused.value.remedy
            threads.submit(ask, 15).result()


def test_what_was_held_meanwhile_is_given_back_and_threads_share_with_who_starts_them() -> None:
    budget = MemoryBudget(100, 0)
    with budget.shared(), Threads(2) as threads:
        for _ in range(3):
            with holding(60):
                # More than there is: it is all one question's.
                [*threads.map(take_memory, [30, 30])]
    with budget.shared():
        take_memory(1)
        with ThreadPoolExecutor(1) as others:
            others.submit(_take, budget, 99).result()


def test_a_thread_that_outlasts_its_question_takes_no_room() -> None:
    budget, is_over = MemoryBudget(100, 0), Event()

    def outlast() -> None:
        with holding(10):
            is_over.wait(PATIENCE_SECONDS)
        take_memory(10)

    with Threads(1) as threads:
        with budget.shared():
            left = threads.submit(outlast)
            wait_until(lambda: budget.taken_bytes == 10, "the thread")
        is_over.set()
        with pytest.raises(ServerBusyError, match="over"):
            left.result(PATIENCE_SECONDS)
    assert budget.taken_bytes == 0


def _take(budget: MemoryBudget, size_bytes: int) -> None:
    with budget.shared():
        take_memory(size_bytes)


def test_a_job_holds_what_it_wants() -> None:
    take_memory(2**60)
    with holding(2**60):
        pass
