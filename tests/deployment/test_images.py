"""The Dockerfiles: what they pin, what they hold, and that their steps make something that starts."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from fnmatch import fnmatch
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pyspark
import pytest
from packaging.utils import canonicalize_name

from tests.deployment.chart import ROOT, component, container, pods, render
from tests.deployment.dockerfile import FOLDER, Instruction, Stage, build, read
from tests.test_requirements import read_lock
from worker.spark.jars import cached_jars

IMAGES = ("service", "worker")
JARS = Path(os.environ.get("ICESTREAM_JARS_DIR", "~/.cache/icestream/ivy")).expanduser()


@pytest.mark.parametrize("image", IMAGES)
def test_the_linter_has_nothing_to_say(image: str) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), FOLDER / f"{image}.Dockerfile"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("", 0)


@pytest.mark.parametrize("image", IMAGES)
def test_base_images_are_pinned_to_a_full_version(image: str) -> None:
    file = read(image)
    for base in (value for name, value in file.arguments.items() if name != "STORES"):
        assert re.fullmatch(r"[a-z/-]+:\d+\.\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?", base), base
    names = {f"${{{name}}}" for name in file.arguments}
    assert all(stage.base in names for stage in file.stages)
    # What was built with one Python runs with the same.
    assert file.final.base == file.stage("build").base == "${PYTHON}"
    assert read("service").arguments["PYTHON"] == read("worker").arguments["PYTHON"]


@pytest.mark.parametrize("image", IMAGES)
def test_packages_come_from_locks_with_hashes(image: str) -> None:
    for stage in read(image).stages:
        for run in stage.all("RUN"):
            for command in re.split(r"&&|;", run.text):
                if re.search(r"\bpip\b.*\b(install|wheel)\b", command):
                    from_here = "--no-index" in command or command.strip().endswith(" .")
                    assert "--require-hashes" in command or from_here, command
                    assert "wheel --" not in command or "--no-build-isolation" in command, command
                assert not re.search(r"\b(curl|wget|apt-get|apt|git|npm)\b", command), command


@pytest.mark.integration
@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_as_the_user_that_the_chart_asks_for(image: str) -> None:
    final = read(image).final
    (user,) = final.all("USER")
    (entrypoint,) = final.all("ENTRYPOINT")
    pod = next(one for one in pods(render()) if component(one) == image)
    security = pod["spec"]["securityContext"]
    assert user.text == f"{security['runAsUser']}:{security['runAsGroup']}"
    assert any(f"--uid {security['runAsUser']} " in run.text for run in final.all("RUN"))
    assert json.loads(entrypoint.text) == ["icestream"]
    # Nothing is written outside of what the chart mounts.
    assert [one.text for one in final.all("WORKDIR")] == ["/tmp"]
    assert "command" not in container(pod)
    assert [json.loads(one.text) for one in final.all("CMD")] == [container(pod)["args"]]
    for port in container(pod).get("ports", []):
        if port["name"] == "http":
            assert [one.text for one in final.all("EXPOSE")] == [str(port["containerPort"])]


@pytest.mark.parametrize("image", IMAGES)
def test_no_secret_goes_into_an_image(image: str) -> None:
    file = read(image)
    assert set(file.arguments) <= {"PYTHON", "JAVA", "STORES"}
    for stage in file.stages:
        assert {one.text for one in stage.all("ARG")} <= {"STORES"}
        assert not stage.all("ADD")
        assert not [name for name in stage.environment if re.search("KEY|TOKEN|SECRET|PASSWORD|URL", name)]


@pytest.mark.parametrize("image", IMAGES)
def test_what_is_copied_exists_and_is_not_ignored(image: str) -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    kept = [line.removeprefix("!").rstrip("/") for line in ignored if line.startswith("!")]
    for stage in read(image).stages:
        for copy in stage.all("COPY"):
            *sources, _ = [word for word in copy.words if not word.startswith("--")]
            if "--from=" in copy.text:
                name = re.search(r"--from=(\w+)", copy.text)
                assert name
                assert read(image).stage(name[1])
                continue
            for source in sources:
                assert (ROOT / source).exists(), source
                assert any(fnmatch(source.rstrip("/"), one) or source.startswith(f"{one}/") for one in kept)


IMPORTED = re.compile(r"^ *(?:from|import) (\w+)", re.MULTILINE)


@cache
def packages_in_use() -> set[str]:
    """The packages of this repository that the service or the worker is made of, each by its folder."""
    used, waiting = set[str](), {"service", "worker"}
    while waiting:
        used |= waiting
        sources = [path.read_text() for name in waiting for path in (ROOT / name).rglob("*.py")]
        # By their lines, of which the formatter makes one for each: to parse all modules takes seconds.
        named = {name for source in sources for name in IMPORTED.findall(source)}
        waiting = {name for name in named if (ROOT / name / "__init__.py").exists()} - used
    return used


def test_each_package_that_is_imported_is_checked_and_part_of_the_wheel() -> None:
    assert packages_in_use() >= {"service", "worker", "telemetry", "stores", "staging", "trust", "icestream"}
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    wheel = tools["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert set(wheel) == set(tools["importlinter"]["root_packages"]) == packages_in_use()
    assert set(tools["mypy"]["packages"]) == packages_in_use() | {"tests"}


@pytest.mark.parametrize("image", IMAGES)
def test_each_package_that_is_imported_is_copied(image: str) -> None:
    """The wheel of a package whose folder is not there is built without a word, and does not start."""
    copies = [copy.words for copy in read(image).stage("build").all("COPY")]
    assert {(f"{name}/", f"{name}/") for name in packages_in_use()} <= {tuple(words) for words in copies}


@pytest.mark.parametrize("image", IMAGES)
def test_links_lead_to_what_is_copied_with_them(image: str) -> None:
    """Container engines copy a link as it is."""
    sources = [ROOT / word for copy in read(image).stage("build").all("COPY") for word in copy.words[:-1]]
    folders = [source for source in sources if source.is_dir()]
    links = [path for folder in folders for path in folder.rglob("*") if path.is_symlink()]
    assert [link.name for link in links] == ["openapi.json"]
    for link in links:
        target = link.resolve()
        assert any(target.is_relative_to(source) for source in sources), f"{link} leads to {target}"


def test_jars_are_locked_by_hash() -> None:
    lines = (ROOT / "requirements" / "jars.sha256").read_text().splitlines()
    locked = {name: digest for digest, name in (line.split("  ") for line in lines)}
    jars = cached_jars(JARS)
    assert locked == {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in jars}


@pytest.mark.parametrize("found", ["what was locked", "something else", "nothing", "one too many"])
def test_an_image_takes_the_jars_that_are_locked_and_no_others(found: str, tmp_path: Path) -> None:
    stage = read("worker").stage("build")
    (checks,) = (one for one in stage.all("RUN") if "sha256sum" in one.text)
    locks, folder = tmp_path / "src" / "requirements", tmp_path / "opt" / "icestream" / "ivy" / "jars"
    locks.mkdir(parents=True)
    folder.mkdir(parents=True)
    for name, jar in (("jars", "iceberg.jar"), ("store-jars", "azure.jar")):
        (locks / f"{name}.sha256").write_text(f"{hashlib.sha256(b'what was locked').hexdigest()}  {jar}\n")
        if found != "nothing":
            (folder / jar).write_text("what was locked" if found == "one too many" else found)
    if found == "one too many":
        (folder / "annotations.jar").write_text("what was locked")
    step = Stage(stage.base, stage.name, [Instruction("WORKDIR", "/opt/icestream/ivy/jars"), checks])
    if found == "what was locked":
        build(step, tmp_path)
        (folder / "azure.jar").unlink()  # of a store that the image is not for
        build(step, tmp_path)
    else:
        with pytest.raises(
            AssertionError, match="annotations.jar" if found == "one too many" else "iceberg.jar"
        ):
            build(step, tmp_path)


def bill_of_materials(*options: object) -> dict[str, Any]:
    # Not at the top: the grammars of addresses that it brings take whoever collects tests seconds.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    command = [sys.executable, str(ROOT / "scripts" / "sbom"), "--name", "icestream-test", *map(str, options)]
    text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(text) is None
    assert validator.validate_str('{"bomFormat": "CycloneDX", "parts": []}') is not None
    bill: dict[str, Any] = json.loads(text)
    return bill


@pytest.mark.exhaustive
@pytest.mark.integration
def test_the_bill_of_materials_is_valid_and_complete(tmp_path: Path) -> None:
    spark, home = Path(pyspark.__path__[0], "jars"), tmp_path
    (home / "release").write_text('IMPLEMENTOR="Eclipse Adoptium"\nJAVA_RUNTIME_VERSION="17.0.17+10"\n')
    status = tmp_path / "status"
    status.write_text(
        "Package: libc6\nStatus: install ok installed\nVersion: 2.36-9+deb12u13\nArchitecture: amd64\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\nArchitecture: amd64\n"
    )
    bill = bill_of_materials("--jars", JARS / "jars", "--jars", spark, "--java", home, "--debian", status)
    parts = {one["purl"]: one for one in bill["components"]}
    installed = {f"pkg:pypi/{canonicalize_name(one.name)}@{one.version}" for one in distributions()}
    assert installed == {purl for purl in parts if purl.startswith("pkg:pypi/")}
    iceberg = parts["pkg:maven/org.apache.iceberg/iceberg-spark-runtime-4.1_2.13@1.12.0"]
    (jar,) = [jar for jar in cached_jars(JARS) if "spark-runtime" in jar.name]
    assert iceberg["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(jar.read_bytes()).hexdigest()}]
    jars = [one for one in parts.values() if "hashes" in one]
    digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in spark.glob("*.jar")}
    assert digests <= {one["hashes"][0]["content"] for one in jars}
    assert "pkg:deb/debian/libc6@2.36-9%2Bdeb12u13?arch=amd64" in parts
    assert parts["pkg:generic/java-runtime@17.0.17%2B10"]["publisher"] == "Eclipse Adoptium"
    assert not [purl for purl in parts if "gone" in purl]


@pytest.mark.thorough
@pytest.mark.integration
def test_the_same_environment_has_the_same_bill_of_materials() -> None:
    assert bill_of_materials() == bill_of_materials()


@pytest.mark.exhaustive
@pytest.mark.parametrize("image", IMAGES)
def test_the_steps_of_a_dockerfile_make_something_that_starts(image: str, tmp_path: Path) -> None:
    """Downloads all packages of the image anew."""
    java = shutil.which("java")
    assert java
    venv.create(tmp_path / "base", with_pip=True)
    home = Path(java).resolve().parents[1]
    file, base = read(image), [tmp_path / "base" / "bin"]
    build(file.stage("build"), tmp_path, arguments=file.arguments, path=base, java_home=home)
    made = tmp_path / "opt" / "icestream"
    said = subprocess.run(
        [made / "bin" / "icestream", "--help"], stdout=subprocess.PIPE, text=True, check=True
    )
    assert "migrate" in said.stdout
    bill = json.loads((made / "sbom.cdx.json").read_text())
    python = {one["purl"] for one in bill["components"] if one["purl"].startswith("pkg:pypi/")}
    locked = {
        f"pkg:pypi/{canonicalize_name(pin.name)}@{str(pin.specifier)[2:]}" for pin, _ in read_lock(image)
    }
    # No pip, and nothing of what builds.
    assert python == locked | {f"pkg:pypi/icestream@{bill['metadata']['component']['version']}"}
    if image == "worker":
        assert len(cached_jars(made / "ivy")) == 4
