"""A browser without a screen: reads pages, and sends the forms that they hold."""

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any, Self
from urllib.parse import urljoin

import httpx

from service.auth.principals import SESSION_COOKIE
from service.records.api_keys import Role
from tests.patience import PATIENCE_SECONDS
from tests.service.conftest import PLAIN_HTTP, Running
from tests.service.test_access import sign_in

_VOID = frozenset({"input", "img", "link", "meta", "br", "hr", "path", "rect", "line"})


@dataclass
class PageForm:
    action: str
    method: str
    fields: list[tuple[str, str]] = field(default_factory=list)
    """As the page fills them in; a choice without a default is empty."""
    choices: dict[str, list[str]] = field(default_factory=dict)


class Page(HTMLParser):
    """What a person reads on a page, and what can be clicked there."""

    def __init__(self, answer: httpx.Response) -> None:
        super().__init__()
        self.status = answer.status_code
        self.url = str(answer.url)
        self.path = answer.url.raw_path.decode()
        self.html = answer.text
        self.forms: list[PageForm] = []
        self.links: dict[str, str] = {}
        """Address by words."""
        self.plots: dict[str, dict[str, Any]] = {}
        """What is drawn, by the words of its place: as service.ui.plot writes it."""
        self._text: list[str] = []
        self._link: tuple[str, int] | None = None
        self._area: str | None = None
        self._select = ""
        self._silent = 0
        self.feed(answer.text)
        self.text = " ".join("".join(self._text).split())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        if tag != "wbr":
            self._text.append(" ")
        if "data-plot" in given:
            self.plots[given["aria-label"]] = json.loads(given["data-plot"])
        match tag:
            case "form":
                self.forms.append(PageForm(urljoin(self.url, given.get("action", self.url)), given["method"]))
            case "input" if "name" in given and self.forms:
                if given.get("type") not in ("checkbox", "radio") or "checked" in given:
                    self._fill(given["name"], given.get("value", ""))
                if given.get("type") in ("checkbox", "radio"):
                    self.forms[-1].choices.setdefault(given["name"], []).append(given.get("value", "on"))
            case "textarea":
                self._area = given["name"]
                self._fill(given["name"], "")
            case "select":
                self._select = given["name"]
                self.forms[-1].choices[self._select] = []
            case "option":
                chosen = self.forms[-1].choices[self._select]
                chosen.append(given.get("value", ""))
                if len(chosen) == 1 or "selected" in given:
                    self.forms[-1].fields = [
                        pair for pair in self.forms[-1].fields if pair[0] != self._select
                    ]
                    self._fill(self._select, given.get("value", ""))
            case "button" if "name" in given:
                self.forms[-1].choices.setdefault(given["name"], []).append(given.get("value", ""))
            case "a":
                self._link = (given.get("href", ""), len(self._text))
            case "script" | "style":
                self._silent += 1

    def handle_endtag(self, tag: str) -> None:
        self._text.append(" ")
        if tag == "a" and self._link is not None:
            href, start = self._link
            self.links[" ".join("".join(self._text[start:]).split())] = urljoin(self.url, href)
            self._link = None
        if tag == "textarea":
            self._area = None
        if tag in ("script", "style"):
            self._silent -= 1

    def handle_data(self, data: str) -> None:
        if self._area is not None:
            fields = self.forms[-1].fields
            fields[-1] = (self._area, fields[-1][1] + data)
        elif not self._silent:
            self._text.append(data)

    def _fill(self, name: str, value: str) -> None:
        self.forms[-1].fields.append((name, value))

    def form(self, action: str, **has: str) -> PageForm:
        """The form that posts to a path; if several do, the one with these values."""
        found = [
            form
            for form in self.forms
            if form.action.endswith(action) and all(pair in form.fields for pair in has.items())
        ]
        assert found, f"no form for {action} among {[form.action for form in self.forms]}"
        return found[0]

    def offers(self, action: str) -> bool:
        return any(form.action.endswith(action) for form in self.forms)


class Person:
    """Somebody with a browser and a role."""

    def __init__(self, service: Running, role: Role = Role.ADMIN) -> None:
        cookies = {SESSION_COOKIE: sign_in(service, role)}
        self.http = httpx.Client(
            base_url=service.url,
            cookies=cookies,
            headers={"Origin": service.url},
            follow_redirects=True,
            verify=PLAIN_HTTP,
            timeout=PATIENCE_SECONDS,
        )
        self.page: Page

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def open(self, path: str) -> Page:
        self.page = Page(self.http.get(path))
        return self.page

    def follow(self, words: str) -> Page:
        return self.open(self.page.links[words])

    def send(self, action: str, which: dict[str, str] | None = None, /, **typed: Any) -> Page:
        """Fill in a form of the page and send it; `__` in a field's name stands for a dot.

        which: values by which it is told from other forms with the same action.
        """
        form = self.page.form(action, **(which or {}))
        changed = {name.replace("__", "."): value for name, value in typed.items()}
        names = {name for name, _ in form.fields} | form.choices.keys()
        assert changed.keys() <= names, f"the form has only {sorted(names)}"
        for name, value in changed.items():
            offered = form.choices.get(name)
            values = value if isinstance(value, list) else [value]
            assert offered is None or set(values) <= set(offered), f"{name} offers only {offered}"
        fields = [pair for pair in form.fields if pair[0] not in changed]
        for name, value in changed.items():
            fields += [(name, each) for each in (value if isinstance(value, list) else [value])]
        data: dict[str, list[str]] = {}
        for name, value in fields:
            data.setdefault(name, []).append(value)
        if form.method == "get":
            self.page = Page(self.http.get(form.action, params=data))
        else:
            self.page = Page(self.http.post(form.action, data=data))
        return self.page

    def post(self, path: str, **data: str) -> Page:
        """What no form of the page offers."""
        token = dict(self.page.forms[0].fields).get("csrf_token", "")
        return Page(self.http.post(path, data={"csrf_token": token, **data}))
