"""What the user asked for, from the command line to one checked value. Pure: nothing here touches the machine.

Whatever the launcher does not do it refuses by name; no option is accepted and then ignored.
"""

from __future__ import annotations

import os
import signal
import sys

from workloads.launch.options import CommandLine, UsageError, help_text, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEFAULT_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
DEFAULT_PORTS = {"static": 29500, "c10d": 29400}
NUMA_MODES = ("node", "socket", "exclusive", "core-complex")
OUT, ERR = 1, 2

_RUN_PATH = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


class Launch:
    """A checked request. Times are in seconds."""

    nodes: int
    processes_per_node: int | str
    """A number, or `auto`, `gpu`, `cpu`: devices.count() makes it a number."""
    node_rank: int
    run_id: str | None
    """None: to be generated (one node)."""
    master_addr: str
    master_port: int | None
    """None: a free one (one node)."""
    role: str
    max_restarts: int
    command: list[str]
    """`${local_rank}` in an argument is replaced, as by torchrun."""
    log_dir: str | None
    redirects: dict[int | None, int]
    """OUT and ERR bits by local rank; under None, those of the ranks not listed."""
    tee: dict[int | None, int]
    shown: frozenset[int] | None
    """Local ranks whose lines reach the console; None: all."""
    prefix: str
    numa_binding: str | None
    virtual_local_rank: bool
    signals: tuple[int, ...]
    shutdown_timeout: float
    rdzv_timeout: float
    early_exit_notice: float

    @property
    def several_nodes(self) -> bool:
        return self.nodes > 1


class HelpAsked(Exception):
    """--help was typed; the message is the help text."""


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Launch:
    """Raises UsageError (exit code 2), or HelpAsked."""
    line = read(argv, environ)
    if line.help:
        raise HelpAsked(help_text())
    _refuse(line)
    launch = Launch()
    launch.nodes = _nodes(line.text("nnodes") or "1")
    launch.processes_per_node = _processes(line.text("nproc-per-node") or "1")
    conf = _rdzv_conf(line.text("rdzv-conf") or "")
    launch.rdzv_timeout = _seconds(line, "rdzv-timeout", conf.get("timeout", "600"))
    launch.node_rank = _node_rank(launch, line, conf, environ)
    launch.run_id = _run_id(launch, line)
    _address(launch, line)
    launch.role = line.text("role") or "default"
    launch.max_restarts = _max_restarts(launch, line)
    launch.command = _command(line, environ)
    _output(launch, line, environ)
    launch.numa_binding = line.text("numa-binding")
    if launch.numa_binding not in (None, *NUMA_MODES):
        raise UsageError(f"--numa-binding {launch.numa_binding}: one of {', '.join(NUMA_MODES)}")
    launch.virtual_local_rank = line.switch("virtual-local-rank")
    launch.signals = _signals(line.text("signals-to-handle") or DEFAULT_SIGNALS)
    default = environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "20")
    launch.shutdown_timeout = _seconds(line, "shutdown-timeout", default)
    launch.early_exit_notice = _seconds(line, "early-exit-notice", "60")
    _seconds(line, "monitor-interval", "0.1")
    return launch


def _refuse(line: CommandLine) -> None:
    for name, allowed, instead in (
        ("start-method", "spawn", "every rank is a program of its own, started afresh"),
        ("event-log-handler", "null", "the termination log and the ranks' records say what happened"),
        ("logs-specs", None, "--log-dir, --redirects and --tee say where output goes"),
        ("duplicate-stdout-filters", None, "use --log-dir and search the files"),
        ("duplicate-stderr-filters", None, "use --log-dir and search the files"),
    ):
        value = line.text(name)
        if value and value != allowed:
            raise UsageError(f"--{name} {value} is not supported by this launcher: {instead}")
    backend = line.text("rdzv-backend")
    if backend and backend not in DEFAULT_PORTS:
        raise UsageError(f"--rdzv-backend {backend} is not supported by this launcher: use static or c10d")


