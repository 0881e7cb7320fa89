"""What the service keeps in files is for nobody else on the machine, whatever the umask is or was."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from service.app import prepare
from service.catalogs.secrets import resolve
from service.command.main import app
from service.command.up import with_erasure_secrets
from service.db.database import Database
from service.db.private_files import tighten_data_directory
from service.erasures.receipt import secrets_of
from service.errors import InvalidError, StartError
from service.settings import Settings
from service.webhooks.signing import new_secret


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def shared(*paths: Path) -> dict[str, str]:
    """What other users may do with, of files and all that lies in directories."""
    every = [path for given in paths for path in (given, *given.rglob("*"))]
    return {path.name: oct(mode) for path in every if (mode := path.stat().st_mode & 0o777) & 0o077}


def test_a_new_control_database_is_its_owners_from_the_first_moment(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    prepare(settings)
    database = Database(settings.database_url)
    with database.write() as session:
        session.connection().exec_driver_sql("CREATE TABLE t (x INTEGER)")
        assert {file.name for file in settings.data_dir.iterdir()} > {"icestream.db", "icestream.db-wal"}
        assert shared(settings.data_dir) == {}
    database.dispose()


@pytest.mark.parametrize("command", ["migrate", "serve"])
def test_what_an_earlier_start_left_open_is_closed_and_told(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data_dir = tmp_path / "data"
    (data_dir / "logs").mkdir(parents=True)
    for name in ("icestream.db", "icestream.db-journal", "catalog.db", "lock", "logs/worker.log"):
        (data_dir / name).touch()
    assert len(shared(data_dir)) == 7
    monkeypatch.setenv("ICESTREAM_DATA_DIR", str(data_dir))
    result = CliRunner().invoke(app, [command])
    assert result.exit_code == (0 if command == "migrate" else 1), result.output
    assert shared(data_dir) == {}
    assert (
        f"Other users could read {data_dir / 'icestream.db'} (mode 666); now only its owner can"
        in caplog.text
    )


def test_a_directory_that_holds_other_things_too_stays_as_it_is(tmp_path: Path) -> None:
    for name in ("icestream.db", "report.pdf", "warehouse"):
        (tmp_path / name).touch()
    tmp_path.chmod(0o755)
    tighten_data_directory(tmp_path)
    assert shared(tmp_path) == {tmp_path.name: "0o755", "report.pdf": "0o666", "warehouse": "0o666"}


def test_a_database_elsewhere_is_its_owners_too_and_one_in_memory_makes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Database(f"sqlite:///{tmp_path / 'new' / 'c.db'}").dispose()
    assert shared(tmp_path / "new") == {}
    Database("sqlite://").dispose()
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_database_that_cannot_be_written_is_named_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match=r"can't be written to .*ICESTREAM_DATABASE_URL"):
        Database(f"sqlite:///{tmp_path / 'file' / 'c.db'}")


def test_the_secrets_of_erasures_are_made_once_for_their_owner_alone_unless_they_are_given(
    tmp_path: Path,
) -> None:
    settings = Settings(data_dir=tmp_path / "data", receipt_secret=SecretStr(new_secret()))
    (settings.data_dir / "secrets").mkdir(parents=True, mode=0o700)
    made = with_erasure_secrets(settings)
    assert made.receipt_secret == settings.receipt_secret
    again, alone = with_erasure_secrets(settings), with_erasure_secrets(Settings(data_dir=settings.data_dir))
    assert again.erasure_secret == alone.erasure_secret == made.erasure_secret
    for one in (made, alone):
        assert len(secrets_of(one)[1]) == 1
    kept = settings.data_dir / "secrets"
    assert {file.name for file in kept.iterdir()} == {"erasure_secret", "receipt_secret"}
    assert shared(kept) == {}
    with pytest.raises(InvalidError):  # by no catalog's reference
        resolve({"token": f"file:{kept}/erasure_secret"}, settings.secret_rules, settings.own_files)
