"""Cursor pagination: `{"items": [...], "next_cursor": "..."|null}`.

A cursor is the sort key of the last item, so that rows added meanwhile never shift a page.
"""

import base64
import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Depends, Query
from pydantic import BaseModel, TypeAdapter, ValidationError

from service.errors import InvalidError

Row = TypeVar("Row")
Item = TypeVar("Item")
Key = TypeVar("Key")


class Page(BaseModel, Generic[Item]):
    items: list[Item]
    next_cursor: str | None


class PageRequest(BaseModel):
    limit: int = 50
    cursor: str | None = None

    def decode(self, kind: type[Key]) -> Key | None:
        """The sort key that the cursor stands for, or None for the first page."""
        if self.cursor is None:
            return None
        try:
            value = json.loads(base64.urlsafe_b64decode(self.cursor.encode()))
            return TypeAdapter(kind).validate_python(value)
        except (ValueError, ValidationError) as error:
            raise InvalidError(
                "invalid-cursor",
                "The cursor is not one of ours",
                f"{self.cursor!r} cannot be read.",
                "Use next_cursor of the previous answer unchanged, or leave it out to start again.",
            ) from error


def page_request(
    limit: Annotated[int, Query(ge=1, le=500, description="At most this many items.")] = 50,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the previous page.")] = None,
) -> PageRequest:
    return PageRequest(limit=limit, cursor=cursor)


Paging = Annotated[PageRequest, Depends(page_request)]


def take_page(
    rows: Sequence[Row], page: PageRequest, key: Callable[[Row], Any], view: Callable[[Row], Item]
) -> Page[Item]:
    """Make a page of `rows`, which were read with limit + 1 to see whether there are more."""
    shown = rows[: page.limit]
    following = None
    if len(rows) > page.limit:
        following = base64.urlsafe_b64encode(json.dumps(key(shown[-1])).encode()).decode()
    return Page(items=[view(row) for row in shown], next_cursor=following)
