"""The `type` of a problem leads to what it means."""

from service.problems import PROBLEMS
from tests.service.conftest import Running


def test_the_type_of_a_problem_is_the_address_of_its_explanation(service: Running) -> None:
    problem = service.admin.get("/jobs/nope").json()
    assert problem["type"] == "/problems/job-not-found"
    stranger = service.client_with({})
    for slug, known in PROBLEMS.items():
        page = stranger.get(f"{service.url}/problems/{slug}")
        assert page.status_code == 200
        assert known.title.replace("'", "&#39;") in page.text
        assert page.headers["content-security-policy"]
    assert stranger.get(f"{service.url}/problems/nope").status_code == 404
