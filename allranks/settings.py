"""What the user asked for, in one frozen value. Options of pytest and of the command line both end up here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from allranks.plan import Accelerator
from allranks.references import References


@dataclass(frozen=True, slots=True)
class Workload:
    """What to run in the pods."""

    name: str
    """Short name, used in ids and object names: `bert`."""
    module: str
    """Python module run by the launcher: `workloads.bert`."""
    args: tuple[str, ...] = ()
    extra_files: tuple[tuple[str, Path], ...] = ()
    """Further files for the pods: path below the code mount, and the local file."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How and where to run it. Times are in seconds; None means the documented default."""

    accelerator: Accelerator
    cluster: str = "auto"
    """`auto`, `standin`, or the name of a kubeconfig context (contract 5)."""
    kubeconfig: Path | None = None
    nodes: int | None = None
    """None: all nodes of the pool."""
    processes_per_node: int | None = None
    """None: one per device (NVIDIA), per core (Neuron), 2 (CPU)."""
    threads_per_process: int = 1
    instance_type: str | None = None
    node_selector: tuple[tuple[str, str], ...] = ()
    image: str | None = None
    namespace: str | None = None
    """None: a namespace of the run's own, deleted at the end."""
    launcher: str = "allranks"
    """`allranks` or `torchrun`."""
    artefacts: Path = Path("artefacts")
    """Each run gets a directory of its own below it."""
    keep: str = "never"
    """Whether to leave the objects on the cluster: `never`, `failed`, `all`."""
    deadline: float = 3600.0
    """The whole run, from apply to the last pod's end."""
    schedule_timeout: float = 300.0
    """How long pods may stay unschedulable."""
    pull_timeout: float = 900.0
    start_timeout: float = 600.0
    """From the containers' start to the last rank's first record, and from there to the first step."""
    stall_timeout: float = 300.0
    """No record from any rank for so long is a stall; before the first step `start_timeout`, if that is longer."""
    references: References = field(default_factory=References)
    """What the run's figures are held against."""
    ready_timeout: float = 120.0
    """How long to wait for nodes whose allocatable is not yet uniform."""
    node_timeout: float = 15.0
    """How long a node of the run may be NotReady."""
    attempts: int = 2
    """How often the run is tried when it is the infrastructure that fails."""
    lease_namespace: str | None = "allranks"
    """Where the nodes' leases are, by which runs share a cluster; None: no leases."""
    lease_timeout: float = 3600.0
    """How long to wait for nodes that other runs hold, or for the queue."""
    queue: str | None = None
    """Kueue's LocalQueue that the Job is given to; leases are not used then."""
    provision: bool = False
    """The nodes do not exist yet: a provisioner makes them for the pods."""
    provision_timeout: float = 1200.0
    image_pull_secrets: tuple[str, ...] = ()
    """Secrets of the run's namespace."""
    shared_volume: str | None = None
    """`PVC[:path]` or `hostPath:/path`, mounted at /shared."""
    efa: int | None = None
    """EFA interfaces per pod; None: all of the node's, where the pod takes the whole node."""
    neuron_logical_cores: int | None = None
    """Physical NeuronCores per logical one (NEURON_LOGICAL_NC_CONFIG); None: the runtime's default."""
    install_device_plugins: bool = False
    """Whether to apply manifests/device-plugins before the nodes are counted."""
    log_limit: int = 256 * 2**20
    """Bytes of one container's log that are kept on disk; beyond that only the ranks' records."""
