"""One host needs no graphlearn-torch, and so no old Python: the contract and ``gnnkit.distributed`` on a newer one."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.helpers.machine import ROOT, newer_python

# What of the contract goes through processes, signals and forks, once each; the rest of it is the same Python everywhere.
CORE = "Colocated-2 and (everywhere or before or second_iteration or resuming or survive or forked or held)"
CORE += " or several_threads or graphs_in_memory"
# The names of GiGL and graphlearn-torch, by tests that run here beside graphlearn-torch: every file, and what of it.
FACE = {
    "test_coming_from": "",
    "test_glts_own": "",
    "test_base_loader": "recipe or any_producer or options or group",
    "test_neighbor_loader": "words or every_epoch or shutdown",
    "test_link_neighbor_loader": "binary",
    "test_subgraph_loader": "fixture",
    "test_lending": "",
    "test_scripts": "two_ranks or tutorial",
}


def run_there(*arguments: str) -> None:
    """Runs tests on the newer Python; the only ones left out may be those that compare with graphlearn-torch's own classes."""
    own = str(newer_python())
    probe = "import importlib.util as u, sys; print(u.find_spec('graphlearn_torch'), sys.version_info >= (3, 12))"
    assert subprocess.check_output([own, "-c", probe], text=True) == "None True\n"
    command = [own, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *arguments]
    # Where every test must run, these may still be left out: their reasons are looked at below.
    environment = {name: value for name, value in os.environ.items() if name != "GNNKIT_REQUIRE_ALL"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    reasons = [line for line in done.stdout.splitlines() if "; to enable: " in line]
    assert all("graphlearn-torch" in reason or "GPU" in reason for reason in reasons) and " passed" in done.stdout, reasons


@pytest.mark.slow(seconds=40)
@pytest.mark.newer
@pytest.mark.timeout(600)
def test_the_contract_without_graphlearn_torch() -> None:
    run_there("-k", CORE, "tests/backends/test_contract.py")


@pytest.mark.slow(seconds=100)
@pytest.mark.newer
@pytest.mark.timeout(600)
def test_the_names_of_other_libraries_without_graphlearn_torch() -> None:
    chosen = " or ".join(f"({name}.py and ({some}))" if some else f"{name}.py" for name, some in FACE.items())
    run_there("-k", chosen, *(f"tests/distributed/{name}.py" for name in FACE))
