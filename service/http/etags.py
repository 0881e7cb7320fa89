"""ETag and If-Match: an update names the version that it was made from.

What PATCH can change has a version: PATCH needs it, DELETE and PUT check it if it is given, and forms always
name it. Where nothing is, that is version 0.
"""

from datetime import datetime
from typing import Annotated, Protocol, TypeVar

from fastapi import Depends, Header, Response
from sqlmodel import Session

from service.db.database import utc_now
from service.errors import PreconditionError


def etag(version: int) -> str:
    return f'"{version}"'


NOTHING = etag(0)


class _Versioned(Protocol):
    version: int


class _Row(_Versioned, Protocol):
    updated_at: datetime


V = TypeVar("V", bound=_Versioned)


def with_etag(response: Response, shown: V) -> V:
    """What an answer shows, by whose version a change of it will go."""
    response.headers["ETag"] = etag(shown.version)
    return shown


def store_change(session: Session, row: _Row) -> None:
    """Of a row that was changed, with its next version."""
    row.version += 1
    row.updated_at = utc_now()
    session.add(row)
    session.flush()


def _if_match(
    if_match: Annotated[
        str | None, Header(description="The ETag of the version that this update was made from.")
    ] = None,
) -> str:
    if if_match is None:
        raise PreconditionError(
            "precondition-required",
            "The update has no If-Match header, so it could overwrite somebody else's.",
            "GET the resource, change it, and send its ETag as If-Match (or `*` to overwrite anything).",
        )
    return if_match


IfMatch = Annotated[str, Depends(_if_match)]
OptionalIfMatch = Annotated[
    str | None,
    Header(
        alias="if-match",
        description="This is the ETag that was seen: nothing that was changed since is deleted or replaced.",
    ),
]


def check_version(if_match: str | None, version: int | None) -> None:
    """Raise PreconditionError unless `if_match` names this version, or was left out where it may be.

    version: None if there is nothing, which only NOTHING names.
    """
    if if_match is None or (version is None and if_match == NOTHING):
        return
    if version is None:
        raise PreconditionError(
            "version-conflict",
            f"This was made from version {if_match}, and there is nothing any more, so nothing was changed.",
            "Look at what is there now, and make it anew if it is still wanted.",
        )
    # Proxies that compress an answer weaken its tag: W/"3".
    offered = {tag.strip().removeprefix("W/") for tag in if_match.split(",")}
    if "*" in offered or etag(version) in offered:
        return
    raise PreconditionError(
        "version-conflict",
        f"This was made from version {if_match}, and {etag(version)} is there now, so nothing was changed.",
        "Look at what is there now, and make the change again if it is still wanted.",
    )
