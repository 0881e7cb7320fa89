"""The locked requirements hold exactly what pyproject.toml asks for, each with hashes and none with a URL."""

import hashlib
import re
import subprocess
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from service.ui.pages import STATIC
from worker.jobs.pipeline import _KINDS
from worker.spark.jars import ICEBERG

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
LOCKS = ("service", "worker", "dev")
"""Each is of the extra of its name."""
OTHERS = ("airflow", "build", "dagster", "go", "spark-3.5", "spark-4.0", "uv")


def read_lock(name: str) -> list[tuple[Requirement, int]]:
    """The pinned requirements of a lock file that hold for this Python, each with its number of hashes."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text().replace("\\\n", " ")
    lines = [
        (Requirement(line.split(" --hash")[0]), line.count("--hash=sha256:")) for line in text.splitlines()
    ]
    return [(pin, hashes) for pin, hashes in lines if pin.marker is None or pin.marker.evaluate()]


def requirements_of(extra: str) -> Iterator[Requirement]:
    """What pyproject.toml itself asks for with an extra, and with those that it is made of."""
    for requirement in map(Requirement, [*PROJECT["dependencies"], *EXTRAS[extra]]):
        if requirement.name != "icestream":
            yield requirement
        for part in requirement.extras if requirement.name == "icestream" else ():
            yield from requirements_of(part)


def applies(marker: Marker | None, extras: set[str]) -> bool:
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in {"", *extras})


def closure(wanted: list[Requirement]) -> dict[NormalizedName, list[Requirement]]:
    """Everything that the installed packages' own metadata asks for, by package name."""
    asked: dict[NormalizedName, list[Requirement]] = {}
    seen: set[tuple[str, str]] = set()
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        asked.setdefault(name, []).append(requirement)
        if (name, key := ",".join(sorted(requirement.extras))) in seen:
            continue
        seen.add((name, key))
        needs = [Requirement(line) for line in distribution(name).requires or []]
        wanted += [need for need in needs if applies(need.marker, requirement.extras)]
    return asked


@pytest.mark.parametrize("name", LOCKS)
def test_lock_holds_exactly_what_the_project_needs(name: str) -> None:
    locked = {canonicalize_name(pin.name): pin for pin, _ in read_lock(name)}
    asked = closure([*requirements_of(name)])
    assert set(locked) == set(asked)
    for package, requirements in asked.items():
        (version,) = (specifier.version for specifier in locked[package].specifier)
        unmet = [str(need) for need in requirements if not need.specifier.contains(version, prereleases=True)]
        assert not unmet, f"{package} {version} does not meet {unmet}"


@pytest.mark.parametrize("name", [*LOCKS, *OTHERS])
def test_lock_pins_every_package_with_hashes_and_names_no_url(name: str) -> None:
    pins = read_lock(name)
    assert pins
    assert all(re.fullmatch(r"==[^*]+", str(pin.specifier)) and hashes for pin, hashes in pins)
    assert "://" not in (ROOT / "requirements" / f"{name}.txt").read_text()


def test_all_locks_pin_the_same_versions() -> None:
    dev = {pin.name: pin for pin, _ in read_lock("dev")}
    for name in ("service", "worker"):
        assert all(str(dev[pin.name]) == str(pin) for pin, _ in read_lock(name))


def test_each_lock_of_an_older_spark_is_of_one_that_iceberg_has_a_runtime_for() -> None:
    locks = {path.stem.removeprefix("spark-") for path in (ROOT / "requirements").glob("spark-*.txt")}
    newest = next(pin.specifier for pin, _ in read_lock("worker") if pin.name == "pyspark")
    assert {*locks, str(newest).removeprefix("==").rpartition(".")[0]} == set(ICEBERG)


def test_every_kind_of_job_is_run_with_an_older_spark() -> None:
    words = ["make", "-s", "--no-print-directory", "--eval", "told: ; @echo $(SPARK_TESTS)", "told"]
    told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / path for path in told.split()]
    files = [file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])]
    text = "".join(file.read_text() for file in files)
    assert [kind for kind in _KINDS if f'run("{kind}"' not in text] == []


def test_service_and_worker_images_hold_nothing_of_each_other() -> None:
    assert {"pyspark", "pypaimon"}.isdisjoint(pin.name for pin, _ in read_lock("service"))
    assert {"fastapi", "sqlmodel"}.isdisjoint(pin.name for pin, _ in read_lock("worker"))


def test_what_pages_bring_along_from_elsewhere_is_what_its_package_holds() -> None:
    pinned = (ROOT / "requirements" / "uplot.sha256").read_text().split()
    files = {name: (ROOT / "service/ui/static" / name).read_bytes() for name in pinned[1::2]}
    assert [hashlib.sha256(content).hexdigest() for content in files.values()] == pinned[::2]
    assert {name for name in STATIC if name.startswith("uplot")} == files.keys()
