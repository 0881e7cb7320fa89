"""Jobs end, once each, whatever happens to PostgreSQL, and to replicas of the service that share it."""

import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.faults.control_plane import (
    LEASE_SECONDS,
    OUTAGES,
    World,
    create_database,
    scheduler,
    survive,
    tell,
)
from tests.faults.injection import Fault, When, fired
from tests.faults.proxy import CUT, HANG, PASS, Mode
from tests.faults.recovery import summary
from tests.faults.service_build import POINTS
from tests.patience import wait_until
from tests.service.postgresql import Server, restartable_server
from tests.thorough import exhaustive_unless

pytestmark = pytest.mark.integration

FAULTS: tuple[tuple[When, str], ...] = (
    ("before", "error"),
    ("before", "timeout"),
    ("before", "kill"),
    ("after", "timeout"),
    ("after", "kill"),
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with restartable_server() as server:
        yield server


@pytest.fixture
def new_world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., World]]:
    """Its database is PostgreSQL, unless a test says otherwise."""
    with ExitStack() as stack:

        def make(kind: str = "postgresql", **options: Any) -> World:
            url = f"sqlite:///{tmp_path / 'icestream.db'}"
            if kind == "postgresql":
                name = f"faults_{secrets.token_hex(4)}"
                server: Server = request.getfixturevalue("server")
                create_database(server.url, name)
                url = f"{server.url}/{name}"
            world = World(tmp_path, url, **options)
            stack.callback(world.close)
            return world

        yield make


@pytest.mark.exhaustive
def test_a_service_on_postgresql_that_is_killed_again_and_again_loses_no_job(
    new_world: Callable[..., World],
) -> None:
    new_world(lease_seconds=2.0).kill_service(10)


@pytest.mark.exhaustive
@pytest.mark.parametrize("crashes", [1, 5])
def test_postgresql_that_crashes_under_load_loses_no_job(
    crashes: int, server: Server, new_world: Callable[..., World]
) -> None:
    world = new_world(lease_seconds=2.0)
    service, port = world.service()
    for _ in range(4):
        world.worker(port)
    ids: set[str] = set()
    numbers = count()
    for crashed in range(1, crashes + 1):
        while len(ids) < 10 * crashed:
            ids.add(world.request(port, next(numbers)))
        begun = time.monotonic()
        server.restart()
        assert world.answers(port, "/livez")
        world.wait_until_ready(port)
        tell(f"seconds from a crash of the database to a ready service: {time.monotonic() - begun:.2f}")
    world.wait_for_jobs(ids)
    world.check(ids, injected=crashes)
    assert service.starts == 1, "the service goes on without a restart"


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_every_fault_at_every_point_loses_no_job(kind: str, new_world: Callable[..., World]) -> None:
    world = new_world(kind, lease_seconds=2.0)
    faults = tuple(Fault(point, when, action) for point in POINTS for when, action in FAULTS)
    service, port = world.service(faults)
    for _ in range(3):
        world.worker(port)
    ids: set[str] = set()
    numbers = count()

    def has_fired_all() -> bool:
        ids.add(world.request(port, next(numbers)))
        return len(ids) >= 30 and all(fired(world.faults_dir, fault) for fault in faults)

    wait_until(has_fired_all, "each fault to come once")
    world.wait_for_jobs(ids)
    world.check(ids, injected=len(faults))
    assert {fired(world.faults_dir, fault) for fault in faults} == {1}
    assert service.starts == 1 + sum(fault.action == "kill" for fault in faults)
    tell(f"{kind}: {len(faults)} faults, once each; {len(ids)} jobs, {len(world.lost())} attempts lost")


@pytest.mark.parametrize(
    ("mode", "outage"),
    exhaustive_unless(
        lambda case: case == (CUT, "within"),
        [(mode, outage) for mode in (CUT, HANG) for outage in OUTAGES],
    ),
)
def test_postgresql_out_of_reach_costs_no_attempt_within_the_lease_and_never_a_job(
    mode: Mode, outage: str, new_world: Callable[..., World]
) -> None:
    lease_seconds, outage_seconds = OUTAGES[outage]
    world = new_world(lease_seconds=lease_seconds)
    with world.database_through_proxy() as proxy:
        service, port = world.service()

        def break_off(seconds: float) -> None:
            proxy.set(mode)
            time.sleep(seconds)
            proxy.set(PASS)

        survive(world, port, break_off, outage_seconds)
        assert outage == "beyond" or world.lost() == []
        assert service.starts == 1


@pytest.mark.parametrize("ends", [signal.SIGSTOP, pytest.param(signal.SIGKILL, marks=pytest.mark.exhaustive)])
def test_another_replica_takes_over_from_one_that_stands_still_or_dies(
    ends: signal.Signals, new_world: Callable[..., World]
) -> None:
    world = new_world()
    first, first_port = world.service(kept_alive=False)
    holder = wait_until(lambda: scheduler(world), "a scheduler")
    _, second_port = world.service(kept_alive=False)
    worker = world.worker(first_port, 600)  # it is not done before it is killed
    ids = {world.request(first_port, 0)}
    wait_until(world.at_work, "a job at work")
    assert scheduler(world) == holder
    first.send(ends)
    worker.kill()
    world.lose_attempt()
    assert scheduler(world) != holder
    world.worker(second_port)
    world.wait_for_jobs(ids)
    # The first one may have stopped within a pass, which it ends once it goes on: by what it saw before.
    (recovery,) = world.recoveries()
    recovery.check(LEASE_SECONDS)
    tell(summary([recovery]))
    if ends == signal.SIGSTOP:
        first.send(signal.SIGCONT)
        ids.add(world.request(first_port, 1))
        world.wait_for_jobs(ids)
    world.check(ids)
