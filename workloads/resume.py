"""Saves and resumes within one job, where pods share no volume: trains twice, and the second training loads.

python -m workloads.resume --program workloads.gpt2 --earlier '["--save", "@RUN_DIR@/a"]' --args --load @RUN_DIR@/a

Every rank runs the earlier training as a process of its own, and when that has ended becomes the later one. In both
sets of arguments @RUN_DIR@ is a directory of this job on this node. The records that count are the later training's;
the earlier one speaks under the run id with `-earlier` behind it. Without --earlier only @RUN_DIR@ is filled in.

Under torchrun too the processes of either training meet in that directory: from the agent's store, the same for both,
the later one would read addresses of the earlier.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

PLACE = "@RUN_DIR@"
_USAGE = "usage: workloads.resume [--device D] --program MODULE [--earlier JSON-LIST] --args ARGUMENTS…"


def main() -> None:
    try:
        device, program, earlier, later = parsed(sys.argv[1:])
    except ValueError as error:
        print(f"workloads.resume: error: {error}\n{_USAGE}", file=sys.stderr)
        sys.exit(2)
    place = _place(os.environ)
    ours = place != os.environ.get("ALLRANKS_RUN_DIR") and os.environ.get("LOCAL_RANK", "0") == "0"
    environment = {**os.environ, "ALLRANKS_RUN_DIR": place}
    command = [sys.executable, "-m", program, *device]
    if earlier is not None:
        code = _run([*command, *placed(earlier, place)], earlier_environment(os.environ, place))
        if code:
            print(f"workloads.resume: the training that was to save ended with exit code {code}", file=sys.stderr)
            if ours:
                shutil.rmtree(place, ignore_errors=True)
            sys.exit(code if code > 0 else 128 - code)
    sys.stdout.flush()
    command += placed(later, place)
    if not ours:
        os.execve(sys.executable, command, environment)
    code = _run(command, environment)
    shutil.rmtree(place, ignore_errors=True)  # the launcher removes its own
    sys.exit(code if code >= 0 else 128 - code)


def parsed(argv: list[str]) -> tuple[list[str], str, list[str] | None, list[str]]:
    """The device option, the program, the earlier training's arguments and the later one's. Raises ValueError."""
    if "--args" not in argv:
        raise ValueError("--args is missing")
    at = argv.index("--args")
    own, later = argv[:at], argv[at + 1 :]
    if len(own) % 2:
        raise ValueError(f"{own[-1]} has no value")
    given = dict(zip(own[::2], own[1::2], strict=True))
    device, program, earlier = (given.pop(name, None) for name in ("--device", "--program", "--earlier"))
    if given:
        raise ValueError(f"unknown option {next(iter(given))}")
    if program is None:
        raise ValueError("--program is missing")
    first = None if earlier is None else json.loads(earlier)
    if first is not None and not (isinstance(first, list) and all(isinstance(part, str) for part in first)):
        raise ValueError(f"--earlier is a JSON list of strings, not {earlier}")
    return (["--device", device] if device else []), program, first, later


def placed(arguments: list[str], place: str) -> list[str]:
    return [argument.replace(PLACE, place) for argument in arguments]


def earlier_environment(environ: Mapping[str, str], place: str) -> dict[str, str]:
    """A run of its own: another id and another meeting place, so that the two never meet."""
    directory = Path(place) / "earlier"
    directory.mkdir(mode=0o700, exist_ok=True)
    run_id = f"{environ.get('TORCHELASTIC_RUN_ID', 'direct')}-earlier"
    return {**environ, "TORCHELASTIC_RUN_ID": run_id, "ALLRANKS_RUN_DIR": str(directory)}


def _place(environ: Mapping[str, str]) -> str:
    """The launcher's directory for this run; under other launchers one that the run id and the port name."""
    if "ALLRANKS_RUN_DIR" in environ:
        return environ["ALLRANKS_RUN_DIR"]
    name = f"allranks-{environ.get('TORCHELASTIC_RUN_ID', os.getpid())}-{environ.get('MASTER_PORT', 0)}"
    directory = Path(tempfile.gettempdir()) / name.replace("/", "_")
    directory.mkdir(mode=0o700, exist_ok=True)
    return str(directory)


def _run(command: list[str], environment: dict[str, str]) -> int:
    """The child's exit code, negative for a signal. SIGTERM goes on to the child, whose stacks explain a hang."""
    child = subprocess.Popen(command, env=environment)
    signal.signal(signal.SIGTERM, lambda number, frame: child.send_signal(number))
    code = child.wait()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return code


if __name__ == "__main__":
    main()
