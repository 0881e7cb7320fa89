"""What a call of the service raises.

IcestreamError
├── SetupError               no call can be made with this address, key or file of certificates
├── UnreachableError         nobody answers there, or not Icestream
├── UnknownNameError         nothing has the name, or several things
└── ProblemError             the service refuses
    ├── UnauthenticatedError 401
    ├── ForbiddenError       403
    ├── NotFoundError        404
    ├── ConflictError        409
    ├── InvalidError         422
    └── BusyError            429 / 503; the same call succeeds later
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import httpx


class IcestreamError(Exception):
    """detail: what is the case. remedy: what to do about it."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(f"{detail} {remedy}".strip())
        self.detail = detail
        self.remedy = remedy


class SetupError(IcestreamError):
    pass


class UnreachableError(IcestreamError):
    pass


class UnknownNameError(IcestreamError):
    pass


class ProblemError(IcestreamError):
    """type: which problem it is, as docs/errors.md lists them; empty if what answered is no problem document.

    fields: all of the document, such as the `errors` of fields, or the `request_id`. may_have_happened: what
    the call asked for, since a server failed while it answered, at this time or before it was sent again.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        remedy: str,
        fields: Mapping[str, Any],
        *,
        may_have_happened: bool = False,
    ) -> None:
        super().__init__(detail, remedy)
        self.status = status
        self.may_have_happened = may_have_happened
        self.type = str(fields.get("type", ""))
        self.title = str(fields.get("title", ""))
        self.fields = dict(fields)

    def __str__(self) -> str:
        return f"{self.title} ({self.status}): {super().__str__()}" if self.title else super().__str__()


class UnauthenticatedError(ProblemError):
    pass


class ForbiddenError(ProblemError):
    pass


class NotFoundError(ProblemError):
    pass


class ConflictError(ProblemError):
    pass


class InvalidError(ProblemError):
    pass


class BusyError(ProblemError):
    pass


_BY_STATUS: Final = {
    401: UnauthenticatedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    422: InvalidError,
    429: BusyError,
    503: BusyError,
}


def refusal(answer: httpx.Response, *, may_have_happened: bool = False) -> ProblemError:
    """What an answer that is an error says."""
    kind = _BY_STATUS.get(answer.status_code, ProblemError)
    try:
        problem = answer.json()
        problem["title"]
    except (ValueError, KeyError, TypeError):
        detail = f"The service answered {answer.status_code}."
        return kind(answer.status_code, detail, answer.text[:500], {}, may_have_happened=may_have_happened)
    detail, remedy = (str(problem.get(name) or "") for name in ("detail", "remedy"))
    return kind(answer.status_code, detail, remedy, problem, may_have_happened=may_have_happened)
