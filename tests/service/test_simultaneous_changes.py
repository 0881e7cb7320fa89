"""Requests that change the same thing at the same moment: one wins, the others are told."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.service.conftest import Running
from tests.service.iceberg_tables import IcebergCatalog

AT_ONCE = 8
ROUNDS = 5


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield pool


def test_of_simultaneous_changes_of_one_version_one_is_made(
    service: Running, iceberg: IcebergCatalog, pool: ThreadPoolExecutor
) -> None:
    service.register(iceberg)
    table = service.enroll()
    service.admin.post("/policies", json={"name": "mine", "settings": {}})
    pattern = service.admin.post("/patterns", json={"catalog": "local", "pattern": "db.*"}).json()
    changes: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "/catalogs/local": ({"max_running_jobs": 1}, {"max_running_jobs": 2}),
        f"/tables/{table['id']}": ({"policy": "manual"}, {"policy": "mine"}),
        "/policies/mine": ({"description": "Some words."}, {"description": "Other words."}),
        f"/patterns/{pattern['id']}": ({"exclude": ["a"]}, {"exclude": ["b"]}),
    }
    for path, bodies in changes.items():
        for number in range(ROUNDS):
            seen = {"If-Match": service.admin.get(path).headers["etag"]}

            def change(
                _: int, path: str = path, body: dict[str, Any] = bodies[number % 2], seen: Any = seen
            ) -> int:
                return service.admin.patch(path, json=body, headers=seen).status_code

            statuses = Counter(pool.map(change, range(AT_ONCE)))
            assert statuses == {200: 1, 412: AT_ONCE - 1}, path


def test_of_simultaneous_requests_for_one_name_or_place_one_wins(
    service: Running, iceberg: IcebergCatalog, pool: ThreadPoolExecutor
) -> None:
    catalog = service.register(iceberg)
    for number in range(ROUNDS):
        for path, body in (
            ("/policies", {"name": f"p{number}", "settings": {}}),
            (
                "/catalogs",
                {"name": f"c{number}", "type": catalog["type"], "properties": iceberg.properties},
            ),
        ):
            answers = list(
                pool.map(lambda _, at=path, what=body: service.admin.post(at, json=what), range(AT_ONCE))
            )
            assert Counter(answer.status_code for answer in answers) == {201: 1, 409: AT_ONCE - 1}, path
            kinds = {answer.json()["type"] for answer in answers if answer.status_code == 409}
            name = path.removeprefix("/").replace("ies", "y").removesuffix("s")
            assert kinds <= {f"/problems/{name}-exists", "/problems/changed-at-the-same-time"}
        place = {"level": "catalog", "catalog": f"c{number}", "policy": f"p{number}"}
        attached = Counter(
            pool.map(
                lambda _, body=place: service.admin.put("/policy-attachments", json=body).status_code,
                range(AT_ONCE),
            )
        )
        assert attached[200] >= 1
        assert attached.keys() <= {200, 409}
