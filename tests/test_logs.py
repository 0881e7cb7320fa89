"""Lines of the log in JSON: whose they are, and what is never in them."""

import json
import logging
import subprocess
import sys

import pytest

from telemetry.logs import add_process_ids, every_line, formatter


def written(message: str, *arguments: object, log_format: str = "json", **options: object) -> str:
    record = logging.LogRecord("a.b", logging.WARNING, __file__, 1, message, arguments, None)
    record.__dict__.update(options)
    return formatter("json" if log_format == "json" else "text").format(record)


def test_a_line_names_what_it_is_about_while_that_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("telemetry.logs._Process.ids", {})
    add_process_ids(worker_id="w")
    with every_line(str, job_id="j", attempt=2):
        line = json.loads(written("two\nlines of %s", "tables", fields={"status": 404}))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning",
        "logger": "a.b",
        "message": "two\nlines of tables",
        "worker_id": "w",
        "job_id": "j",
        "attempt": 2,
        "status": 404,
    }
    assert "job_id" not in json.loads(written("later"))


def test_a_line_in_json_is_one_line_and_tells_the_exception() -> None:
    try:
        raise ValueError("what went\nwrong")
    except ValueError:
        text = written("failed", exc_info=sys.exc_info())
    assert "\n" not in text
    assert "test_logs.py" in json.loads(text)["exception"]


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_secret_is_in_no_line_however_json_would_escape_it(log_format: str) -> None:
    secret = 'gre"en\\'
    try:
        raise ValueError(secret)
    except ValueError:
        with every_line(lambda text: text.replace(secret, "***")):
            text = written(
                "it is %s", secret, log_format=log_format, fields={"path": secret}, exc_info=sys.exc_info()
            )
    assert "***" in text
    assert "gre" not in text
    assert "gre" in written(secret, log_format=log_format)


def test_of_libraries_that_tell_each_step_only_troubles_are_told() -> None:
    steps = (
        "import logging, telemetry.logs as logs; logs.configure_logs('text');"
        "log = logging.getLogger('pypaimon.write'); log.info('a step'); log.warning('a trouble')"
    )
    told = subprocess.run([sys.executable, "-c", steps], capture_output=True, text=True, check=True).stderr
    assert "a trouble" in told
    assert "a step" not in told
