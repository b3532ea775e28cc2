"""Which cluster is meant (contract 5). Reads the environment and kubeconfig files, and never contacts anything."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from allranks.cluster import ClusterError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Kind(StrEnum):
    STANDIN = "standin"
    CONTEXT = "context"
    IN_CLUSTER = "in-cluster"


@dataclass(frozen=True, slots=True)
class Choice:
    """A cluster to use. `kubeconfig` is None in a cluster, and for a stand-in that is yet to be started."""

    kind: Kind
    kubeconfig: tuple[Path, ...] = ()
    context: str | None = None


def choose(
    cluster: str = "auto",
    kubeconfig: Path | None = None,
    *,
    env: Mapping[str, str] = os.environ,
    home: Path | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> Choice:
    """`auto`, `standin`, or a context's name → the cluster. Raises ClusterError rather than fall back.

    A kubeconfig that is named but missing, unreadable or without a current context is an error: a nightly that lost
    its secret must not turn green on something else.
    """
    if cluster == "standin":
        return Choice(Kind.STANDIN, (kubeconfig,) if kubeconfig else ())
    files, named_by = _kubeconfig_files(kubeconfig, env, home or Path.home())
    if files:
        context = _context(files, named_by, None if cluster == "auto" else cluster)
        return Choice(Kind.CONTEXT, files, context)
    if "KUBECONFIG" in env:
        raise ClusterError(
            f"KUBECONFIG is set but names no file ({env['KUBECONFIG']!r}; was a secret lost?): set it, unset it, "
            "or ask for the stand-in with --cluster standin"
        )
    if cluster != "auto":
        raise ClusterError(f"context {cluster!r} was asked for, but there is no kubeconfig: {_nowhere(home)}")
    if env.get("KUBERNETES_SERVICE_HOST"):
        if not (service_account / "token").is_file():
            raise ClusterError(
                f"this is a pod without a service account token ({service_account}/token) and without a kubeconfig: "
                "give the pod a service account (automountServiceAccountToken) or set KUBECONFIG"
            )
        return Choice(Kind.IN_CLUSTER)
    for variable in ("CI", "BUILD_NUMBER"):
        if env.get(variable):
            raise ClusterError(
                f"no cluster: {_nowhere(home)}, and {variable} is set, where the stand-in is never chosen silently. "
                "Provide the kubeconfig, or ask for the stand-in with --cluster standin"
            )
    return Choice(Kind.STANDIN)


def _nowhere(home: Path | None) -> str:
    return f"KUBECONFIG is not set and {(home or Path('~')) / '.kube' / 'config'} does not exist"


def _kubeconfig_files(given: Path | None, env: Mapping[str, str], home: Path) -> tuple[tuple[Path, ...], str]:
    if given is not None:
        return (given,), "--kubeconfig"
    if named := tuple(Path(part) for part in env.get("KUBECONFIG", "").split(os.pathsep) if part):
        return named, "KUBECONFIG"
    default = home / ".kube" / "config"
    # Not `exists`: a dangling link or an unreadable directory is a lost secret, not an absent one.
    return ((default,), str(default)) if os.path.lexists(default) else ((), "")


def _context(files: tuple[Path, ...], named_by: str, asked: str | None) -> str:
    """The context to use: the one asked for, else the first current context; checked to exist."""
    contexts: dict[str, Any] = {}
    current: str | None = None
    for path in files:
        data = _read(path, named_by)
        current = current or data.get("current-context") or None
        for entry in data.get("contexts") or ():
            if isinstance(entry, dict) and "name" in entry:
                contexts.setdefault(str(entry["name"]), entry)
    where = ", ".join(str(path) for path in files)
    known = ", ".join(sorted(contexts)) or "none"
    if asked is not None and asked not in contexts:
        raise ClusterError(f"{where} has no context {asked!r}; it has: {known}")
    if asked is None and current is None:
        raise ClusterError(
            f"{where} (named by {named_by}) has no current context: name one with --cluster (it has: {known}) "
            "or run kubectl config use-context"
        )
    if asked is None and current not in contexts:
        raise ClusterError(f"{where}: the current context {current!r} is not among its contexts ({known})")
    chosen = asked if asked is not None else current
    assert chosen is not None
    return chosen


def _read(path: Path, named_by: str) -> Mapping[str, Any]:
    import yaml

    by = f" (named by {named_by})" if named_by != str(path) else ""
    try:
        data = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise ClusterError(
            f"kubeconfig {path}{by} does not exist: provide it; no other cluster is used instead"
        ) from None
    except OSError as error:
        raise ClusterError(f"kubeconfig {path}{by} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError):
        # The parser's message quotes the file, which may hold a token.
        raise ClusterError(f"kubeconfig {path}{by} is not valid YAML") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ClusterError(f"kubeconfig {path}{by} is not a kubeconfig: expected a mapping at the top")
    return data
