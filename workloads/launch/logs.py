"""Where each rank's output goes: console, files, both; in torchrun's layout."""

from __future__ import annotations

import os

from workloads.launch.args import ERR, OUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workloads.launch.args import Launch


class Route:
    """One pipe of a rank: which of its descriptors write into it, what file it is kept in, whether people see it."""

    __slots__ = ("bits", "file", "shown")

    def __init__(self, bits: int, file: str | None, shown: bool) -> None:
        self.bits = bits
        self.file = file
        self.shown = shown


def routes(launch: Launch, local_rank: int) -> list[Route]:
    """One pipe for stdout and stderr together, so that their order is kept, unless they are asked for apart."""
    redirected = launch.redirects.get(local_rank, launch.redirects[None])
    teed = launch.tee.get(local_rank, launch.tee[None])
    shown = launch.shown is None or local_rank in launch.shown
    if not redirected | teed:
        return [Route(OUT | ERR, "output.log" if launch.log_dir else None, shown)]
    return [
        Route(
            bit,
            name if launch.log_dir or (redirected | teed) & bit else None,
            shown and bool(teed & bit or not redirected & bit),
        )
        for bit, name in ((OUT, "stdout.log"), (ERR, "stderr.log"))
    ]


class LogFolder:
    """DIR/<run id>_<random>/attempt_<n>/<local rank>/, made when the first file is opened."""

    def __init__(self, base: str | None, run_id: str, temporary: str) -> None:
        self._base = base or os.path.join(temporary, f"allranks-logs-{os.urandom(4).hex()}")
        self._run = "".join(c if c.isalnum() or c in "-_." else "_" for c in run_id) + "_" + os.urandom(4).hex()
        self.path = os.path.join(self._base, self._run)
        self.used = False

    def open(self, attempt: int, local_rank: int, name: str) -> int:
        """Raises OSError."""
        self.used = True
        folder = os.path.join(self.path, f"attempt_{attempt}", str(local_rank))
        os.makedirs(folder, exist_ok=True)
        return os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
