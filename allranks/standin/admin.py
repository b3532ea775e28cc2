"""What is served under /standin/: faults, tokens, compaction. No part of Kubernetes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

from allranks.standin.api import Api
from allranks.standin.errors import StatusError, bad_request
from allranks.standin.faults import KINDS, Faults
from allranks.standin.tokens import Tokens


class Admin:
    """Answers requests whose path begins with /standin/."""

    def __init__(self, api: Api, faults: Faults, tokens: Tokens) -> None:
        self._faults, self._tokens = faults, tokens
        self._compact = api.compact

    async def answer(self, path: str, request: web.Request) -> web.Response:
        """Raises StatusError for what is not offered."""
        offered: dict[tuple[str, str], Callable[[Any], tuple[Any, int]]] = {
            ("GET", "faults"): lambda _: (self._listing(), 200),
            ("POST", "faults"): lambda body: (self._faults.add(body).to_dict(), 201),
            ("DELETE", "faults"): lambda _: (self._removed(request.query.get("id")), 200),
            ("POST", "tokens"): lambda body: (self._issue(body), 201),
            ("GET", "tokens"): lambda _: ({"issued": self._tokens.issued, "refused": self._tokens.refused}, 200),
            ("DELETE", "tokens"): lambda _: (self._revoked(), 200),
            ("POST", "compact"): lambda _: (self._compacted(), 200),
        }
        action = offered.get((request.method, path.removeprefix("/standin/")))
        if action is None:
            there = ", ".join(f"{method} /standin/{name}" for method, name in offered)
            raise StatusError(404, "NotFound", f"{request.method} {path} is not offered; there are: {there}")
        raw = await request.read()
        body, code = action(json.loads(raw) if raw else None)
        return web.json_response(body, status=code)

    def _listing(self) -> dict[str, Any]:
        return {"faults": self._faults.list(), "kinds": KINDS}

    def _removed(self, number: str | None) -> dict[str, Any]:
        if number and not number.isdigit():
            raise bad_request(f"no such fault: {number}")
        self._faults.remove(int(number) if number else None)
        return self._listing()

    def _issue(self, body: Any) -> dict[str, Any]:
        seconds = body.get("seconds") if isinstance(body, dict) else None
        if not isinstance(seconds, int | float) or seconds <= 0:
            raise bad_request("a token needs `seconds`, how long it is valid")
        return self._tokens.issue(float(seconds))

    def _revoked(self) -> dict[str, Any]:
        self._tokens.revoke()
        return {"revoked": True}

    def _compacted(self) -> dict[str, Any]:
        self._compact()
        return {"compacted": True}
