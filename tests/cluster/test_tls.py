"""The client over TLS, as every real cluster is served."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import ssl
import threading
import warnings
from contextlib import suppress
from pathlib import Path

from allranks.cluster.choose import Choice, Kind
from allranks.cluster.client import Api

PEM = Path(__file__).with_name("localhost.pem")  # key and certificate for 127.0.0.1, of no use elsewhere
VERSION = b'{"gitVersion": "v1.36.0"}'


def serve(listener: socket.socket, over: threading.Event) -> None:
    """Answers /version, and anything else by a stream without an end; what the client says then is not read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(PEM)

    def answer(raw: socket.socket) -> None:
        with suppress(OSError), context.wrap_socket(raw, server_side=True, suppress_ragged_eofs=False) as connection:
            while asked := connection.recv(65536):
                if asked.startswith(b"GET /version"):
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(VERSION), VERSION))
                else:
                    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
                    over.wait(60)

    with suppress(OSError):
        while True:
            threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()


def test_a_stream_that_is_left_leaves_no_transport_behind(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        over = threading.Event()
        threading.Thread(target=serve, args=(listener, over), daemon=True).start()
        cluster = {"server": f"https://127.0.0.1:{listener.getsockname()[1]}", "certificate-authority": str(PEM)}
        config = {
            "clusters": [{"name": "c", "cluster": cluster}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "current-context": "c",
        }
        file = tmp_path / "kubeconfig"
        file.write_text(json.dumps(config))

        async def read() -> bytes:
            choice = Choice(Kind.CONTEXT, (file,), "c")
            async with await Api.connect(choice) as api, api.stream("/log", {}, idle=30) as response:
                return await response.content.readany()

        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            assert asyncio.run(read()) == b"first"
            gc.collect()
            over.set()
        assert [str(each.message) for each in warned] == []
