"""Pages of lists: `{"items": [...], "next_cursor": "..."|null}`, sorted, each row on exactly one page.

A cursor holds the sort key and the id of the last item, so that rows added meanwhile never shift a page. It
also names the sort and the filters that it was made with: with others it would skip rows, so it is refused.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Generic, NamedTuple, Self, TypeVar

from fastapi import Query, Request
from pydantic import AfterValidator, ConfigDict, TypeAdapter
from pydantic import Field as ModelField
from sqlalchemy import ColumnElement, TypeDecorator, and_, case, func, literal, tuple_
from sqlalchemy import select as select_columns
from sqlalchemy.orm import Mapped, QueryableAttribute
from sqlmodel import Session
from sqlmodel.sql.expression import SelectOfScalar

from service.errors import InvalidError
from service.http.json_values import unusable_values
from service.http.messages import Message, UtcTime, to_utc

COUNTED = 10_000
"""So many rows are looked at for a total: it costs some milliseconds, however many there are."""
EVERYTHING = 10_000
"""More than is shown of anything that is not paged through."""
Row = TypeVar("Row")
Item = TypeVar("Item")
Ordered = QueryableAttribute[Any] | ColumnElement[Any]


class Page(Message, Generic[Item]):
    """A part of a list."""

    # Docstrings would be looked for again for each type of items, and take a fifth of the service's start.
    model_config = ConfigDict(use_attribute_docstrings=False)

    items: list[Item] = ModelField(description="The items are in the order of `sort`.")
    next_cursor: str | None = ModelField(
        description="The next page is asked for with this as `cursor`; null on the last one."
    )
    total: int | None = ModelField(
        default=None,
        description="The filters match this many items, on all pages; null on pages that follow another one.",
    )
    total_is_least: bool = ModelField(
        default=False,
        description="There may be more items than `total` if this is true: counting them would take long.",
    )

    @property
    def counted(self) -> "Total":
        return Total(self.total, self.total_is_least)


@dataclass(frozen=True)
class PageRequest:
    limit: int = 50
    cursor: str | None = None
    sort: str | None = None
    """A name from the list's `Sorting`, after a minus for descending; None is the list's own order."""
    scope: str = ""
    """Of the list and its filters: a cursor holds for these only."""
    counts: bool = False
    """Whether the total is wanted, which the first page has."""


@dataclass(frozen=True)
class Joined:
    """A column of another table, which has a row for each item: an index of that table has the order."""

    column: Any
    key: Any
    """The items' key, as that table has it."""


class Sorting:
    """By what a list can be sorted; ties are broken by `key`, and nulls come last either way."""

    def __init__(self, columns: Mapping[str, Any], *, key: Any, default: str) -> None:
        self.columns = columns
        """Each an attribute, an expression or `Joined`."""
        self.key: QueryableAttribute[Any] = key
        self.default = default
        self.page_request = page_request(list(columns), default)
        """The dependency of the list's endpoint: `limit`, `cursor` and `sort`."""


def page_request(
    names: Sequence[str], default: str, *, limit: int = 50, most: int = 500, counts: bool = True
) -> Callable[..., PageRequest]:
    """The dependency of a list that can be sorted by these names, either way. counts: as of `PageRequest`."""
    choices = [sign + name for name in names for sign in ("", "-")]

    def check(sort: str) -> str:
        if sort not in choices:
            raise ValueError(f"should be one of {', '.join(choices)}")
        return sort

    def read(
        request: Request,
        limit: Annotated[
            int, Query(ge=1, le=most, description="A page has at most this many items.")
        ] = limit,
        cursor: Annotated[
            str | None,
            Query(
                max_length=4000,
                description=(
                    "The page that follows is asked for with `next_cursor` of the previous one, and with the "
                    "same sort and filters."
                ),
            ),
        ] = None,
        sort: Annotated[
            str,
            Query(
                description="The items are sorted by this; a minus in front turns the order round. Ties are "
                "broken by id, nulls come last.",
                json_schema_extra={"enum": choices},
            ),
            AfterValidator(check),
        ] = default,
    ) -> PageRequest:
        filters = sorted(
            pair for pair in request.query_params.multi_items() if pair[0] not in ("limit", "cursor", "sort")
        )
        scope = hashlib.sha256(json.dumps([request.url.path, filters]).encode()).hexdigest()[:16]
        return PageRequest(limit, cursor, sort, scope, counts)

    return read


def read_page(
    session: Session,
    query: SelectOfScalar[Row],
    page: PageRequest,
    sorting: Sorting,
    view: Callable[[Sequence[Row]], list[Item]],
    *rest: ColumnElement[bool],
    count: Callable[[], "Total"] | None = None,
) -> Page[Item]:
    """The page of `query` that was asked for; `view` makes items of all its rows at once.

    rest: conditions that no index answers, besides those of the query.
    count: counts all that match, where the list knows a shorter way than along its own order.

    Raises InvalidError (400) for a cursor that was made with another sort or other filters, or by nobody.
    """
    sort = page.sort or sorting.default
    is_descending = sort.startswith("-")
    column, key = sorting.columns[sort.removeprefix("-")], sorting.key
    is_first = page.cursor is None
    every, query = query, query.where(*rest) if rest else query
    if isinstance(column, Joined):
        column, key = column.column, column.key
        query = query.join(key.class_, key == sorting.key)
    last = None if is_first else _decode(page, sort, column, key)
    order: list[ColumnElement[Any]] = [part.desc() if is_descending else part.asc() for part in (column, key)]
    ordered = query.add_columns(column, key).order_by(*order)
    rows: list[Any] = []
    for conditions in _parts(column, key, last, sort):
        if (missing := page.limit + 1 - len(rows)) > 0:
            rows += session.execute(ordered.where(*conditions).limit(missing)).all()
    shown = [row[0] for row in rows[: page.limit]]
    following = make_cursor(page, sort, *rows[page.limit - 1][1:]) if len(rows) > page.limit else None
    counted = Total(None)
    if page.counts and is_first and following is None:
        counted = Total(len(shown))
    elif page.counts and is_first:
        # In the order of the list, if only a part is looked at: that part is what pages show first.
        found = count() if count else count_rows(session, every.order_by(*order) if rest else every, *rest)
        counted = found.or_more(len(shown) + 1)
    return Page(
        items=view(shown), next_cursor=following, total=counted.number, total_is_least=counted.is_least
    )


