"""`icestream login-link`: a new login link for the service that runs on this machine.

Whoever can write to the control database may do anything, so that is the proof: the hash of the link's secret
is written there, and nothing is asked over the network but whether the service runs.
"""

import fcntl
from pathlib import Path

import httpx
from sqlalchemy.exc import SQLAlchemyError

from service.auth.service import create_login_link
from service.command.serving import address_of
from service.db.control_database import files_of
from service.db.database import Database
from service.errors import DatabaseError, StartError
from service.settings import Settings


def make_link(settings: Settings, url: str | None) -> str:
    """url: how the browser reaches the service, if not as this machine does.

    Raises StartError if the service, or its database, is not here.
    """
    files = files_of(settings.database_url)
    if files and not Path(files[0]).exists():
        raise StartError(
            f"No service keeps its database at {files[0]}: name its directory with --data-dir or its "
            "ICESTREAM_DATABASE_URL. If it runs on another machine, run `icestream login-link` there, or "
            "sign in with an API key."
        )
    here = _address_of_up(settings.data_dir) or address_of(settings.host, settings.port)
    _check_that_it_runs(here)
    database = Database(settings.database_url)
    try:
        database.check_start()
        return create_login_link(database, url or here)
    except SQLAlchemyError as error:
        raise StartError(f"The control database cannot be written to: {DatabaseError(error)}") from None
    finally:
        database.dispose()


def _address_of_up(data_dir: Path) -> str | None:
    """Where `icestream up` with this data directory serves, if it does: its lock says so."""
    try:
        lock = (data_dir / "lock").open()
    except OSError:
        return None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            _owner, _, address = lock.read().strip().partition("\n")
            return address or None
    return None


def _check_that_it_runs(here: str) -> None:
    try:
        answer = httpx.get(f"{here}/livez", timeout=10, trust_env=False)
        runs = answer.status_code == 200 and answer.json() == {"status": "ok"}
    except (httpx.TransportError, httpx.InvalidURL, ValueError):
        runs = False
    if not runs:
        raise StartError(
            f"No service answers at {here}: start it with `icestream up` or `icestream serve`; "
            "ICESTREAM_HOST and ICESTREAM_PORT say where it listens."
        )
