"""The lines of requests in the log."""

import json
import logging
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.app import create_app, prepare
from service.settings import Settings
from telemetry.logs import JsonFormatter
from tests.service.conftest import ADMIN_KEY, run_apart


@pytest.mark.parametrize("is_logged", [True, False])
def test_a_request_is_one_line_without_its_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_logged: bool
) -> None:
    settings = Settings(data_dir=tmp_path, bootstrap_key=ADMIN_KEY, background=False, log_requests=is_logged)
    prepare(settings)
    app = create_app(settings)
    log = logging.getLogger("icestream.requests")
    written = StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter())
    monkeypatch.setattr(log, "handlers", [handler])
    monkeypatch.setattr(log, "propagate", False)  # to what other tests have left
    monkeypatch.setattr(log, "level", logging.INFO)

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://icestream") as client:
            known = {"Authorization": f"Bearer {ADMIN_KEY}", "X-Request-ID": "mine"}
            return [
                await client.get("/livez"),
                await client.get("/api/v1/jobs?table_id=secret", headers=known),
                await client.get("/login/%0Anothing?token=secret"),
            ]

    answers = run_apart(ask())
    app.state.database.dispose()
    said = written.getvalue()
    assert "secret" not in said
    lines: list[dict[str, Any]] = [json.loads(line) for line in said.splitlines()]
    assert [(line["path"], line["status"], line["principal"], line["request_id"]) for line in lines] == (
        [
            ("/api/v1/jobs", 200, "bootstrap", "mine"),
            ("/login/%0Anothing", 404, "anonymous", answers[2].headers["X-Request-ID"]),
        ]
        if is_logged
        else []
    )
    assert all(line["seconds"] >= 0 and line["method"] == "GET" for line in lines)
