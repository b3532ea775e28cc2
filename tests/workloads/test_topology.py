from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.topology import Topology, TopologyError


def torchrun(rank: int, local: int, world: int, local_world: int, **more: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(local_world),
        **more,
    }


def seeds(nodes: int, per_node: int, rank: int, local: int, world: int) -> dict[str, str]:
    return {
        "NNODES": str(nodes),
        "NPROC_PER_NODE": str(per_node),
        "GLOBAL_PROC_RANK": str(rank),
        "LOCAL_PROC_RANK": str(local),
        "PROC_WORLD_SIZE": str(world),
    }


def test_a_direct_run_is_alone() -> None:
    alone = Topology.from_environment({})
    assert (alone.rank, alone.world_size, alone.is_parallel, alone.device_index) == (0, 1, False, 0)


@pytest.mark.parametrize("nodes", [2, 3, 16])
def test_many_nodes_with_one_process_of_one_thread_each_are_parallel(nodes: int) -> None:
    """L8: once derived from the processes per node, which left every node training by itself."""
    for environ in (seeds(nodes, 1, nodes - 1, 0, nodes), torchrun(nodes - 1, 0, nodes, 1)):
        topology = Topology.from_environment(environ)
        assert topology.is_parallel
        assert (topology.world_size, topology.rank, topology.node_rank) == (nodes, nodes - 1, nodes - 1)


def test_the_threads_of_one_process_are_parallel() -> None:
    assert Topology.from_environment({}, threads_per_process=8).is_parallel


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 4))
def test_every_rank_has_one_place_and_its_own_device(nodes: int, per_node: int, threads: int) -> None:
    world = nodes * per_node
    every = [
        Topology.from_environment(
            {
                **seeds(nodes, per_node, rank, rank % per_node, world),
                **torchrun(rank, rank % per_node, world, per_node),
            },
            threads_per_process=threads,
        ).of_thread(thread)
        for rank in range(world)
        for thread in range(threads)
    ]
    assert [topology.rank for topology in every] == list(range(world * threads))
    assert len({(topology.node_rank, topology.device_index) for topology in every}) == world * threads
    assert all(topology.device_index == topology.local_rank < per_node * threads for topology in every)
    assert {topology.is_parallel for topology in every} == {world * threads > 1}


def test_the_launchers_own_variables_come_first_and_torchruns_suffice() -> None:
    assert Topology.from_environment(seeds(2, 4, 5, 1, 8)) == Topology.from_environment(torchrun(5, 1, 8, 4))


def test_a_process_that_sees_its_own_device_only_uses_number_0() -> None:
    virtual = Topology.from_environment({**seeds(1, 4, 3, 3, 4), **torchrun(3, 0, 4, 4)})
    assert (virtual.local_rank, virtual.device_index) == (3, 0)


def test_a_pod_told_only_rank_and_world_is_one_process_on_its_node() -> None:
    topology = Topology.from_environment({"RANK": "2", "WORLD_SIZE": "3"})
    assert (topology.nodes, topology.processes_per_node, topology.node_rank) == (3, 1, 2)


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"WORLD_SIZE": "8"}, "WORLD_SIZE=8 but no RANK is set"),
        ({"NNODES": "2"}, "NNODES=2 but no RANK is set"),
        ({"RANK": "0"}, "not of how many"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK='one' is not a whole number"),
        (torchrun(8, 0, 8, 4), "process rank 8 is not one of the 8"),
        (torchrun(-1, 0, 8, 4), "process rank -1 is not one of"),
        (torchrun(5, 2, 8, 4), "has local rank 1, but the environment says 2"),
        (torchrun(1, 1, 8, 3), "2 nodes × 3 processes per node are not the 8"),
        (torchrun(0, 0, 0, 0), "nodes must be at least 1"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "LOCAL_WORLD_SIZE is not"),
        ({**seeds(1, 2, 0, 0, 2), "RANK": "1"}, "GLOBAL_PROC_RANK=0 but RANK=1: two launchers"),
        (seeds(3, 2, 1, 1, 4), "3 nodes × 2 processes per node are not the 4"),
    ],
)
def test_an_impossible_environment_is_named(environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(TopologyError, match=sentence):
        Topology.from_environment(environ)


def test_a_thread_outside_its_process_is_refused() -> None:
    with pytest.raises(TopologyError, match="thread 2"):
        replace(Topology(threads_per_process=2), thread=2)
