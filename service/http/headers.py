"""What every answer tells the browser, whichever route, middleware or failure it comes from.

Invariant: nothing sent may load from elsewhere, run inline scripts or styles, or be framed.
"""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# Of answers that are no pages.
_NOTHING = "default-src 'none'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
_DEFAULTS = {
    "Content-Security-Policy": _NOTHING,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_STRICT_TRANSPORT = "max-age=31536000"


class SecurityHeaders:
    """Adds what the answer does not say itself; Strict-Transport-Security only over TLS (RFC 6797)."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _DEFAULTS.items():
                    headers.setdefault(name, value)
                if scope["scheme"] == "https":
                    headers["Strict-Transport-Security"] = _STRICT_TRANSPORT
            await send(message)

        await self.app(scope, receive, send_with_headers)
