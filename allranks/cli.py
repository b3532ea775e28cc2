"""The command line: `allranks COMMAND …`. Each command's code is imported when it is called, and no sooner."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("allranks.commands:run", "deploy a training job on a cluster, follow every rank, judge"),
    "judge": ("allranks.judge:main", "judge logs from anywhere: files, directories, standard input"),
    "replay": ("allranks.commands:replay", "judge a finished run again, from its artefacts, without a cluster"),
    "render": ("allranks.commands:render", "print the Kubernetes objects that a run would apply"),
    "inventory": ("allranks.commands:inventory", "list a cluster's accelerator nodes, ready or not"),
    "compare": ("allranks.compare:main", "compare two trainings, or two directories of them: losses, throughput"),
    "standin": ("allranks.standin.cli:main", "start the one-machine stand-in for a Kubernetes cluster"),
    "clean": ("allranks.commands:clean", "remove what expired or interrupted runs left on a cluster"),
}
"""Name → (module:function that takes the arguments after the name and returns an exit code, help)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the command's exit code; 2 for wrong usage, 130 after Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    names = "\n".join(f"  {name:<11}{text}" for name, (_, text) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="allranks",
        usage="allranks COMMAND [options]",
        description="Proves that an accelerator cluster trains: every rank accounted for, or it is not green.",
        epilog=f"commands:\n{names}\n\nallranks COMMAND --help tells more",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("command", nargs="?", choices=COMMANDS, metavar="COMMAND", help="one of the commands below")
    chosen = parser.parse_args(given[:1])
    if chosen.version:
        print(f"allranks {_version()}")
        return 0
    if chosen.command is None:
        parser.print_help()
        return 2
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # a terminal that cannot show `→` is no reason to lose a verdict
    try:
        return resolve(chosen.command)(given[1:])
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader has gone (head, a closed pager). Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("allranks")
    except PackageNotFoundError:
        return "(from a checkout that is not installed)"


def resolve(command: str) -> Callable[[Sequence[str]], int]:
    """The function behind a command."""
    module, _, function = COMMANDS[command][0].partition(":")
    found: Callable[[Sequence[str]], int] = getattr(importlib.import_module(module), function)
    return found
