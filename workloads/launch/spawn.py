"""Starting processes that cannot outlive the launcher.

fork and exec by hand, because each child has things to do in between: lead its own session and process group, ask the
kernel to be killed when the launcher dies (Linux), and tell the guard that it exists.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
CANNOT_EXECUTE, NOT_FOUND = 126, 127


def _load_prctl() -> Callable[..., int] | None:
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
        prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
    except (ImportError, OSError, AttributeError):  # a Python built without libffi, a libc without prctl
        return None
    return prctl


_prctl = _load_prctl()


def become_subreaper() -> bool:
    """Orphans below us become our children, as they do for PID 1, so that nothing escapes. Linux only."""
    return _prctl is not None and _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def settle_descriptors() -> None:
    """0, 1 and 2 exist, and what else was left open by whoever started us is not for the ranks."""
    while (fd := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(fd, True)
    os.close(fd)
    for fd in _open_descriptors():
        if fd > 2:
            os.set_inheritable(fd, False)


def _open_descriptors() -> list[int]:
    try:
        listed = [int(name) for name in os.listdir("/dev/fd") if name.isdigit()]
    except OSError:
        listed = list(range(256))
    return [fd for fd in listed if _is_open(fd)]


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdout: int,
    stderr: int,
    cpus: Iterable[int] | None = None,
    before: Callable[[int], None] = lambda pid: None,
) -> int:
    """The pid of a new process, leader of its own session and process group; raises OSError when fork fails.

    A program that cannot be executed says so on its stderr and exits 127 (not found) or 126, as under a shell.
    `before` runs in the child, with its pid.
    """

    def run() -> None:
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        if cpus is not None:
            os.sched_setaffinity(0, cpus)
        before(os.getpid())
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        try:
            os.execvpe(command[0], list(command), dict(environment))
        except OSError as error:
            os.write(2, f"allranks: cannot execute {command[0]}: {error.strerror}\n".encode(errors="surrogateescape"))
            os._exit(NOT_FOUND if isinstance(error, (FileNotFoundError, NotADirectoryError)) else CANNOT_EXECUTE)

    return _fork(run)


def start_helper(main: Callable[[], None], keep: Iterable[int], *, survives: bool = False) -> int:
    """A process of our own code with no descriptors but `keep`; raises OSError when fork fails.

    It dies with the launcher unless it `survives`.
    """

    def run() -> None:
        kept = set(keep)
        for fd in _open_descriptors():
            if fd not in kept:
                os.close(fd)
        while os.open(os.devnull, os.O_RDWR) < 2:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        main()

    return _fork(run, survives)


def _fork(run: Callable[[], None], survives: bool = False) -> int:
    parent = os.getpid()
    # Until the child has the default handlers back, a signal meant for it must wait.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid:
            return pid
        try:
            _restore_signals()
            os.setsid()
            if _prctl is not None and not survives:
                _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() == parent:  # otherwise it died before the kernel was asked
                run()
                os._exit(0)
        except BaseException as error:
            os.write(2, f"allranks: cannot start a process: {error!r}\n".encode(errors="replace"))
        finally:
            os._exit(CANNOT_EXECUTE)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _restore_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    # Python ignores these for itself; programs expect the default.
    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)


def signal_group(pid: int, number: int) -> bool:
    """Whether there was still somebody in the process group that `pid` leads."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
        return False
    return True


def children() -> list[int]:
    """Our children, adopted orphans included; empty where the system does not list them."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []
