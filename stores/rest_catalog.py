"""REST catalogs, asked at addresses that are allowed and nowhere else, whatever they answer.

PyIceberg goes where names, redirects and a catalog's configuration lead it. Each session of this one is
confined before anything is sent through it, a token's request too; it signs for the host of the record alone,
and every answer is judged before anybody reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import unquote_plus

from pyiceberg.catalog.rest import RestCatalog
from requests import PreparedRequest, Response, Session

from stores.signatures import sign_requests
from trust.rest_answers import RestAnswers
from trust.secrets import OPEN_HEADERS, redacted
from trust.sessions import check_redirect, confine

_HEADER = "header."
_AUTHORIZING = ("authorization", "original-authorization", "x-amz-security-token")


class ConfinedRestCatalog(RestCatalog):
    """Connects to addresses that are allowed, follows no redirect, believes of answers what it may, and
    repeats nothing secret of what it sent.

    given_uri: the record's, at which the catalog tells its configuration, whatever that says. timeout: of
    each request, to connect and for a silence, in seconds.
    """

    timeout: tuple[float, float]

    def __init__(
        self,
        name: str,
        properties: Mapping[str, Any],
        addresses_of: Callable[[str, int | None], list[str]],
        check_hosts: Callable[[Mapping[str, str]], None],
    ) -> None:
        """Asks the catalog for its configuration.

        properties: of the record, secrets resolved. addresses_of: as of `trust.sessions.confine`;
        check_hosts: as of `trust.rest_answers.RestAnswers`. Raises SentElsewhereError, what these two raise,
        and whatever PyIceberg and requests raise.
        """
        self.given_uri = str(properties["uri"])
        self.answers = RestAnswers(properties, check_hosts)
        self._addresses_of = addresses_of
        super().__init__(name, **properties)

    def _config_headers(self, session: Session) -> None:
        # The first that happens to each new session, before a token is fetched through it.
        super()._config_headers(session)
        confine(session, self._addresses_of)
        session.hooks["response"] += [self._take_apart]
        session.request = partial(self._send, session.request)  # type: ignore[method-assign]

    def _init_sigv4(self, session: Session) -> None:
        sign_requests(session, [self.given_uri, self.uri], self.properties)
        confine(session, self._addresses_of)  # the adapter is another one

    def _send(self, send: Callable[..., Response], *args: Any, **options: Any) -> Response:
        """Sends by `send`, which is Session.request."""
        return send(*args, **{"timeout": self.timeout} | options)

    def _take_apart(self, response: Response, *_: Any, **__: Any) -> None:
        """Before anybody reads it, or quotes a refusal, which may repeat what it refuses."""
        request = response.request
        check_redirect(response, partial(self._redacted, request))
        if response.ok and response.content:
            response._content = self.answers.harmless(response.content, self._renewal_url(request))
            response.encoding = "utf-8"
        elif not response.ok:
            said = response.content.decode(errors="replace")
            response._content = self._redacted(request, said).encode()
            response.encoding = "utf-8"

    def _renewal_url(self, request: PreparedRequest) -> Callable[[str], str] | None:  # noqa: ARG002
        """As `RestAnswers.harmless` takes it."""
        return None

    def _redacted(self, request: PreparedRequest, said: str) -> str:
        """A text without what a request holds that is secret, such as a token that was fetched."""
        own = [name for name in self.properties if name.startswith(_HEADER)]
        secret = [name.removeprefix(_HEADER) for name in own if name.lower() not in OPEN_HEADERS]
        sent = {str(request.headers.get(name, "")) for name in (*secret, *_AUTHORIZING)}
        sent |= {value.partition(" ")[2] for value in sent}
        if isinstance(request.body, str):
            _, _, secret_of_client = request.body.partition("client_secret=")
            secret_of_client = secret_of_client.partition("&")[0]
            sent |= {secret_of_client, unquote_plus(secret_of_client)}
        return redacted(said, sent)
