"""`icestream login`: what it keeps, who may read it, and what goes before it."""

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from icestream.errors import SetupError
from service import __version__
from service.command import saved_login
from service.command.main import app
from service.command.saved_login import Login
from tests.service.conftest import ADMIN_KEY, Running, alike_on_both

# The database has no part in it.
database_kind = alike_on_both
ELSEWHERE = Login("http://127.0.0.1:1", "key-of-another-service")


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("ICESTREAM_URL", raising=False)
    monkeypatch.delenv("ICESTREAM_API_KEY", raising=False)
    monkeypatch.setattr(saved_login, "_asked", [])


def run(*arguments: str, typed: str = "") -> Result:
    return CliRunner().invoke(app, arguments, input=typed)


def test_who_has_logged_in_needs_neither_address_nor_key(service: Running, tmp_path: Path) -> None:
    assert "icestream login" in " ".join(run("tables", "list").stderr.split())
    done = run("login", service.url, typed=f"{ADMIN_KEY}\n")
    assert done.exit_code == 0, done.output
    assert f"Logged in to {service.url} as " in done.stderr
    assert ADMIN_KEY not in done.output
    assert run("tables", "list").exit_code == 0
    assert run("logout").exit_code == 0
    assert not list((tmp_path / "config").rglob("*.json"))
    assert run("tables", "list").exit_code == 1
    assert "Nobody is logged in." in run("logout").stderr


def test_nobody_but_its_owner_may_read_what_is_kept(service: Running) -> None:
    run("login", service.url, typed=ADMIN_KEY)
    kept = saved_login.file()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    assert [one.name for one in kept.parent.iterdir()] == [kept.name]
    kept.chmod(0o640)
    refused = run("tables", "list")
    assert refused.exit_code == 1
    assert "chmod 600" in refused.stderr
    assert ADMIN_KEY not in refused.output


def test_a_key_that_the_service_does_not_know_is_not_kept(service: Running) -> None:
    refused = run("login", service.url, typed="a-wrong-key")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("This API key is not valid\n")
    assert "No key was given." in run("login", service.url).stderr
    assert not saved_login.file().exists()


def test_what_is_given_goes_before_the_environment_and_that_before_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saved_login.save(ELSEWHERE)
    saved_login.ask_at(None)
    assert saved_login.find() == ELSEWHERE
    monkeypatch.setenv("ICESTREAM_API_KEY", "of-the-environment")
    assert saved_login.find() == Login(ELSEWHERE.url, "of-the-environment")
    monkeypatch.setenv("ICESTREAM_URL", "http://environment/")
    assert saved_login.find() == Login("http://environment", "of-the-environment")
    saved_login.ask_at("http://given")
    assert saved_login.find() == Login("http://given", "of-the-environment")


def test_a_key_that_was_kept_goes_to_no_other_address(monkeypatch: pytest.MonkeyPatch) -> None:
    saved_login.save(ELSEWHERE)
    saved_login.ask_at("http://127.0.0.1:2")
    with pytest.raises(SetupError, match="No key is known for"):
        saved_login.find()
    saved_login.ask_at(None)
    monkeypatch.setenv("ICESTREAM_URL", "http://127.0.0.1:2")
    with pytest.raises(SetupError):
        saved_login.find()
    refused = run("--url", ELSEWHERE.url, "tables", "list")
    assert f"The service at {ELSEWHERE.url} can't be reached" in " ".join(refused.stderr.split())


@pytest.mark.parametrize("kept", ["", "[]", "{", '{"url": 1, "api_key": "k"}', '{"url": "u"}', "\xff"])
def test_what_is_no_login_is_refused_with_words(kept: str) -> None:
    saved_login.save(ELSEWHERE)
    saved_login.file().write_bytes(kept.encode("latin-1"))
    with pytest.raises(SetupError, match="can't be read"):
        saved_login.read()
    assert run("logout").exit_code == 0


def test_a_place_that_cannot_be_written_is_told(
    service: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    refused = run("login", service.url, typed=ADMIN_KEY)
    assert refused.exit_code == 1
    assert "can't be written" in " ".join(refused.stderr.split())


def test_the_file_holds_an_address_and_its_key() -> None:
    path = saved_login.save(ELSEWHERE)
    assert json.loads(path.read_text()) == {"url": ELSEWHERE.url, "api_key": ELSEWHERE.api_key}
    assert ELSEWHERE.api_key not in repr(ELSEWHERE)


def test_the_version_is_told() -> None:
    told = run("--version")
    assert (told.exit_code, told.stdout) == (0, f"icestream {__version__}\n")
