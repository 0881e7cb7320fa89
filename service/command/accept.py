"""`icestream accept`, as far as it needs no JVM: where the service is, and whether Spark is installed."""

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from icestream.errors import IcestreamError, SetupError
from service.command import saved_login
from service.command.calls import end


def run(
    catalog: str,
    namespace: str,
    *,
    location: str | None,
    reports: Sequence[Path],
    runs: Sequence[str],
    flags: Mapping[str, bool],
) -> NoReturn:
    """Goes on as the process of worker.acceptance, which writes to the store as workers do."""
    try:
        login = saved_login.find()
        if importlib.util.find_spec("pyspark") is None:
            raise SetupError(
                "An acceptance writes tables as workers do, and pyspark is not installed here.",
                "Run it in the image of workers, or install icestream with the extra `worker`.",
            )
    except IcestreamError as error:
        end(error)
    os.environ |= {"ICESTREAM_URL": login.url, "ICESTREAM_API_KEY": login.api_key}
    arguments = [f"--catalog={catalog}", f"--namespace={namespace}"]
    arguments += [f"--location={location}"] if location is not None else []
    arguments += [f"--report={path}" for path in reports]
    arguments += [f"--run={one}" for one in runs]
    arguments += [f"--{name}" for name, is_given in flags.items() if is_given]
    os.execv(sys.executable, [sys.executable, "-m", "worker.acceptance.main", *arguments])  # noqa: S606
