"""Launchers that an installed package adds: the example of the documentation, found by its entry point."""

from __future__ import annotations

import re
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gnnkit import GraphLoader, LoaderPlan, verify_export
from gnnkit.errors import PlanError
from tests.export.graphs import exported
from tests.helpers.command import run as run_cli
from tests.helpers.machine import ROOT
from tests.helpers.plugins import install

PAGE = (ROOT / "docs/launchers.md").read_text()


@pytest.fixture(scope="module")
def plan(store: Path) -> LoaderPlan:
    with GraphLoader.from_store(store, num_neighbors=[3, 2], batch_size=16, backend="inprocess", progress=False) as loader:
        return loader.plan


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs a package of a module's source and lines of entry points."""

    def make(module: str, code: str, launchers: str) -> None:
        install(tmp_path / f"site-{module}", monkeypatch, module, code, launchers)

    return make


@pytest.fixture
def example(package: Callable[..., None]) -> None:
    """The page's package."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.S | re.M)
    (points,) = re.findall(r'^\[project\.entry-points\."gnnkit\.launchers"\]\n(.*?)^```$', PAGE, re.S | re.M)
    package("ssh_launcher", code, points.replace('"', ""))


@pytest.mark.usefixtures("example")
def test_the_example_of_the_page_is_exported_and_verified(plan: LoaderPlan, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job"
    plan.save(tmp_path / "plan.json")
    assert run_cli(["export", str(tmp_path / "plan.json"), str(job), "--launcher", "ssh"]) == 0
    assert (job / "launch.sh").exists() and (job / "start.sh").stat().st_mode & stat.S_IXUSR
    said = (job / "README.md").read_text()
    assert "started with ssh" in said and "| `start.sh` | starts launch.sh on every node |" in said and "./start.sh node0" in said
    assert said.index("`train.py`") < said.index("`launch.sh`") < said.index("`start.sh`") < said.index("`requirements.txt`")
    report = verify_export(job, num_batches=2, progress=False)
    assert report.equal and report.batches == 2 and "start.sh calls it" in report.launcher, str(report)
    capfd.readouterr()


@pytest.mark.usefixtures("example")
def test_the_script_of_the_example_runs_a_command_on_every_node(plan: LoaderPlan, tmp_path: Path) -> None:
    job = exported(plan, tmp_path / "job", "ssh", nodes=2, gpus_per_node=0).directory
    (folder := tmp_path / "bin").mkdir()
    (folder / "ssh").write_text(f'#!/bin/bash\necho "$2: $3" >"{tmp_path}/said-$2"\n')
    (folder / "ssh").chmod(0o755)
    subprocess.run([job / "start.sh", "a", "b"], check=True, timeout=60, env={"PATH": f"{folder}:/usr/bin:/bin"})
    said = [(tmp_path / f"said-{node}").read_text() for node in "ab"]
    assert said == [f"{node}: cd '{job}' && NODE_RANK={rank} MASTER_ADDR=a ./launch.sh\n" for rank, node in enumerate("ab")]


def test_a_job_of_a_launcher_that_is_not_installed_here_is_refused_by_name(
    package: Callable[..., None], plan: LoaderPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as installed:
        install(tmp_path / "site", installed, "lsf", "from gnnkit.export.launchers import Torchrun as Lsf", "lsf = lsf:Lsf")
        job = exported(plan, tmp_path / "job", "lsf", gpus_per_node=0).directory
    with pytest.raises(PlanError, match=r"launcher must be one of \['torchrun', 'slurm', 'pbs', 'kubernetes'.*got 'lsf'") as refused:
        verify_export(job, progress=False)
    assert "gnnkit.launchers" in str(refused.value)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import no_such_module_of_anybody", r"launcher 'odd', odd:Odd, cannot be imported: ModuleNotFoundError"),
        ("Odd = 3", "launcher must be one of"),
        ("class Odd: ...", "launcher must be one of"),
    ],
)
def test_an_entry_point_that_is_no_launcher_is_refused(
    package: Callable[..., None], plan: LoaderPlan, tmp_path: Path, code: str, said: str
) -> None:
    package("odd", code, "odd = odd:Odd")
    with pytest.raises(PlanError, match=said) as refused:
        exported(plan, tmp_path / "job", "odd")
    assert "'odd'," not in str(refused.value).partition("got")[0] or "cannot be imported" in str(refused.value)
    assert not (tmp_path / "job").exists()
    exported(plan, tmp_path / "job", "torchrun", gpus_per_node=0)  # others do not suffer from it


def test_a_name_that_two_packages_offer_is_refused(package: Callable[..., None], plan: LoaderPlan, tmp_path: Path) -> None:
    for module, name in (("first", "both"), ("second", "both"), ("third", "slurm")):
        package(module, "from gnnkit.export.launchers import Torchrun", f"{name} = {module}:Torchrun")
    for name, offers in (("both", "first:Torchrun|second:Torchrun"), ("slurm", "third:Torchrun")):
        with pytest.raises(PlanError, match=f"launcher='{name}' is offered several times: .*({offers})"):
            exported(plan, tmp_path / "job", name)
