"""The areas of `make mutants` name what is there, and a weak one is not hidden by the others."""

from pathlib import Path

from tests.mutants.areas import AREAS, shortfalls

ROOT = Path(__file__).parents[2]


def test_each_area_names_modules_tests_and_lines_that_are_there() -> None:
    for area in AREAS:
        for pattern in (*area.modules, *area.tests):
            assert list(ROOT.glob(pattern)), f"{area.name}: {pattern}"
        for one in area.equivalent:
            lines = [line.strip() for line in (ROOT / one.module).read_text().splitlines()]
            assert set(one.line.splitlines()) <= set(lines), f"{area.name}: {one.line}"


def test_a_weak_area_fails_beside_strong_ones_and_so_does_an_empty_sample() -> None:
    strong = [True] * 100
    assert list(shortfalls({"queue": strong, "plan": [True] * 18 + [False] * 2, "few": [True, False]})) == []
    (weak,) = shortfalls({"queue": strong, "plan": [True] * 17 + [False] * 3})
    assert weak.startswith("plan: 17 of 20")
    (empty,) = shortfalls({"queue": strong, "plan": []})
    assert empty == "plan: no mutant was tried"
    (together,) = shortfalls({str(number): [True] * 9 + [False] for number in range(10)})
    assert together.startswith("90 of 100")
