"""What the chart gives its pods starts the real programs, whose probes answer, with only /tmp to write to."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import create_engine, make_url, text

from tests.deployment.chart import Manifest, component, container, named, pods, render
from tests.deployment.pods import SECRETS, given
from tests.patience import PATIENCE_SECONDS
from tests.server_process import free_port
from tests.service.conftest import PLAIN_HTTP
from tests.service.postgresql import running_server

pytestmark = pytest.mark.integration

ADMIN_KEY, WORKER_KEY = SECRETS["admin-key"], SECRETS["worker-key"]
# As the container runtime does with readOnlyRootFilesystem and a volume at /tmp. Whoever is not root needs a
# namespace of users for that.
READ_ONLY = [
    "unshare",
    "--mount",
    *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]),
    "sh",
    "-euc",
    'mount --bind /tmp /tmp; mount -o remount,ro,bind /; exec "$@"',
    "sh",
]


@contextmanager
def running(pod: Manifest, log: Path, facts: Mapping[str, str] = {}, **overridden: str) -> Iterator[Any]:
    """The process of a pod's only container; what it says goes to `log`."""
    icestream = [sys.executable, "-c", "from service.command.main import main; main()"]
    command = [*READ_ONLY, *icestream, *container(pod)["args"]]
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=given(pod, facts, overridden), cwd="/tmp", stdout=output, stderr=output
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def wait_until(holds: Callable[[], bool], process: Any, log: Path) -> None:
    while not holds():
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)


def end(process: Any, log: Path) -> None:
    """As Kubernetes ends a pod."""
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=PATIENCE_SECONDS)
    assert process.returncode in (0, -signal.SIGTERM), log.read_text()


def answers(pod: Manifest, probe: str, port: int) -> bool:
    request = container(pod)[probe]["httpGet"]
    assert request["port"] == "http"
    try:
        return get(f"http://127.0.0.1:{port}{request['path']}").status_code == 200
    except httpx.TransportError:
        return False


def get(url: str, **how: Any) -> httpx.Response:
    return httpx.get(url, timeout=PATIENCE_SECONDS, verify=PLAIN_HTTP, **how)


@pytest.fixture(scope="module")
def manifests() -> Iterator[list[Manifest]]:
    """Of a release whose database is there."""
    with running_server() as url:
        server = make_url(url)
        yield render(
            "spark-on-kubernetes",
            database={
                "existingSecret": "d",
                "host": server.host,
                "port": server.port,
                "name": "postgres",
                "sslMode": "disable",
            },
            worker={"spark": {"mode": "local", "driverMemory": "512m"}},
            lookup={"enabled": True},
        )


def pod_of(manifests: list[Manifest], name: str) -> Manifest:
    return next(one for one in pods(manifests) if component(one) == name)


def test_nothing_but_the_temporary_folder_can_be_written(tmp_path: Path) -> None:
    """Or the tests below would show less than they say."""
    for folder, can_be in ((tmp_path, True), (Path.home(), False)):
        done = subprocess.run([*READ_ONLY, "touch", folder / "written"], check=False)
        assert (done.returncode == 0) is can_be


