"""The launcher's options as a table, and the reading of a command line against it.

Not argparse: its import alone would double the launcher's start-up, and the rules here are short. What is read is
what torchrun reads: dashes or underscores, unambiguous abbreviations, `--flag value` or `--flag=value`, and PET_*
variables as defaults.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class UsageError(Exception):
    """A command line that cannot be run; the message says which word is wrong and what would be right. Exit code 2."""


class Option:
    """One option: `metavar` is None for a switch; `env` says whether PET_<NAME> gives its default."""

    __slots__ = ("env", "help", "metavar", "name", "short")

    def __init__(self, name: str, metavar: str | None, help: str, *, short: str = "", env: bool = True) -> None:
        self.name = name
        self.metavar = metavar
        self.help = help
        self.short = short
        self.env = env

    @property
    def variable(self) -> str:
        return "PET_" + self.name.upper().replace("-", "_")


TORCHRUN_OPTIONS = (
    Option("nnodes", "N", "number of nodes (default 1)"),
    Option("nproc-per-node", "P", "processes per node: a number, auto, gpu or cpu (default 1)"),
    Option("rdzv-backend", "NAME", "static or c10d; both mean the same here: the ranks meet at the master"),
    Option("rdzv-endpoint", "HOST[:PORT]", "the master's address, on which rank 0 listens"),
    Option("rdzv-id", "ID", "the run id; required for several nodes, generated for one"),
    Option("rdzv-conf", "K=V,…", "timeout and join_timeout (seconds) set --rdzv-timeout; rank sets --node-rank"),
    Option("standalone", None, "one node, a free port, whatever --rdzv-endpoint says"),
    Option("max-restarts", "N", "how often the group is started again after a failure; one node only (default 0)"),
    Option("monitor-interval", "S", "accepted; a rank's end is noticed at once, nothing is polled"),
    Option("start-method", "NAME", "spawn only"),
    Option("event-log-handler", "NAME", "null only"),
    Option("role", "NAME", "what ROLE_NAME says (default: default)"),
    Option("module", None, "the program is a Python module, as in python -m", short="m"),
    Option("no-python", None, "execute the program itself, without Python in front"),
    Option("run-path", None, "run the script with runpy.run_path"),
    Option(
        "log-dir",
        "DIR",
        "keep what the ranks print in files as well: DIR/<run id>_…/attempt_<n>/<local rank>/",
    ),
    Option("redirects", "STD", "streams that go to files only: 0, 1 (out), 2 (err), 3, or 0:1,1:3 per rank", short="r"),
    Option("tee", "STD", "streams that go to files and to the console (see --redirects)", short="t"),
    Option("local-ranks-filter", "R,R,…", "show only these local ranks on the console"),
    Option("duplicate-stdout-filters", "W,W,…", "not done here"),
    Option("duplicate-stderr-filters", "W,W,…", "not done here"),
    Option("node-rank", "R", "this node's rank (default: $JOB_COMPLETION_INDEX)"),
    Option("master-addr", "HOST", "as the host of --rdzv-endpoint"),
    Option("master-port", "PORT", "as the port of --rdzv-endpoint"),
    Option("local-addr", "HOST", "on one node, what MASTER_ADDR says"),
    Option("logs-specs", "NAME", "not done here", env=False),
    Option("numa-binding", "MODE", "node, socket, exclusive or core-complex: run each rank near its GPU", env=False),
    Option("signals-to-handle", "SIG,SIG,…", "signals that end the run (default SIGTERM,SIGINT,SIGHUP,SIGQUIT)"),
    Option("shutdown-timeout", "S", "from SIGTERM to SIGKILL (default $TORCH_ELASTIC_SHUTDOWN_TIMEOUT or 20)"),
    Option("virtual-local-rank", None, "LOCAL_RANK=0 for all, and CUDA_VISIBLE_DEVICES shows each its own GPU"),
)

OWN_OPTIONS = (
    Option(
        "rdzv-timeout",
        "S",
        "how long the master's name may take to resolve, its port to answer; 0: do not look (default 600)",
    ),
    Option("line-prefix", "TEXT", "put before every line; ${role_name}, ${rank} and ${local_rank} are replaced"),
    Option("early-exit-notice", "S", "say so when a rank has exited 0 for so long while others run (default 60)"),
)

OPTIONS = {option.name: option for option in TORCHRUN_OPTIONS + OWN_OPTIONS}
_SHORT = {option.short: option for option in OPTIONS.values() if option.short}


def help_text() -> str:
    lines = [
        "usage: python -m workloads.launch [options] program [arguments …]",
        "       python -m workloads.launch [options] -- program [arguments …]",
        "",
        "Starts the processes of a distributed program on this node and answers for them.",
        "",
        "as torchrun (dashes or underscores; PET_<NAME> gives a default):",
        *map(_help_line, TORCHRUN_OPTIONS),
        "",
        "this launcher's own:",
        *map(_help_line, OWN_OPTIONS),
    ]
    return "\n".join(lines) + "\n"


def _help_line(option: Option) -> str:
    short = f"-{option.short}, " if option.short else ""
    left = f"  {short}--{option.name}{' ' + option.metavar if option.metavar else ''}"
    return f"{left:<40} {option.help}"


class CommandLine:
    """What was typed: option values by name (absent when neither typed nor in the environment), and the program."""

    __slots__ = ("help", "program", "separated", "values")

    def __init__(self) -> None:
        self.values: dict[str, str | bool] = {}
        self.program: list[str] = []
        self.separated = False
        """Whether `--` stood before the program."""
        self.help = False

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        return value if isinstance(value, str) else None

    def switch(self, name: str) -> bool:
        return bool(self.values.get(name))


def read(argv: Sequence[str], environ: Mapping[str, str]) -> CommandLine:
    """Raises UsageError for an unknown or ambiguous option, a missing value, or a PET_* switch that is not 0 or 1."""
    line = CommandLine()
    _read_environment(line, environ)
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "--":
            line.separated = True
            break
        if word in ("-h", "--help"):
            line.help = True
            return line
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            _take(line, _find(name), word, value if equals else None, words)
        elif word.startswith("-") and len(word) > 1:
            option = _SHORT.get(word[1])
            if option is None or (option.metavar is None and len(word) > 2):
                raise UsageError(f"unknown option {word}; --help lists the options")
            _take(line, option, word, word[2:].removeprefix("=") if len(word) > 2 else None, words)
        else:
            words.insert(0, word)
            break
    line.program = words
    return line


def _read_environment(line: CommandLine, environ: Mapping[str, str]) -> None:
    for option in OPTIONS.values():
        value = environ.get(option.variable) if option.env else None
        if value is None:
            continue
        if option.metavar is not None:
            line.values[option.name] = value
        elif value.strip().lstrip("-").isdigit():
            line.values[option.name] = int(value) != 0
        else:
            raise UsageError(f"{option.variable}={value}: a switch is 0 or 1")


def _find(name: str) -> Option:
    dashed = name.replace("_", "-")
    if dashed in OPTIONS:
        return OPTIONS[dashed]
    begun = [candidate for candidate in OPTIONS if dashed and candidate.startswith(dashed)]
    if len(begun) == 1:
        return OPTIONS[begun[0]]
    if begun:
        raise UsageError(f"--{name} could be any of {', '.join('--' + candidate for candidate in begun)}")
    raise UsageError(f"unknown option --{name}; --help lists the options")


def _take(line: CommandLine, option: Option, word: str, value: str | None, rest: list[str]) -> None:
    if option.metavar is None:
        if value is not None:
            raise UsageError(f"{word}: --{option.name} is a switch and takes no value")
        line.values[option.name] = True
        return
    if value is None:
        if not rest or rest[0] == "--":
            raise UsageError(f"--{option.name} needs a value: --{option.name} {option.metavar}")
        value = rest.pop(0)
    line.values[option.name] = value
