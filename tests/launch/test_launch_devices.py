"""What is on a machine and near what, from trees that look like /dev, /proc and /sys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workloads.launch import devices, numa
from workloads.launch.options import UsageError


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def say(root: Path, **files: object) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def test_a_number_is_itself_and_cpu_is_what_this_process_may_use(tmp_path: Path) -> None:
    assert devices.count(3, {}, str(tmp_path)) == 3
    assert devices.count("cpu", {}, str(tmp_path)) == len(os.sched_getaffinity(0))


def test_gpus_are_the_device_files_of_this_container(tmp_path: Path) -> None:
    touch(tmp_path, "dev/nvidia3", "dev/nvidia5", "dev/nvidiactl", "dev/nvidia-uvm", "dev/null")
    assert devices.count("gpu", {}, str(tmp_path)) == 2
    assert devices.count("auto", {}, str(tmp_path)) == 2


@pytest.mark.parametrize(
    ("visible", "expected"), [("0", 1), ("1,0", 2), ("0,1,2,3", 4), ("0,9,1", 1), ("GPU-ab,MIG-cd", 2), (" 1 , 2 ", 2)]
)
def test_gpus_that_are_hidden_do_not_count(tmp_path: Path, visible: str, expected: int) -> None:
    touch(tmp_path, *(f"dev/nvidia{minor}" for minor in range(4)))
    assert devices.count("gpu", {"CUDA_VISIBLE_DEVICES": visible}, str(tmp_path)) == expected


def test_no_gpu_is_an_error_for_gpu_and_the_cpus_for_auto(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no NVIDIA GPU on this machine"):
        devices.count("gpu", {}, str(tmp_path))
    touch(tmp_path, "dev/nvidia0")
    with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES=-1"):
        devices.count("gpu", {"CUDA_VISIBLE_DEVICES": "-1"}, str(tmp_path))
    assert devices.count("auto", {"CUDA_VISIBLE_DEVICES": ""}, str(tmp_path)) == devices.cpus()


def test_neuron_cores_are_what_the_runtime_was_given(tmp_path: Path) -> None:
    touch(tmp_path, "dev/neuron0", "dev/neuron1")
    assert devices.count("auto", {"NEURON_RT_VISIBLE_CORES": "0-3,6"}, str(tmp_path)) == 5
    assert devices.count("auto", {"NEURON_RT_NUM_CORES": "32"}, str(tmp_path)) == 32
    with pytest.raises(UsageError, match="set NEURON_RT_NUM_CORES"):
        devices.count("auto", {}, str(tmp_path))
    with pytest.raises(UsageError, match="NEURON_RT_VISIBLE_CORES=all"):
        devices.count("auto", {"NEURON_RT_VISIBLE_CORES": "all"}, str(tmp_path))


@pytest.fixture
def machine(tmp_path: Path) -> str:
    """Two sockets, a NUMA node each, 8 cores with two threads (cpu n and n+16), 4 cores a cache; 3 + 1 GPUs."""
    for index, node in enumerate((0, 0, 0, 1)):
        address = f"0000:{index + 1}A:00.0"
        facts = f"Model: \t X\nGPU UUID: \t GPU-{index}f\nDevice Minor: \t {index}"
        touch(tmp_path, f"dev/nvidia{index}")
        say(
            tmp_path,
            **{
                f"proc/driver/nvidia/gpus/{address}/information": facts,
                f"sys/bus/pci/devices/{address.lower()}/numa_node": node,
            },
        )
    for node, cpus in enumerate(("0-7,16-23", "8-15,24-31")):
        say(tmp_path, **{f"sys/devices/system/node/node{node}/cpulist": cpus})
    for cpu in range(32):
        core = cpu % 16
        first = core // 4 * 4
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        say(
            tmp_path,
            **{
                f"{folder}/topology/thread_siblings_list": f"{core},{core + 16}",
                f"{folder}/topology/physical_package_id": core // 8,
                f"{folder}/cache/index0/type": "Instruction",
                f"{folder}/cache/index0/level": 9,
                f"{folder}/cache/index0/shared_cpu_list": cpu,
                f"{folder}/cache/index3/type": "Unified",
                f"{folder}/cache/index3/level": 3,
                f"{folder}/cache/index3/shared_cpu_list": f"{first}-{first + 3},{first + 16}-{first + 19}",
            },
        )
    return str(tmp_path)


ALL = frozenset(range(32))
NODE_0, NODE_1 = [*range(8), *range(16, 24)], [*range(8, 16), *range(24, 32)]


def test_node_and_socket_binding(machine: str) -> None:
    assert numa.bindings("node", 4, {}, machine, ALL) == [NODE_0, NODE_0, NODE_0, NODE_1]
    assert numa.bindings("socket", 4, {}, machine, ALL) == [NODE_0, NODE_0, NODE_0, NODE_1]


def test_exclusive_binding_divides_whole_cores_and_overlaps_nowhere(machine: str) -> None:
    chosen = numa.bindings("exclusive", 4, {}, machine, ALL)
    assert chosen[:3] == [[0, 1, 2, 16, 17, 18], [3, 4, 5, 19, 20, 21], [6, 7, 22, 23]]
    assert chosen[3] == NODE_1


def test_core_complex_binding_gives_each_gpu_a_cache_while_there_are_some(machine: str) -> None:
    first, second = [0, 1, 2, 3, 16, 17, 18, 19], [4, 5, 6, 7, 20, 21, 22, 23]
    chosen = numa.bindings("core-complex", 4, {}, machine, ALL)
    assert chosen == [first, second, first, [8, 9, 10, 11, 24, 25, 26, 27]]


def test_visible_devices_choose_and_order_the_gpus(machine: str) -> None:
    for visible in ("3,0", "GPU-3f,GPU-0"):
        assert numa.bindings("node", 2, {"CUDA_VISIBLE_DEVICES": visible}, machine, ALL) == [NODE_1, NODE_0]


def test_only_allowed_cpus_are_chosen_and_none_is_an_error(machine: str) -> None:
    assert numa.bindings("node", 1, {}, machine, frozenset({3, 9, 17})) == [[3, 17]]
    with pytest.raises(UsageError, match="none of the CPUs of NUMA node 1 is allowed"):
        numa.bindings("node", 4, {}, machine, frozenset({3}))


def test_too_few_gpus_or_cores_are_an_error(machine: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="5 processes, but 4 visible NVIDIA GPUs"):
        numa.bindings("node", 5, {}, machine, ALL)
    with pytest.raises(UsageError, match="has 2 cores for 3 GPUs"):
        numa.bindings("exclusive", 3, {}, machine, frozenset({0, 1, 16}))
    (tmp_path / "sys/devices/system/node/node1/cpulist").unlink()
    with pytest.raises(UsageError, match="does not say what is near"):
        numa.bindings("node", 4, {}, machine, ALL)
