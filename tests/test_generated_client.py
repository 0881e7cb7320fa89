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

PROGRAM = Path(__file__).with_name("client_program.py")
BIN = Path(sys.executable).parent
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that holds the generated package."""
    directory = tmp_path_factory.mktemp("client")
    generated = run(
        [
            *(BIN / "openapi-python-client", "generate", "--path", DOCUMENT, "--meta", "none"),
            *("--output-path", directory / "icestream_client", "--fail-on-warning"),
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


def check_types(client: Path, program: str) -> subprocess.CompletedProcess[str]:
    written = client / "program.py"
    written.write_text(program)
    options = ["--strict", "--follow-imports=silent", "--config-file=", f"--cache-dir={client / 'cache'}"]
    return run([sys.executable, "-m", "mypy", *options, written], client)


def test_a_program_is_checked_against_the_types_of_the_client(client: Path) -> None:
    program = PROGRAM.read_text()
    checked = check_types(client, program)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    for right, wrong in (
        ("age_seconds=3600", 'age_seconds="an hour"'),
        ("JobRequestKind.CONVERT", "JobRequestKind.NOTHING"),
        ("job.id", "job.name"),
    ):
        assert right in program
        assert check_types(client, program.replace(right, wrong)).returncode == 1, wrong


def test_the_program_works(client: Path, service: Running) -> None:
    done = run([sys.executable, PROGRAM, service.url, ADMIN_KEY], client)
    assert done.stdout.splitlines() == [
        "/problems/policy-exists 409",
        "Once an hour.",
        "/problems/version-conflict",
        "db.t [True]",
    ], done.stderr
