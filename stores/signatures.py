"""REST catalogs that want requests signed by AWS's Signature Version 4 (`rest.sigv4-enabled`).

PyIceberg's own signs once what it may send several times, signs a query that is not the one it sends where
this has spaces or empty values, and fails without words where there are no credentials.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

from requests import PreparedRequest, RequestException, Response, Session
from requests.adapters import HTTPAdapter

from stores.aws import CredentialsError, Identity

_MASK = "***"
_REFUSALS = (
    (
        "Signature expired|not yet current|RequestExpired|RequestTimeTooSkewed",
        "The catalog finds that the time of the signature is not now",
        "Set the clock of this machine right.",
    ),
    (
        "ExpiredToken|token included in the request is expired",
        "The credentials by which requests are signed have expired",
        "Renew `client.access-key-id`, `client.secret-access-key` and `client.session-token` together, or "
        "let them come from a role, which is renewed by itself.",
    ),
    (
        "UnrecognizedClient|InvalidClientTokenId|InvalidAccessKeyId|token included in the request is invalid",
        "The catalog does not know the key by which requests are signed",
        "Check `client.access-key-id`, and `client.session-token`, without which a session's key is none.",
    ),
    (
        "Credential should be scoped",
        "The catalog wants requests to be signed for another region or service",
        "Set `rest.signing-region`, and `rest.signing-name`: glue for AWS Glue, s3tables for S3 Tables.",
    ),
    (
        "signature we calculated does not match|SignatureDoesNotMatch|InvalidSignature|ContentSHA256Mismatch",
        "The catalog finds the signature of the request wrong",
        "Check `client.secret-access-key`. If it is right, something between here and the catalog changes "
        "requests, such as a proxy: give the catalog's own address as `uri`.",
    ),
    (
        "Missing Authentication Token|MissingAuthenticationToken",
        "The catalog wants requests to be signed",
        "Set `rest.sigv4-enabled`, `rest.signing-name` (glue, s3tables) and `rest.signing-region`.",
    ),
)
"""What AWS says, or its name of it; in words; what to do."""


class CannotSignError(RequestException):
    """A request was not sent, since it could not be signed; a retry can help."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(f"{detail} {remedy}")
        self.detail, self.remedy = detail, remedy


def refusal_of(said: str) -> tuple[str, str] | None:
    """What it means, and what to do, if that is how AWS refuses a signature."""
    return next(((words, remedy) for names, words, remedy in _REFUSALS if re.search(names, said)), None)


def sign_requests(session: Session, uris: Iterable[str], properties: Mapping[str, Any]) -> None:
    """Has what a session sends to the hosts of `uris` signed. properties: of the record, secrets resolved."""
    for uri in uris:
        parts = urlsplit(uri)
        session.mount(f"{parts.scheme}://{parts.netloc}/", _SigningAdapter(properties))


class _SigningAdapter(HTTPAdapter):
    """Signs whenever it sends, and sends once: whoever asks knows whether and how often to ask again."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        super().__init__()
        self._identity = Identity.of(properties, "rest")
        self._service = properties.get("rest.signing-name") or "execute-api"
        self._region = properties.get("rest.signing-region")

    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        token = self._sign(request)
        answer = super().send(request, *args, **options)
        if token and not answer.ok:
            # It may repeat what was signed.
            answer._content = answer.content.replace(token.encode(), _MASK.encode())
        return answer

    def _sign(self, request: PreparedRequest) -> str:
        """The token of the session, or nothing. Raises CannotSignError."""
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest

        self._region = self._region or self._identity.region_of_machine()
        if not self._region:
            raise CannotSignError(
                "Nothing says for which region of AWS requests to the catalog are to be signed.",
                "Set `rest.signing-region` in the record, such as eu-central-1.",
            )
        try:
            keys = self._identity.keys()
        except CredentialsError as error:
            raise CannotSignError(
                f"Requests to the catalog can't be signed. {error.detail}", error.remedy
            ) from None
        request.url = _plainly_encoded(str(request.url))
        headers = request.headers
        headers.pop("Connection", None)  # it is set anew when the request is sent
        if (other := headers.pop("Authorization", None)) is not None:
            headers["Original-Authorization"] = other  # as Iceberg's Java has it
        given: Any = request.body or b""
        body: bytes = given.encode() if isinstance(given, str) else given
        headers["x-amz-content-sha256"] = sha256(body).hexdigest()
        signed = AWSRequest(request.method, request.url, dict(headers), body)
        SigV4Auth(keys, self._service, self._region).add_auth(signed)
        headers.update(dict(signed.headers.items()))
        return keys.token or ""


def _plainly_encoded(url: str) -> str:
    """With a query that all programs read alike, so that it is signed as it is sent: a space is no plus."""
    parts = urlsplit(url)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    encoded = "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in pairs)
    return urlunsplit(parts._replace(query=encoded))
