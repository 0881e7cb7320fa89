"""As much of Kubernetes' API as Spark's driver needs: pods, which it runs as processes of this machine.

It allows what the chart's Role allows, and remembers what was refused.
"""

import json
import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]


class KubernetesApi:
    """A namespace with a driver's pod; a context manager that ends all processes."""

    def __init__(
        self, role: Json, driver: Json, directory: Path, adjust: Callable[[dict[str, str]], dict[str, str]]
    ) -> None:
        """role: what the caller may do. adjust: turns a pod's variables into those of its process."""
        self.allowed = {
            (verb, resource)
            for rule in role["rules"]
            for verb in rule["verbs"]
            for resource in rule["resources"]
        }
        self.pods: dict[str, Json] = {driver["metadata"]["name"]: driver}
        self.created: list[Json] = []
        self.refused: list[str] = []
        self.used: set[str] = set()
        self._directory, self._adjust = directory, adjust
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "KubernetesApi":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        for process in self._processes.values():
            process.kill()
            process.wait()

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self._directory.glob("*.log")))

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Json) -> tuple[int, Json]:
        parts = path.strip("/").split("/")  # api, v1, namespaces, NAMESPACE, resource[, name]
        resource, name = [*parts[4:], "", ""][:2]
        verb = {
            "GET": "watch" if "watch" in query else "get" if name else "list",
            "POST": "create",
            "PATCH": "patch",
            "PUT": "update",
            "DELETE": "delete" if name else "deletecollection",
        }[method]
        if (verb, resource) not in self.allowed:
            self.refused.append(f"{verb} {resource}")
            return 403, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403}
        self.used.add(verb)
        with self._lock:
            if verb == "create":
                return 201, self._create(body)
            if verb == "get":
                found = self.pods.get(name)
                return (200, found) if found else (404, {"kind": "Status", "apiVersion": "v1", "code": 404})
            wanted = [one.split("=") for one in query.get("labelSelector", [""])[0].split(",") if "=" in one]
            chosen = [
                pod
                for pod_name, pod in self.pods.items()
                if (pod_name == name if name else True)
                and all(pod["metadata"].get("labels", {}).get(key) == value for key, value in wanted)
            ]
            if verb in ("delete", "deletecollection"):
                for pod in chosen:
                    self._delete(pod["metadata"]["name"])
                return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
            return 200, {
                "kind": "PodList",
                "apiVersion": "v1",
                "metadata": {"resourceVersion": "1"},
                "items": chosen,
            }

    def _create(self, pod: Json) -> Json:
        self.created.append(json.loads(json.dumps(pod)))
        name = pod["metadata"]["name"]
        pod["metadata"] |= {"uid": str(uuid.uuid4()), "resourceVersion": "1", "namespace": "data"}
        (container,) = pod["spec"]["containers"]
        variables = {}
        for one in container["env"]:
            source = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            known = {"status.podIP": "127.0.0.1", "metadata.name": name, "spec.nodeName": "node"}
            variables[one["name"]] = known[source] if source else one.get("value", "")
        command = [*container.get("command", []), *container.get("args", [])]
        with (self._directory / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                command, env=self._adjust(variables), stdout=log, stderr=log, cwd=self._directory
            )
        pod["status"] = {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "containerStatuses": [
                {
                    "name": container["name"],
                    "ready": True,
                    "restartCount": 0,
                    "image": container["image"],
                    "imageID": "",
                    "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
                }
            ],
        }
        self.pods[name] = pod
        return pod

    def _delete(self, name: str) -> None:
        self.pods.pop(name)
        if name in self._processes:
            os.kill(self._processes[name].pid, signal.SIGTERM)

    def _handler(api) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer()

            do_POST = do_DELETE = do_PATCH = do_PUT = do_GET  # noqa: N815

            def _answer(self) -> None:
                parts = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, answer = api.answer(
                    self.command, parts.path, parse_qs(parts.query), json.loads(body) if body else {}
                )
                text = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        return Handler
