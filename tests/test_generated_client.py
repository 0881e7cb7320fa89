"""A typed client is generated from the OpenAPI document, and a program written against it works."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.command.openapi import DOCUMENT
from service.settings import Settings
from tests.patience import PATIENCE_SECONDS
from tests.service.conftest import ADMIN_KEY, Running, running
from tests.service.iceberg_tables import IcebergCatalog
from trust.arrow_streams import STREAM_TYPE

PROGRAM = Path(__file__).with_name("client_program.py")
BIN = Path(sys.executable).parent
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that holds the generated package."""
    directory = tmp_path_factory.mktemp("client")
    config = directory / "generator.yaml"
    # The generator does not know Arrow, and is told what to make of it.
    config.write_text(f"content_type_overrides: {{{STREAM_TYPE}: application/octet-stream}}\n")
    generated = run(
        [
            *(BIN / "openapi-python-client", "generate", "--path", DOCUMENT, "--meta", "none"),
            *("--output-path", directory / "icestream_client", "--fail-on-warning", "--config", config),
        ],
        directory,
    )
    assert generated.returncode == 0, generated.stdout + generated.stderr
    return directory


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    iceberg = IcebergCatalog(tmp_path)
    iceberg.create()
    settings = Settings(data_dir=tmp_path, bootstrap_key=ADMIN_KEY, background=False)
    with running(settings) as service:
        service.register(iceberg)
        service.enroll()
        yield service
    iceberg.close()


def run(command: list[str | Path], client: Path) -> subprocess.CompletedProcess[str]:
    # The generator formats what it wrote with ruff.
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(client)}
    return subprocess.run(
        command,
        env=environment,
        cwd=client,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )


@pytest.mark.thorough
def test_a_program_is_checked_against_the_types_of_the_client(client: Path) -> None:
    right = PROGRAM.read_text()
    programs = {"right": right}
    for name, (one, other) in {
        "text_for_a_number": ("age_seconds=3600", 'age_seconds="an hour"'),
        "no_kind": ("JobRequestKind.CONVERT", "JobRequestKind.NOTHING"),
        "no_field": ("job.id", "job.name"),
    }.items():
        assert one in right
        programs[name] = right.replace(one, other)
    for name, program in programs.items():
        (client / f"{name}.py").write_text(program)
    options = ["--strict", "--follow-imports=silent", "--config-file=", f"--cache-dir={client / 'cache'}"]
    files = [client / f"{name}.py" for name in programs]
    checked = run([sys.executable, "-m", "mypy", *options, *files], client)
    wrong = {line.partition(".py:")[0] for line in checked.stdout.splitlines() if ": error: " in line}
    assert wrong == programs.keys() - {"right"}, checked.stdout + checked.stderr


def test_the_program_works(client: Path, service: Running) -> None:
    done = run([sys.executable, PROGRAM, service.url, ADMIN_KEY], client)
    assert done.stdout.splitlines() == [
        "/problems/policy-exists 409",
        "Once an hour.",
        "/problems/version-conflict",
        "db.t [True]",
    ], done.stderr
