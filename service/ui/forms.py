"""Forms: what was typed, and what is wrong with which field. Every form of the pages goes this way.

A form that was refused comes back as it was typed, with the error of the service above it and its findings
beside the fields. A denial is no such error: it has a page of its own, and is recorded.

Whatever changes something that is there names the version that its page showed. Who was overtaken sees what
is there now beside what was typed.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self, TypeVar

from fastapi import Depends, Request
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData, ImmutableMultiDict

from service.errors import ForbiddenError, IcestreamError, InvalidError, PreconditionError
from service.http.etags import NOTHING, etag
from service.http.json_values import unusable_values
from service.http.problem_documents import form_error, validation_error
from service.ui.formats import POLICY_SETTINGS

Body = TypeVar("Body", bound=BaseModel)


class Form:
    """Values of the fields by name, and what the service found wrong with them."""

    def __init__(self, values: ImmutableMultiDict[str, Any], error: IcestreamError | None = None) -> None:
        self._values = values
        self.error = error
        self._findings: list[tuple[str, str]] = []
        self._now: Form | None = None

    @classmethod
    def of(cls, **values: str) -> Self:
        """One that nobody has filled in yet; `__` in a name stands for a dot."""
        return cls(ImmutableMultiDict({name.replace("__", "."): text for name, text in values.items()}))

    @property
    def status_code(self) -> int:
        return self.error.status_code if self.error else 200

    @property
    def if_match(self) -> str:
        """The version that the form was made from, as its hidden field says; without one, that of nothing."""
        return etag(int(self["version"])) if self["version"].isdecimal() else NOTHING

    @property
    def version(self) -> str:
        """The version that the next form is made from: of what its page shows."""
        return (self._now or self)["version"]

    def __getitem__(self, name: str) -> str:
        """The text of a field, without spaces around it; empty if it is not there."""
        value = self._values.get(name, "")
        return value.strip() if isinstance(value, str) else ""

    def all(self, name: str) -> list[str]:
        """The values of a field that may be there several times."""
        return [value for value in self._values.getlist(name) if isinstance(value, str)]

    def given(self, name: str) -> str | None:
        """The text of a field; None if it was left empty."""
        return self[name] or None

    def fields(self, prefix: str) -> list[tuple[str, str]]:
        """What follows the prefix in the names of fields, and their texts."""
        return [(name.removeprefix(prefix), self[name]) for name in self._values if name.startswith(prefix)]

    def lines(self, name: str) -> list[str]:
        """The lines of a field that say something."""
        return [line.strip() for line in self[name].splitlines() if line.strip()]

    def listed(self, name: str) -> list[str]:
        """The parts of a field, which are separated by commas or stand on lines of their own."""
        return [part.strip() for part in self[name].replace("\n", ",").split(",") if part.strip()]

    def read(self, model: type[Body], values: Mapping[str, Any]) -> Body:
        """The body of the call that the form stands for. Raises InvalidError."""
        for text in (value for _, value in self._values.multi_items()):
            for problem in unusable_values(text, "a field"):
                raise InvalidError("unusable-value", problem, "Correct it.")
        try:
            return model.model_validate(dict(values), strict=False)
        except ValidationError as error:
            raise validation_error(error, for_people=True) from error

    def refused(self, error: IcestreamError, **fields: str) -> Self:
        """The same with what is wrong. fields: by the slug of an error (`_` for `-`), the field that it is
        about, if the error itself does not say so. Raises a denial."""
        if isinstance(error, ForbiddenError):
            raise error
        findings = error.extra.get("errors", ())
        if error.slug == "validation-error":
            error = form_error(findings, POLICY_SETTINGS)
        form = type(self)(self._values, error)
        form._findings = [(str(one["field"]).removeprefix("body."), str(one["message"])) for one in findings]
        if not form._findings and (field := fields.get(error.slug.replace("-", "_"))):
            form._findings = [(field, error.detail)]
        return form

    def beside(self, now: Self) -> Self:
        """The same beside what is there now if somebody was faster; sent again, it takes its place."""
        if isinstance(self.error, PreconditionError):
            self._now = now
        return self

    def there(self, name: str) -> str | None:
        """What somebody else made of a field, if it is not what was typed."""
        if self._now is None or self._now[name].splitlines() == self[name].splitlines():
            return None
        return self._now[name] or "nothing"

    def wrong(self, name: str) -> str:
        """What is wrong with a field, or with a part of it."""
        about = (text for field, text in self._findings if field == name or field.startswith(f"{name}."))
        return " ".join(text if text.endswith(".") else f"{text}." for text in about)


async def _typed(request: Request) -> Form:
    form: FormData = await request.form()
    return Form(form)


Typed = Annotated[Form, Depends(_typed)]


def see(path: str) -> RedirectResponse:
    """Where a form that was taken leads to."""
    return RedirectResponse(path, 303)