def _whole(name: str, text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise UsageError(f"--{name} {text}: not a whole number") from None
    if value < least:
        raise UsageError(f"--{name} {text}: at least {least}")
    return value


def _seconds(line: CommandLine, name: str, default: str) -> float:
    text = line.text(name) or default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise UsageError(f"--{name} {text}: not a number of seconds")
    return value


def _nodes(text: str) -> int:
    least, colon, most = text.partition(":")
    if colon and least != most:
        raise UsageError(
            f"--nnodes {text}: elastic node counts are not supported by this launcher; give one number, "
            "the world size of a run is fixed"
        )
    return _whole("nnodes", least, 1)


def _processes(text: str) -> int | str:
    if text in ("auto", "gpu", "cpu"):
        return text
    if text == "xpu":
        raise UsageError("--nproc-per-node xpu is not supported by this launcher: give the number of processes")
    try:
        int(text)
    except ValueError:
        raise UsageError(f"--nproc-per-node {text}: a number, auto, gpu or cpu") from None
    return _whole("nproc-per-node", text, 1)


def _rdzv_conf(text: str) -> dict[str, str]:
    conf: dict[str, str] = {}
    for pair in filter(None, text.strip().split(",")):
        key, _, value = pair.partition("=")
        key = {"join_timeout": "timeout"}.get(key.strip(), key.strip())
        if key not in ("timeout", "rank"):
            raise UsageError(f"--rdzv-conf {pair} is not supported by this launcher: timeout, join_timeout, rank are")
        conf[key] = value.strip()
    return conf


def _node_rank(launch: Launch, line: CommandLine, conf: Mapping[str, str], environ: Mapping[str, str]) -> int:
    text = line.text("node-rank") or conf.get("rank")
    if text is None and launch.several_nodes:
        text = environ.get("JOB_COMPLETION_INDEX")
        if text is None:
            raise UsageError(
                f"--node-rank is required with --nnodes {launch.nodes}: nothing else tells this node which one it is "
                "(in a Kubernetes Indexed Job $JOB_COMPLETION_INDEX does)"
            )
    rank = _whole("node-rank", text or "0", 0)
    if rank >= launch.nodes:
        raise UsageError(f"--node-rank {rank}: with --nnodes {launch.nodes} it is 0 … {launch.nodes - 1}")
    return rank


def _run_id(launch: Launch, line: CommandLine) -> str | None:
    run_id = line.text("rdzv-id")
    if run_id in (None, "", "none"):
        if launch.several_nodes:
            raise UsageError(
                f"--rdzv-id is required with --nnodes {launch.nodes}: an id made up on each node could not agree "
                "across nodes; give the same one everywhere, and a new one for every run"
            )
        return None
    return run_id


def _address(launch: Launch, line: CommandLine) -> None:
    host, port = _endpoint(line)
    if line.switch("standalone"):
        if launch.several_nodes:
            raise UsageError(f"--standalone is for one node, not for --nnodes {launch.nodes}")
        host, port = None, None
    for name, other in (("master-addr", host), ("master-port", port)):
        typed = line.text(name)
        if typed and other and typed != str(other) and not line.switch("standalone"):
            raise UsageError(f"--{name} {typed} contradicts --rdzv-endpoint {line.text('rdzv-endpoint')}")
    if not line.switch("standalone"):
        host = host or line.text("master-addr")
        port = port or (_whole("master-port", text, 0) if (text := line.text("master-port")) else None)
    local = line.text("local-addr")
    if launch.several_nodes:
        if local:
            raise UsageError("--local-addr is not supported with several nodes: --rdzv-endpoint names the master")
        if not host:
            raise UsageError(
                f"--rdzv-endpoint HOST:PORT is required with --nnodes {launch.nodes}: the address of node 0, "
                "as every node reaches it"
            )
        port = port or DEFAULT_PORTS[line.text("rdzv-backend") or "static"]
    if port is not None and not 0 <= port <= 65535:
        raise UsageError(f"port {port}: 1 … 65535")
    launch.master_addr = host or local or "127.0.0.1"
    launch.master_port = port or None


def _endpoint(line: CommandLine) -> tuple[str | None, int | None]:
    """HOST, HOST:PORT or [HOST]:PORT; an IPv6 address without brackets has no port."""
    text = (line.text("rdzv-endpoint") or "").strip()
    if not text:
        return None, None
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    else:
        host, port = text, ""
    if not host:
        raise UsageError(f"--rdzv-endpoint {text}: HOST:PORT")
    return host, _whole("rdzv-endpoint", port, 0) if port else None


def _max_restarts(launch: Launch, line: CommandLine) -> int:
    restarts = _whole("max-restarts", line.text("max-restarts") or "0", 0)
    if restarts and launch.several_nodes:
        raise UsageError(
            f"--max-restarts {restarts} is not supported with several nodes: all nodes must start again together, "
            "so attempts belong to whatever started the job"
        )
    return restarts


def _command(line: CommandLine, environ: Mapping[str, str]) -> list[str]:
    if not line.program:
        raise UsageError("no program to run: python -m workloads.launch [options] program [arguments …]")
    program = line.program
    if line.switch("run-path"):
        if not os.path.isabs(program[0]):
            raise UsageError(f"--run-path {program[0]}: give the script's absolute path")
        return [_python(environ), "-u", "-c", _RUN_PATH, *program]
    if line.switch("no-python"):
        if line.switch("module"):
            raise UsageError("--no-python and --module contradict each other")
        return program
    if line.switch("module"):
        return [_python(environ), "-u", "-m", *program]
    if line.separated and _is_executable(program[0], environ):
        return program
    return [_python(environ), "-u", *program]


def _python(environ: Mapping[str, str]) -> str:
    return environ.get("PYTHON_EXEC") or sys.executable


def _is_executable(program: str, environ: Mapping[str, str]) -> bool:
    """After `--` a program may be anything that runs (L1); a Python script still gets its interpreter."""
    if program.endswith(".py"):
        return False
    if "/" in program:
        return os.path.isfile(program) and os.access(program, os.X_OK)
    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    return not os.path.exists(program) and any(os.access(os.path.join(folder, program), os.X_OK) for folder in folders)


def _output(launch: Launch, line: CommandLine, environ: Mapping[str, str]) -> None:
    launch.log_dir = line.text("log-dir") or None
    launch.redirects = _streams("redirects", line.text("redirects") or "0")
    launch.tee = _streams("tee", line.text("tee") or "0")
    wanted = line.text("local-ranks-filter")
    try:
        launch.shown = frozenset(map(int, wanted.split(","))) if wanted else None
    except ValueError:
        raise UsageError(f"--local-ranks-filter {wanted}: local ranks, as in 0,1,2") from None
    prefix = line.text("line-prefix")
    if prefix is None:
        prefix = environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")
    if prefix is None:
        prefix = "[${role_name}${local_rank}]:" if any(launch.tee.values()) else ""
    launch.prefix = prefix


def _streams(name: str, text: str) -> dict[int | None, int]:
    if text in ("0", "1", "2", "3"):
        return {None: int(text)}
    streams: dict[int | None, int] = {None: 0}
    for part in text.split(","):
        rank, _, bits = part.partition(":")
        if bits not in ("0", "1", "2", "3") or not rank.isdigit():
            raise UsageError(f"--{name} {text}: 0, 1, 2 or 3, or per local rank as in 0:1,1:3")
        streams[int(rank)] = int(bits)
    return streams


def _signals(text: str) -> tuple[int, ...]:
    numbers = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        number = getattr(signal, name, None) if name.startswith("SIG") and not name.startswith("SIG_") else None
        if number is None or number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
            raise UsageError(f"--signals-to-handle {name}: not a signal that a process can handle")
        numbers.append(int(number))
    return tuple(numbers)
