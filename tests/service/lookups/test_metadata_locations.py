"""A catalog is asked once where a table's metadata is, however many wait for it, and whatever it says."""

import asyncio

import pytest

from service.errors import IcestreamError, UnreachableError
from service.lookups.metadata_locations import MetadataLocations
from tests.service.conftest import run_apart


@pytest.mark.parametrize(("is_given_up", "at_most"), [(False, 2), (True, 5)])
def test_those_that_wait_for_a_catalog_share_its_failure(is_given_up: bool, at_most: int) -> None:
    """Unless it failed since nobody waited for that answer any more."""
    times = 0

    async def fail() -> str:
        nonlocal times
        times += 1
        await asyncio.sleep(0)
        raise UnreachableError("catalog-unreachable", "It does not answer.")

    async def given_up() -> bool:
        return is_given_up

    async def ask() -> list[object]:
        locations = MetadataLocations()
        return await asyncio.gather(
            *(locations.of("t", 0, fail, given_up) for _ in range(5)), return_exceptions=True
        )

    assert all(isinstance(one, IcestreamError) for one in run_apart(ask()))
    assert times == at_most
