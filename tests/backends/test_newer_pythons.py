"""One host needs no graphlearn-torch, and so no old Python: the contract on a newer one."""

from __future__ import annotations

import subprocess

import pytest

from tests.helpers.machine import ROOT, newer_python

# What of the contract goes through processes, signals and forks, once each; the rest of it is the same Python everywhere.
CORE = "Colocated-2 and (everywhere or before or second_iteration or resuming or survive or forked or held)"
CORE += " or several_threads or graphs_in_memory"


@pytest.mark.slow(seconds=40)
@pytest.mark.newer
@pytest.mark.timeout(400)
def test_the_contract_without_graphlearn_torch() -> None:
    own = str(newer_python())
    probe = "import importlib.util as u, sys; print(u.find_spec('graphlearn_torch'), sys.version_info >= (3, 12))"
    assert subprocess.check_output([own, "-c", probe], text=True) == "None True\n"
    command = [own, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "-k", CORE, "tests/backends/test_contract.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout and " passed" in done.stdout
