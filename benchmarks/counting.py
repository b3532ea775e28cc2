"""A stand-in that counts the requests it answers.

    python -m benchmarks.counting COUNTS.json [arguments of allranks standin]

At its end it writes how many there were of each method and kind: `GET log`, `GET pods watch`, `POST jobs` …
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from aiohttp import web

from allranks.standin import cli, server


def main(counts: str, *arguments: str) -> int:
    counted: Counter[str] = Counter()

    @web.middleware
    async def count(request: web.Request, handler: Any) -> web.StreamResponse:
        counted[kind(request)] += 1
        response: web.StreamResponse = await handler(request)
        return response

    made = server.Server.application

    def application(self: server.Server) -> web.Application:
        app = made(self)
        app.middlewares.insert(0, count)
        return app

    server.Server.application = application  # type: ignore[method-assign]
    try:
        return cli.main(arguments)
    finally:
        Path(counts).write_text(json.dumps(counted))


def kind(request: web.Request) -> str:
    parts = request.path.strip("/").split("/")
    if parts[-1] == "log":
        return f"{request.method} log" + (" follow" if request.query.get("follow") == "true" else "")
    if "namespaces" in parts[:-2]:
        below = parts[parts.index("namespaces") + 2 :]
        what = below[0] + (" by name" if len(below) > 1 else "")
    else:
        what = parts[-1] if parts[-2:-1] != ["namespaces"] else "namespaces by name"
    return f"{request.method} {what}" + (" watch" if request.query.get("watch") == "true" else "")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
