"""Where a process stands, from what torchrun, Slurm and Kubernetes say."""

from __future__ import annotations

from typing import Any

import pytest

from gnnkit.errors import PlanError
from gnnkit.jobs.environment import JobPlace, find_node, find_place

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "6",
    "LOCAL_RANK": "2",
    "LOCAL_WORLD_SIZE": "3",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "4000",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
# As srun sets them for ``--nodes 3 --ntasks 5``.
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NNODES": "3",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NODELIST": "gpu[07-08,11]",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.9",
    "SLURM_JOB_ID": "1234",
    "SLURM_RESTART_COUNT": "1",
}
POD = {"JOB_COMPLETION_INDEX": "1", "NNODES": "2", "MASTER_ADDR": "job-0.job", "GNNKIT_RESTARTS": "3"}
# As the training operator's PyTorchJob sets them in a pod.
PYTORCH_JOB = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, JobPlace()),
        ({"LOCAL_RANK": "3", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, JobPlace()),
        (TORCHRUN, JobPlace(5, 2, 1, 6, 3, 2, 2, "10.0.0.1", 4000, True)),
        ({**SLURM, **TORCHRUN}, JobPlace(5, 2, 1, 6, 3, 2, 3, "10.0.0.1", 4000, True)),
        (PYTORCH_JOB, JobPlace(1, 0, 1, 3, 1, 3, 0, "job-master-0", 23456)),
        (SLURM, JobPlace(3, 1, 1, 5, 2, 3, 1, "gpu07", 15000 + 1234)),
        ({**SLURM, "MASTER_ADDR": "10.1.1.1", "MASTER_PORT": "9"}, JobPlace(3, 1, 1, 5, 2, 3, 1, "10.1.1.1", 9)),
        ({**SLURM, "SLURM_STEP_NODELIST": "a3-x,b[1-2]"}, JobPlace(3, 1, 1, 5, 2, 3, 1, "a3-x", 15000 + 1234)),
        ({**SLURM, "SLURM_STEP_NODELIST": ""}, JobPlace(3, 1, 1, 5, 2, 3, 1, "10.0.0.9", 15000 + 1234)),
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "2", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "7"}, JobPlace()),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_NODEID": "0", "SLURM_JOB_ID": "7"}, JobPlace()),  # the batch script itself
        (POD, JobPlace(1, 0, 1, 2, 1, 2, 3, "job-0.job")),
    ],
)
def test_places(environment: dict[str, str], place: JobPlace) -> None:
    assert find_place(environment) == place


def test_a_place_says_itself_as_torchrun_would() -> None:
    slurm = find_place(SLURM)
    assert find_place({**SLURM, **slurm.variables()}) == slurm


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({**TORCHRUN, "RANK": "6"}, ["rank 6", "6 ranks"]),
        ({**TORCHRUN, "RANK": "two"}, ["RANK='two'", "whole number"]),
        ({**TORCHRUN, "WORLD_SIZE": ""}, ["RANK=5 is in the environment, but WORLD_SIZE is not"]),
        ({**TORCHRUN, "LOCAL_RANK": ""}, ["LOCAL_WORLD_SIZE=3", "LOCAL_RANK is not"]),
        ({**TORCHRUN, "LOCAL_RANK": "3"}, ["local rank 3", "3 ranks of the node"]),
        ({**TORCHRUN, "GROUP_RANK": "2"}, ["node 2", "2 nodes"]),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "7"}, ["7 ranks of this one", "more than the job's 6 ranks"]),
        ({**TORCHRUN, "MASTER_ADDR": ""}, ["MASTER_ADDR is not set"]),
        ({**TORCHRUN, "MASTER_PORT": "70000"}, ["MASTER_PORT=70000"]),
        ({**SLURM, "SLURM_PROCID": "-1"}, ["SLURM_PROCID='-1'"]),
        ({**SLURM, "SLURM_NODEID": "3"}, ["SLURM_NODEID=3, but SLURM_NNODES=3"]),
        ({**SLURM, "SLURM_TASKS_PER_NODE": "2x2"}, ["SLURM_TASKS_PER_NODE='2x2'"]),
        ({**SLURM, "SLURM_STEP_NODELIST": "", "SLURM_LAUNCH_NODE_IPADDR": ""}, ["MASTER_ADDR is not set"]),
        ({**POD, "NNODES": ""}, ["NNODES is not set"]),
        ({**POD, "JOB_COMPLETION_INDEX": "2"}, ["rank 2", "2 ranks"]),
    ],
)
def test_what_makes_no_sense_is_named(environment: dict[str, str], said: list[str]) -> None:
    with pytest.raises(PlanError) as error:
        find_place(environment)
    assert all(words in str(error.value) for words in said), error.value


@pytest.mark.parametrize(
    ("environment", "node"),
    [({}, (0, 1)), ({"NODE_RANK": "1", "NNODES": "4"}, (1, 4)), (SLURM, (1, 3)), (POD, (1, 2)), (TORCHRUN, (1, 2))],
)
def test_the_node_that_is_prepared(environment: dict[str, Any], node: tuple[int, int]) -> None:
    assert find_node(environment) == node


def test_a_node_beyond_the_last_is_an_error() -> None:
    with pytest.raises(PlanError, match="NODE_RANK=4, but NNODES=4"):
        find_node({"NODE_RANK": "4", "NNODES": "4"})
