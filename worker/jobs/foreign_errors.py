"""What errors of other libraries, of Java, of Spark's processes and of the system mean for a job."""

import errno
import os
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from stores.aws import CredentialsError
from trust import refusals
from trust.bounds import LimitExceededError, OutOfTimeError
from trust.egress import AmbiguousHostError, HostNotAllowedError
from trust.locations import LocationNotAllowedError
from trust.rest_answers import SentElsewhereError
from worker.io.storage import causes_of, lacks_own_memory
from worker.process.errors import JobError, OutOfMemoryError, StorageError, StorageFullError

# Errors whose text is all that there is of what happened in another process.
_ABROAD = (Py4JError, PySparkException)
# Of a Python process of Spark's, the system kills whichever takes most; Spark knows only that it is gone.
_SIGNS = ("MemoryError", "OutOfMemoryError", "Python worker exited unexpectedly")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class PlaceNotAllowedError(JobError):
    code = "location_not_allowed"
    title = "The table leads outside the allowed places"


class CatalogHostError(JobError):
    code = "host_not_allowed"
    title = "The catalog leads to a host that is not allowed"


class AmbiguousCatalogHostError(CatalogHostError):
    title = "The catalog names a host in a way that not all programs read alike"


class CatalogRedirectsError(JobError):
    code = "catalog_redirects"
    title = refusals.CATALOG_REDIRECTS


class CatalogLimitError(JobError):
    code = "catalog_limit_exceeded"
    title = refusals.CATALOG_ANSWER_TOO_LARGE


class CatalogTimeError(CatalogLimitError):
    title = refusals.CATALOG_TOO_SLOW
    retryable = True


_MEANINGS: tuple[tuple[type[Any], type[JobError]], ...] = (
    (LocationNotAllowedError, PlaceNotAllowedError),
    (AmbiguousHostError, AmbiguousCatalogHostError),
    (HostNotAllowedError, CatalogHostError),
    (SentElsewhereError, CatalogRedirectsError),
    (CredentialsError, StorageError),
    (OutOfTimeError, CatalogTimeError),
    (LimitExceededError, CatalogLimitError),
)
"""Of errors that say by themselves what happened and what to do."""


def meaning_of(error: Exception) -> JobError | None:
    """None for an error that nobody foresaw."""
    for foreign, meaning in _MEANINGS:
        if isinstance(error, foreign):
            return meaning(error.detail, error.remedy)
    if lacks_memory(error):
        return OutOfMemoryError(str(error) or type(error).__name__)
    if (full := lack_of_room(error)) is not None:
        return StorageFullError(full)
    return StorageError(str(error)) if isinstance(error, OSError) else None


def lacks_memory(error: BaseException) -> bool:
    """Whether an error, or a cause of it, tells of too little memory: here, in Java or in a task."""
    if lacks_own_memory(error):
        return True
    for one in causes_of(error):
        words = f"{type(one).__name__} {one}" if isinstance(one, _ABROAD) else type(one).__name__
        if any(sign in words for sign in _SIGNS):
            return True
    return False


def lack_of_room(error: BaseException) -> str | None:
    """What a full disk said, here, in Java or in a task; None if the error tells of nothing such."""
    for one in causes_of(error):
        if isinstance(one, OSError) and one.errno in _FULL:
            return str(one)
        if isinstance(one, _ABROAD):
            lines = str(one).splitlines()
            found = [line.strip() for line in lines if any(os.strerror(code) in line for code in _FULL)]
            if found:
                return found[0]
    return None