class Total(NamedTuple):
    number: int | None
    is_least: bool = False
    """Whether there may be more."""

    def or_more(self, seen: int) -> Self:
        """At least as many as were seen."""
        return type(self)(max(self.number or 0, seen), self.is_least)


def count_rows(
    session: Session, query: SelectOfScalar[Any], *rest: ColumnElement[bool], most: int = COUNTED
) -> Total:
    """How many rows a query has of which `rest` is true, among `most` of its rows.

    Where an index answers the query, that costs no more than to walk so many entries of it.
    """
    return count_rows_by(session, query, literal(0), *rest, most=most).get(0, Total(0))


def count_rows_by(
    session: Session,
    query: SelectOfScalar[Any],
    column: ColumnElement[Any] | Mapped[Any],
    *rest: ColumnElement[bool],
    most: int = COUNTED,
) -> dict[Any, Total]:
    """As `count_rows`, for each value that the column has among these rows."""
    fits = case((and_(*rest), 1), else_=0) if rest else literal(1)
    columns = (column.label("value"), fits.label("fits"))
    rows = query.with_only_columns(*columns, maintain_column_froms=True).limit(most + 1).subquery()
    grouped = select_columns(rows.c.value, func.count(), func.sum(rows.c.fits)).group_by(rows.c.value)
    found = session.execute(grouped).all()
    is_least = sum(number for _, number, _ in found) > most
    return {value: Total(min(int(fitting), most), is_least) for value, _, fitting in found}


def within(
    column: Mapped[datetime], since: datetime | None, until: datetime | None
) -> list[ColumnElement[bool]]:
    """The conditions of what is of `since` or later and before `until`, each None for any time."""
    conditions: list[ColumnElement[bool]] = []
    if since is not None:
        conditions.append(column >= since)
    if until is not None:
        conditions.append(column < until)
    return conditions


def _parts(
    column: Ordered, key: QueryableAttribute[Any], last: tuple[Any, Any] | None, sort: str
) -> Iterator[list[ColumnElement[bool]]]:
    """The conditions of rows that come after the one with the sort value and key `last`, or of all rows:
    those that have a value, then those that have none. Together, no index would have their order."""
    beyond: list[ColumnElement[bool]] = []
    if last is not None:
        value, last_key = last
        place: Any = key
        reached: Any = literal(last_key, key.type)
        if value is not None:
            # As one comparison of rows, which an index answers.
            place, reached = tuple_(column, key), tuple_(literal(value, column.type), reached)
        beyond.append(place < reached if sort.startswith("-") else place > reached)
    if not _is_nullable(column):
        yield beyond
    elif last is None or last[0] is not None:
        yield [column.is_not(None), *beyond]
        yield [column.is_(None)]
    else:
        yield [column.is_(None), *beyond]


def _is_nullable(column: Ordered) -> bool:
    # What is computed is never null.
    return isinstance(column, QueryableAttribute) and bool(column.property.columns[0].nullable)


def make_cursor(page: PageRequest, sort: str, *values: Any) -> str:
    """Leads to what follows an item that has these values."""
    written = [value.isoformat() if isinstance(value, datetime) else value for value in values]
    return base64.urlsafe_b64encode(json.dumps([page.scope, sort, *written]).encode()).decode()


def _decode(page: PageRequest, sort: str, column: Ordered, key: QueryableAttribute[Any]) -> tuple[Any, Any]:
    """Sort value and key of the last row on the previous page."""

    def read(value: Any, last_key: Any) -> tuple[Any, Any]:
        is_null = value is None and _is_nullable(column)
        return None if is_null else _read(value, column), _read(last_key, key)

    return read_cursor(page, sort, read)


def read_cursor(page: PageRequest, sort: str, read: Callable[..., Item]) -> Item:
    """What `read` makes of the values of a cursor. Anybody can write one: it raises ValueError or TypeError.

    Raises InvalidError (400) for a cursor that was made with another sort or other filters, or by nobody.
    """
    try:
        scope, made_with, *values = json.loads(base64.urlsafe_b64decode((page.cursor or "").encode()))
        if (scope, made_with) != (page.scope, sort):
            raise InvalidError(
                "cursor-mismatch",
                "It was made with another sort or other filters, or for another list: what follows it there "
                "says nothing about what follows it here.",
            )
        return read(*values)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidError("invalid-cursor", f"{page.cursor!r} cannot be read.") from error


def _read(value: Any, column: Ordered) -> Any:
    """A value of a column that its database can take. Raises ValueError."""
    for problem in unusable_values(value, "the cursor"):
        raise ValueError(problem)
    stored = column.type.impl_instance if isinstance(column.type, TypeDecorator) else column.type
    kind = stored.python_type
    read = TypeAdapter(kind).validate_python(value, strict=kind is not datetime)
    return to_utc(read) if isinstance(read, datetime) else read


Since = Annotated[UtcTime | None, Query(description="Only items of this time or later are listed.")]
Until = Annotated[UtcTime | None, Query(description="Only items before this time are listed.")]
Search = Annotated[
    str | None,
    Query(max_length=200, description="Only items are listed whose name contains this, in any case."),
]
