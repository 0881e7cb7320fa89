"""`icestream login`: the address of a service and a key for it, kept for the commands to come.

They lie in a file that nobody but this user may read. A key is told to no other address than the one that it
was kept with. What a command is given goes before the environment, and that before the file.
"""

import json
import os
import stat
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile

import typer

from icestream.errors import SetupError

DEFAULT_URL = "http://127.0.0.1:8000"
_MOST_BYTES = 65_536
_asked: list[str] = []
"""The address that this command was given."""


@dataclass(frozen=True)
class Login:
    url: str
    api_key: str = field(repr=False)


def file() -> Path:
    """In `$XDG_CONFIG_HOME` or `~/.config`, or where other systems have such files."""
    return Path(typer.get_app_dir("icestream")) / "login.json"


def ask_at(url: str | None) -> None:
    """From here on, calls of this process go to `url`, if it is given."""
    _asked[:] = [url] if url else []


def service_url() -> str:
    """Raises SetupError."""
    given = next(iter(_asked), None) or os.environ.get("ICESTREAM_URL")
    if not given and (saved := read()) is not None:
        given = saved.url
    return (given or DEFAULT_URL).rstrip("/")


def find() -> Login:
    """Where the service is and who calls. Raises SetupError."""
    url = service_url()
    key = os.environ.get("ICESTREAM_API_KEY")
    if not key and (saved := read()) is not None and saved.url == url:
        key = saved.api_key
    if not key:
        raise SetupError(
            f"No key is known for {url}: ICESTREAM_API_KEY is not set, and nobody has logged in there.",
            "Log in with `icestream login`, or set it: to a key that was made on the page, or to what the "
            "service was started with as ICESTREAM_BOOTSTRAP_KEY. With that one, "
            "`icestream auth create-api-key` makes others.",
        )
    return Login(url, key)


def read() -> Login | None:
    """What was kept, if anything was. Raises SetupError for what others could have read or written."""
    path = file()
    try:
        with path.open("rb") as kept:
            found = os.fstat(kept.fileno())
            if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
                raise SetupError(
                    f"Others than you may read or write {path}, which has your key.",
                    f"Take that from them (chmod 600 {path}); and give the key a new secret if they could "
                    "have read it: `icestream auth rotate-api-key`.",
                )
            given = json.loads(kept.read(_MOST_BYTES))
        return Login(url=_word(given["url"]), api_key=_word(given["api_key"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise SetupError(f"{path} can't be read: {error}.", "`icestream login` writes it anew.") from None


def save(login: Login) -> Path:
    """Keeps it, in place of what was kept before. Raises SetupError."""
    path = file()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Made with the mode 600, and there at once or not at all.
        with NamedTemporaryFile("w", dir=path.parent, prefix=".login", delete=False) as kept:
            try:
                json.dump(asdict(login), kept)
                kept.flush()
                Path(kept.name).replace(path)
            except OSError:
                Path(kept.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        remedy = "Free space there, or have XDG_CONFIG_HOME name another place."
        raise SetupError(f"{path} can't be written: {error}.", remedy) from None
    return path


def forget() -> bool:
    """Whether anything was kept. Raises SetupError."""
    try:
        file().unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise SetupError(f"{file()} can't be removed: {error}.", "Remove it yourself.") from None
    return True


def _word(given: object) -> str:
    if not isinstance(given, str) or not given:
        raise ValueError("an address and a key are not in it")
    return given
