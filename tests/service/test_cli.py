"""The command line as a person meets it: what it says, what it leaves behind, and what it ends with."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import worker.agent.main
from service.app import prepare
from service.command.main import app
from service.command.openapi import DOCUMENT
from service.settings import Settings
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.service.conftest import PLAIN_HTTP, running

COMMAND = [sys.executable, "-c", "from service.command.main import main; main()"]
ADMIN_KEY = "admin-key-of-these-tests-0123456789abcdef"


def refusal(*arguments: str) -> str:
    """What a command that must not start says: one sentence, and exit code 1."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1, result.output
    sentence, *more = result.output.splitlines()
    assert (more, sentence[-1]) == ([], ".")
    return sentence


@pytest.fixture
def up_here(tmp_path: Path) -> list[str]:
    return ["up", "--no-browser", "--port", "0", "--data-dir", str(tmp_path / "data")]


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_up_refuses_a_port_in_use(up_here: list[str], taken_port: int) -> None:
    sentence = refusal(*up_here, "--port", str(taken_port))
    assert f"port {taken_port}" in sentence
    assert "in use" in sentence


def test_up_refuses_a_data_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "can't be written" in refusal("up", "--data-dir", str(tmp_path / "file"))


def test_up_refuses_to_start_without_java(up_here: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert "Java 17" in refusal(*up_here)


def test_up_refuses_a_java_that_is_too_old(
    up_here: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    sentence = refusal(*up_here)
    assert "Java 17" in sentence
    assert f"{java} is 11" in sentence


def test_up_refuses_to_start_without_the_packages_of_the_worker(
    up_here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pypaimon", None)
    assert "needs pypaimon" in refusal(*up_here)


def test_an_acceptance_goes_on_as_a_worker_does_with_the_login_of_the_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, arguments: started.append(arguments))
    monkeypatch.setenv("ICESTREAM_API_KEY", ADMIN_KEY)
    monkeypatch.setenv("ICESTREAM_URL", "http://here:8000/")
    given = ["--location", "s3://lake/a", "--report", "a.md", "--report", "b.json", "--yes", "--run", "r1"]
    result = CliRunner().invoke(app, ["accept", "--catalog", "lake", *given])
    assert result.exit_code == 0, result.output
    ((_, *arguments),) = started
    assert arguments == [
        *("-m", "worker.acceptance.main", "--catalog=lake", "--namespace=icestream_acceptance"),
        *("--location=s3://lake/a", "--report=a.md", "--report=b.json", "--run=r1", "--yes"),
    ]
    assert os.environ["ICESTREAM_URL"] == "http://here:8000"


def test_an_acceptance_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICESTREAM_API_KEY", ADMIN_KEY)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    result = CliRunner().invoke(app, ["accept", "--catalog", "lake"])
    assert result.exit_code == 1
    assert "image of workers" in result.output


def test_up_refuses_to_be_public_without_a_key(up_here: list[str]) -> None:
    assert "ICESTREAM_BOOTSTRAP_KEY" in refusal(*up_here, "--host", "0.0.0.0")


def test_setting_that_is_not_valid_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICESTREAM_LEASE_SECONDS", "soon")
    assert refusal("up").startswith("ICESTREAM_LEASE_SECONDS is not valid")


def test_service_refuses_a_database_that_is_not_migrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ICESTREAM_DATABASE_URL", f"sqlite:///{tmp_path / 'icestream.db'}")
    assert "icestream migrate" in refusal("serve")


def test_a_login_link_is_made_only_where_the_service_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = refusal("login-link", "--data-dir", str(tmp_path / "data"))
    assert "run `icestream login-link` there" in nowhere
    assert not (tmp_path / "data").exists()
    prepare(Settings(data_dir=tmp_path / "data"))
    monkeypatch.setenv("ICESTREAM_PORT", "1")
    assert "No service answers at http://127.0.0.1:1" in refusal(
        "login-link", "--data-dir", str(tmp_path / "data")
    )


@pytest.mark.parametrize("command", ["migrate", "serve"])
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql+psycopg://user:password@127.0.0.1:1/name", "The control database cannot be used: "),
        ("nonsense", "ICESTREAM_DATABASE_URL is none that can be used"),
        ("nonsense://host/name", "ICESTREAM_DATABASE_URL is none that can be used"),
    ],
)
def test_a_database_that_cannot_be_used_is_told_in_one_sentence(
    command: str, url: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ICESTREAM_DATABASE_URL", url)
    sentence = refusal(command)
    assert sentence.startswith(words)
    assert "password" not in sentence


@pytest.mark.parametrize(
    ("key", "url", "words"),
    [
        (None, "", "ICESTREAM_API_KEY is not set"),
        ("key", "http://[", "ICESTREAM_URL is http://["),
        ("key", "nowhere", "ICESTREAM_URL is nowhere, where no service is"),
        ("a-wrong-key", None, "ICESTREAM_API_KEY is no key of a worker at"),
    ],
)
def test_a_worker_that_cannot_start_says_why_in_one_sentence(
    key: str | None,
    url: str | None,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if key is None:
        monkeypatch.delenv("ICESTREAM_API_KEY", raising=False)
    else:
        monkeypatch.setenv("ICESTREAM_API_KEY", key)
    monkeypatch.setattr("worker.agent.main.START_SECONDS", 0.0)
    monkeypatch.setattr("worker.agent.main.check_jars", lambda _: None)
    with running(Settings(data_dir=tmp_path, bootstrap_key=ADMIN_KEY, background=False)) as service:
        monkeypatch.setenv("ICESTREAM_URL", service.url if url is None else url)
        with pytest.raises(SystemExit) as ended:
            worker.agent.main.main()
    assert ended.value.code == 2
    # The service of this test writes to the same log.
    said = capsys.readouterr().err
    (sentence,) = [line for line in said.splitlines() if line.startswith(words)]
    assert sentence.endswith(".")


def test_openapi_prints_the_document() -> None:
    result = CliRunner().invoke(app, ["openapi"])
    assert result.exit_code == 0
    assert result.output == DOCUMENT.read_text(), "which tests/test_contract.py keeps current"
    assert "/api/v1/jobs" in json.loads(result.output)["paths"]


def test_shells_complete_commands_options_and_values() -> None:
    def offered(typed: str) -> list[str]:
        shell = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
        asked = {"_ICESTREAM_COMPLETE": "complete_bash", **shell}
        return CliRunner().invoke(app, [], prog_name="icestream", env=asked).output.split()

    assert offered("icestream jo") == ["jobs"]
    assert offered("icestream jobs ca") == ["cancel"]
    assert offered("icestream jobs list --sta") == ["--status"]
    assert offered("icestream jobs list --status ") == [
        "queued",
        "running",
        "succeeded",
        "failed",
        "cancelled",
    ]


class Up:
    """A running `icestream up`, with its log."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.log = data_dir.with_suffix(".log")
        environment = {**os.environ, "ICESTREAM_BOOTSTRAP_KEY": ADMIN_KEY}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*COMMAND, "up", "--no-browser", "--port", "0", "--data-dir", str(data_dir)],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                umask=0,
            )
        self.link = wait_until(lambda: self._said(r"(http://\S+/login\?token=\S+)"), "the login link")
        self.url = self.link.partition("/login")[0]

    def _said(self, pattern: str) -> str | None:
        found = re.search(pattern, self.log.read_text())
        return found[1] if found else None

    @property
    def worker(self) -> int | None:
        """The process id of the worker, which is the one child of `up`."""
        children = Path(f"/proc/{self.process.pid}/task")
        with suppress(FileNotFoundError):
            ids = [int(pid) for task in children.iterdir() for pid in (task / "children").read_text().split()]
            return ids[0] if ids else None
        return None

    def await_worker(self, other_than: int | None = None) -> int:
        """Until a worker runs, with its JVM."""

        def found() -> int | None:
            worker = self.worker
            return worker if worker and worker != other_than and len(group(worker)) > 1 else None

        return wait_until(found, "a worker with its JVM")

    def get(self, path: str) -> httpx.Response:
        return httpx.get(
            self.url + path,
            headers={"Authorization": f"Bearer {ADMIN_KEY}"},
            timeout=PATIENCE_SECONDS,
            verify=PLAIN_HTTP,
        )

    def audit(self, action: str) -> list[dict[str, Any]]:
        """The newest one first."""
        return list(self.get(f"/api/v1/audit?action={action}").json()["items"])

    def stop(self, with_signal: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(with_signal)
        return self.process.wait(PATIENCE_SECONDS)


def group(leader: int) -> list[int]:
    """The living processes of a process group."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            # After the name in parentheses: state, parent, process group.
            state, _parent, its_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == leader and state != "Z":
                members.append(int(stat.parent.name))
    return members


@contextmanager
def running_up(data_dir: Path) -> Iterator[Up]:
    running = Up(data_dir)
    try:
        yield running
    finally:
        worker = running.worker
        running.process.kill()
        running.process.wait()
        if worker is not None:
            wait_until(lambda: not group(worker), "the worker to end")


@pytest.mark.integration
def test_up_serves_at_once_its_owner_alone_and_leaves_no_process_behind(tmp_path: Path) -> None:
    with running_up(tmp_path / "data") as up:
        assert up.get("/readyz").status_code == 200
        check_that_a_login_link_works_once(up)
        check_that_a_new_login_link_works_once_and_is_recorded(up)
        sentence = refusal("up", "--no-browser", "--port", "0", "--data-dir", str(up.data_dir))
        assert f"process id {up.process.pid}" in sentence
        worker = up.await_worker()
        check_that_other_users_read_nothing(up)
        wait_until(lambda: "The worker is ready" in up.log.read_text(), "the worker to be ready")
        assert up.stop() == 0
        assert group(worker) == []
        assert "Traceback" not in up.log.read_text()
        assert "spark" not in up.log.read_text().lower(), "what Spark says goes to the worker's log"
        assert "Spark" in (up.data_dir / "logs" / "worker.log").read_text()
        assert "No service answers" in refusal("login-link", "--data-dir", str(up.data_dir))


def check_that_other_users_read_nothing(up: Up) -> None:
    kept = {path: path.stat().st_mode & 0o777 for path in (up.data_dir, *up.data_dir.rglob("*"))}
    scratch = up.data_dir / "cache"
    shared = {path for path, mode in kept.items() if mode & 0o077 and scratch not in path.parents}
    assert shared == {up.data_dir / "warehouse"}
    assert {"icestream.db-wal", "catalog.db", "lock", "worker.log"} <= {path.name for path in kept}


def check_that_a_login_link_works_once(up: Up) -> None:
    assert httpx.get(up.link, timeout=PATIENCE_SECONDS).cookies
    assert not httpx.get(up.link, timeout=PATIENCE_SECONDS).cookies


def check_that_a_new_login_link_works_once_and_is_recorded(up: Up) -> None:
    before = up.audit("login_link.create"), up.audit("login_link.use")
    made = CliRunner().invoke(app, ["login-link", "--data-dir", str(up.data_dir)])
    assert made.exit_code == 0, made.output
    link = made.stdout.strip()
    assert link.startswith(f"{up.url}/login?token=")
    assert f"icestream login-link --data-dir {up.data_dir}" in up.log.read_text()
    assert httpx.get(link, timeout=PATIENCE_SECONDS).cookies
    assert not httpx.get(link, timeout=PATIENCE_SECONDS).cookies
    assert "icestream login-link" in httpx.get(link, timeout=PATIENCE_SECONDS).text
    created, used = up.audit("login_link.create"), up.audit("login_link.use")
    assert [len(created), len(used)] == [len(entries) + 1 for entries in before]
    assert (used[0]["principal"], used[0]["outcome"]) == ("local user", "allowed")


@pytest.mark.exhaustive
@pytest.mark.integration
def test_up_goes_on_with_the_same_catalog(tmp_path: Path) -> None:
    with running_up(tmp_path / "data") as up:
        (catalog,) = up.get("/api/v1/catalogs").json()["items"]
        assert catalog["name"] == "embedded"
        assert up.stop() == 0
    with running_up(tmp_path / "data") as again:
        assert [item["id"] for item in again.get("/api/v1/catalogs").json()["items"]] == [catalog["id"]]
        worker = wait_until(lambda: again.worker, "a worker")
        assert again.stop(signal.SIGINT) == 0, "Ctrl-C stops it as well"
        assert group(worker) == []


@pytest.mark.exhaustive
@pytest.mark.integration
def test_worker_that_dies_is_started_again_and_ends_when_up_is_killed(tmp_path: Path) -> None:
    with running_up(tmp_path / "data") as up:
        first = up.await_worker()
        os.kill(first, signal.SIGKILL)
        second = up.await_worker(other_than=first)
        assert group(first) == []
        assert "The worker ended (SIGKILL) and is started again in 1 s" in up.log.read_text()
        assert up.stop(signal.SIGKILL) == -signal.SIGKILL
        wait_until(lambda: not group(second), "the worker and its JVM to end")
