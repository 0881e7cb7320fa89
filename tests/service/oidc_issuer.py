"""An OpenID Connect issuer on loopback, with real keys and tokens; it breaks when a test says so."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

AUDIENCE = "icestream"
SigningKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


class Issuer:
    """Publishes `keys`, and `document` for discovery; both may be changed while it runs."""

    def __init__(self) -> None:
        self.keys: dict[str, SigningKey] = {"rsa-1": _first_key()}
        self.published: list[dict[str, Any]] | None = None
        """Instead of the public halves of `keys`."""
        self.is_down = False
        self.asked: list[str] = []
        """The paths that were asked for."""
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked.append(self.path)
                answer = None if issuer.is_down else issuer.answer(self.path)
                content = json.dumps(answer).encode()
                self.send_response(503 if issuer.is_down else 404 if answer is None else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/realms/lake"
        self.document = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}

    def answer(self, path: str) -> Any:
        if path == "/realms/lake/.well-known/openid-configuration":
            return self.document
        if path == "/realms/lake/keys":
            return {"keys": self.jwks() if self.published is None else self.published}
        return None

    def jwks(self) -> list[dict[str, Any]]:
        return [public_jwk(key) | {"kid": key_id, "use": "sig"} for key_id, key in self.keys.items()]

    def token(
        self,
        *,
        key_id: str | None = "rsa-1",
        key: SigningKey | str | None = None,
        algorithm: str = "RS256",
        without: tuple[str, ...] = (),
        **claims: Any,
    ) -> str:
        """A valid token of an operator, but for what is given."""
        now = time.time()
        everything = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "user-17",
            "email": "user-17@example.org",
            "iat": now,
            "nbf": now,
            "exp": now + 300,
            "roles": ["data-team"],
        } | claims
        signing_key = key if key is not None else self.keys[key_id or "rsa-1"]
        return jwt.encode(
            {name: value for name, value in everything.items() if name not in without},
            signing_key,
            algorithm,
            headers={"kid": key_id} if key_id else None,
        )


def new_rsa_key(bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, bits)


def new_ec_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def public_jwk(key: SigningKey) -> dict[str, Any]:
    if isinstance(key, rsa.RSAPrivateKey):
        return dict(RSAAlgorithm.to_jwk(key.public_key(), as_dict=True))
    return dict(ECAlgorithm.to_jwk(key.public_key(), as_dict=True))


@cache
def _first_key() -> rsa.RSAPrivateKey:
    """Of every issuer: to make one takes longer than most tests."""
    return new_rsa_key()


@contextmanager
def running_issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    thread = threading.Thread(target=issuer.server.serve_forever, args=[0.02])
    thread.start()
    yield issuer
    issuer.server.shutdown()
    thread.join()
    issuer.server.server_close()
