"""A credential plugin for the stand-in: gets a token that lives for some seconds, and prints it as an ExecCredential.

Run by clients, by its path: `python -I credential.py KUBECONFIG SECONDS`. It stands alone so that it starts fast;
without `-I` its neighbours would be found in place of the standard library's modules.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path


def main(kubeconfig: str, seconds: str) -> int:
    config = json.loads(Path(kubeconfig).read_text())
    server = config["clusters"][0]["cluster"]["server"]
    body = json.dumps({"seconds": float(seconds)}).encode()
    request = urllib.request.Request(f"{server}/standin/tokens", data=body, method="POST")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=10) as answer:
        status = json.loads(answer.read())
    print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
