"""Who is asking: the stand-in's own secret, and tokens that expire, as those of cloud providers' credential plugins."""

from __future__ import annotations

import hmac
import secrets
import time

from allranks.standin.errors import StatusError
from allranks.standin.objects import timestamp

OPEN_PATHS = ("/healthz", "/readyz", "/livez")


class Tokens:
    """The credentials that the server accepts."""

    def __init__(self) -> None:
        self.secret = secrets.token_urlsafe(24)
        self._issued: dict[str, float] = {}
        """Token → when it ends, in monotonic time."""
        self.issued = 0
        self.refused = 0

    def issue(self, seconds: float) -> dict[str, object]:
        """A new token, in the form of an ExecCredential's status. Times on it are in whole seconds, rounded down."""
        token = secrets.token_urlsafe(24)
        self.issued += 1
        self._issued[token] = time.monotonic() + seconds
        return {"token": token, "expirationTimestamp": timestamp(time.time() + seconds)}

    def revoke(self) -> None:
        """Issued tokens are refused from now on."""
        self._issued.clear()

    def authenticate(self, authorization: str | None, path: str) -> str:
        """The path without the secret prefix. Raises StatusError 401.

        kubectl sends no bearer token over plain HTTP, so the server's URL in the kubeconfig carries the secret as well.
        A client that does send a token must send a right one.
        """
        prefix = f"/t/{self.secret}"
        prefixed = hmac.compare_digest(path[: len(prefix)].encode(), prefix.encode()) and path[len(prefix) :][:1] == "/"
        path = path[len(prefix) :] if prefixed else path
        known = prefixed if authorization is None else self._knows(authorization)
        if not known and path not in OPEN_PATHS:
            self.refused += 1
            raise StatusError(401, "Unauthorized", "Unauthorized")
        return path

    def _knows(self, authorization: str) -> bool:
        scheme, _, token = authorization.partition(" ")
        if scheme != "Bearer":
            return False
        if hmac.compare_digest(token.encode(), self.secret.encode()):
            return True
        return time.monotonic() < self._issued.get(token, 0.0)