@pytest.mark.exhaustive
def test_a_release_migrates_serves_and_works(manifests: list[Manifest], tmp_path: Path) -> None:
    migration, service, worker = (pod_of(manifests, name) for name in ("migration", "service", "worker"))
    log = tmp_path / "migration.log"
    # Each upgrade runs it again.
    for _ in range(2):
        with running(migration, log) as process:
            assert process.wait(timeout=PATIENCE_SECONDS) == 0, log.read_text()

    ports = free_port(), free_port()
    logs = tmp_path / "0.log", tmp_path / "1.log"
    with (
        running(service, logs[0], ICESTREAM_PORT=str(ports[0])) as first,
        running(service, logs[1], ICESTREAM_PORT=str(ports[1])) as second,
    ):
        for process, port, said in zip((first, second), ports, logs, strict=True):
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                wait_until(lambda probe=probe, port=port: answers(service, probe, port), process, said)  # type: ignore[misc]
        url = f"http://127.0.0.1:{ports[0]}"
        worker_key = {"Authorization": f"Bearer {WORKER_KEY}"}
        admin_key = {"Authorization": f"Bearer {ADMIN_KEY}"}
        assert get(f"{url}/api/v1/api-keys", headers=worker_key).status_code == 403
        assert get(f"{url}/api/v1/api-keys", headers=admin_key).status_code == 200
        # A proxy must pass events on as they come; nginx reads this header, whatever the ingress says.
        with httpx.stream(
            "GET", f"{url}/api/v1/events", headers=admin_key, timeout=PATIENCE_SECONDS
        ) as events:
            assert events.headers["X-Accel-Buffering"] == "no"
        wait_until(lambda: schedulers(given(service, {}, {})) == 1, first, logs[0])

        answers_for_keys(
            pod_of(manifests, "lookup"), given(service, {}, {})["ICESTREAM_LOOKUP_TOKEN"], tmp_path
        )
        works(worker, named(manifests, "ConfigMap", "spark"), url, tmp_path)
        for process, said in zip((first, second), logs, strict=True):
            end(process, said)
        lines = [json.loads(line) for said in logs for line in said.read_text().splitlines()]
        asked = [line for line in lines if line.get("path") == "/api/v1/api-keys"]
        assert [line["status"] for line in asked] == [403, 200]
        assert all(line["request_id"] for line in asked)
        assert not any(line.get("path") in ("/livez", "/metrics") for line in lines)


def schedulers(variables: Mapping[str, str]) -> int:
    """How many of the replicas hold the lease."""
    url = make_url(variables["ICESTREAM_DATABASE_URL"]).set(password=variables["PGPASSWORD"])
    engine = create_engine(url)
    with engine.connect() as connection:
        held: int = connection.execute(text("SELECT count(*) FROM leases")).scalar_one()
    engine.dispose()
    return held


def answers_for_keys(lookup: Manifest, token: str, directory: Path) -> None:
    """Starts a lookup server, which knows what the service shows it, and ends it."""
    port, log = free_port(), directory / "lookup.log"
    facts = {"limits.cpu": str(container(lookup)["resources"]["limits"]["cpu"])}
    with running(lookup, log, facts, ICESTREAM_LOOKUP_PORT=str(port)) as process:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            wait_until(lambda probe=probe: answers(lookup, probe, port), process, log)  # type: ignore[misc]
        for shown, status in ((token, 400), ("another", 401)):
            asked = httpx.post(
                f"http://127.0.0.1:{port}/lookups",
                headers={"Authorization": f"Bearer {shown}"},
                json={},
                timeout=PATIENCE_SECONDS,
            )
            assert asked.status_code == status
        end(process, log)


def works(worker: Manifest, spark: Manifest, url: str, directory: Path) -> None:
    """Starts a worker, which the service hears of, and ends it."""
    configuration, alive, log = directory / "spark", directory / "alive", directory / "worker.log"
    configuration.mkdir()
    for name, content in spark["data"].items():
        (configuration / name).write_text(content)

    def passes(probe: str) -> bool:
        command = shlex.join(container(worker)[probe]["exec"]["command"]).replace("/tmp/alive", str(alive))
        return subprocess.run(["sh", "-c", command], check=False).returncode == 0

    # A file that an earlier process left must not count.
    alive.touch()
    os.utime(alive, (0, 0))
    assert passes("startupProbe")
    assert not passes("livenessProbe")
    facts = {"limits.cpu": container(worker)["resources"]["limits"]["cpu"]}
    facts = {name: str(value) for name, value in facts.items()}
    own = {"ICESTREAM_URL": url, "ICESTREAM_ALIVE_FILE": str(alive), "SPARK_CONF_DIR": str(configuration)}
    with running(worker, log, facts, **own) as process:
        wait_until(lambda: passes("livenessProbe"), process, log)
        assert passes("startupProbe")
        wait_until(lambda: "icestream_workers_alive 1.0" in get(f"{url}/metrics").text, process, log)
        end(process, log)
    said = log.read_text().splitlines()
    lines = [json.loads(line) for line in said if line.startswith("{")]
    assert {"icestream.worker"} <= {line["logger"] for line in lines if "worker_id" in line}
    # Before Spark's JVM has read its settings, it writes text.
    assert all(line.startswith("{") for line in said[said.index(next(filter(is_ready, said))) :]), said


def is_ready(line: str) -> bool:
    return '"Ready: Spark' in line
