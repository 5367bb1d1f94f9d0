"""``gnnkit doctor``: can gnnkit work here, and if not, what to do. Each check is a function that returns one row."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Literal

import psutil
import typer

from gnnkit.cli.output import ERROR, OK, WARNING, bare_table, cell, console, show_json
from gnnkit.host import available_cpus, available_memory, installed_version
from gnnkit.kernels.folder import kernel_cache_root
from gnnkit.kernels.row_copies import processor, row_copies
from gnnkit.runtime.limits import auto_threads, copy_budget
from gnnkit.storage.catalog import default_root, default_store_dir
from gnnkit.ui.progress import make_sink
from gnnkit.units import format_bytes
from gnnkit.vendor.glt import GltStatus
from gnnkit.version import __version__
from gnnkit.waiting import is_ready

Verdict = Literal["ok", "no", "warning", "error"]


@dataclass(frozen=True)
class Check:
    """A row of the doctor's report: what was checked, what was found and the verdict.

    Attributes:
        name: The subject ("memory").
        value: The finding ("21.3 GB free of 24.0 GB").
        verdict: "ok"; "no" (not here, and nothing is wrong with that); "warning" (it works, with the drawback that ``fix`` is for);
            "error" (gnnkit does not work).
        fix: What to do about it; empty where there is nothing to do.
    """

    name: str
    value: str
    verdict: Verdict = "ok"
    fix: str = ""

    @classmethod
    def judged(cls, name: str, value: str, verdict: Verdict, fix: str) -> Check:
        """A row that says what to do only where something is wrong."""
        return cls(name, value, verdict, "" if verdict == "ok" else fix)


GB = 1e9
# OGBN-Products needs 1.6 GB for its store and as much for its pages; PyTorch alone takes half a gigabyte.
_ENOUGH_MEMORY, _LEAST_MEMORY = 4 * GB, 1 * GB
_ENOUGH_DISK, _LEAST_DISK = 5 * GB, 0.2 * GB
# Docker gives 64 MB, in which DataLoader workers that hand over batches die of SIGBUS.
_ENOUGH_SHM = 0.5 * GB
_ENOUGH_FILES = 4096


def processors() -> Check:
    """Checks how many processors this process may keep busy."""
    count, total = available_cpus(), os.cpu_count() or 1
    value = f"{count} of {total} usable, {auto_threads()} sampling by default"
    fix = "sampling shares the one processor with training; give the container or job two"
    return Check.judged("processors", value, "ok" if count > 1 else "warning", fix)


def memory() -> Check:
    """Checks how much memory is free, limits of containers included."""
    free = available_memory()
    value = f"{format_bytes(free)} free of {format_bytes(psutil.virtual_memory().total)}"
    fix = "end other programs, or raise the container's or job's memory limit; feature_dtype='float16' halves what features take"
    return Check.judged("memory", value, _level(free, _ENOUGH_MEMORY, _LEAST_MEMORY), fix)


def _level(free: float, enough: float, least: float) -> Verdict:
    return "ok" if free >= enough else "warning" if free >= least else "error"


def graph_copies() -> Check:
    """Checks how large a graph may be that is copied to huge pages, and says what becomes of it where several processes use one store."""
    return Check(
        "graph copies",
        f"up to {format_bytes(copy_budget(1))} of a store's graph in huge pages, divided by the processes that use the store;"
        " its mapped pages are shared by all of them",
    )


def shared_memory() -> Check:
    """Size of /dev/shm, which PyTorch's DataLoader workers use; gnnkit does not."""
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Check("/dev/shm", "not there" if sys.platform == "linux" else f"not part of {sys.platform}")
    usage = shutil.disk_usage(folder)
    value = f"{format_bytes(usage.free)} free of {format_bytes(usage.total)}"
    fix = "gnnkit works; PyTorch's DataLoader workers may die of SIGBUS: docker run --shm-size=2g, or an emptyDir with medium: Memory"
    return Check.judged("/dev/shm", value, "ok" if usage.free >= _ENOUGH_SHM else "warning", fix)


def disk() -> Check:
    """Whether stores can be written, and how many."""
    folder = default_store_dir(default_root())
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    value = f"{format_bytes(free)} free in {folder}"
    if not os.access(existing, os.W_OK):
        return Check("disk", f"{folder} is not writable", "error", "name a folder of yours: export GNNKIT_HOME=/path/to/folder")
    fix = "gnnkit stores prune, or name a folder on a larger disk: export GNNKIT_HOME=/path/to/folder"
    return Check.judged("disk", value, _level(free, _ENOUGH_DISK, _LEAST_DISK), fix)


def gpu() -> Check:
    """Whether torch can use a GPU; working without one is fine."""
    driver = Path("/proc/driver/nvidia/version").exists()
    try:
        import torch
    except ImportError:
        return Check("GPU", "unknown: torch cannot be imported")
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        return Check("GPU", ", ".join(f"{device.name} ({format_bytes(device.total_memory)})" for device in names))
    if not driver:
        return Check("GPU", "none: batches stay on the CPU")
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
    value = f"an NVIDIA driver is there, and torch cannot use it: torch {torch.__version__} is {built}"
    return Check("GPU", value, "warning", "install a CUDA build of torch that fits the driver")


def network() -> Check:
    """The interface that other hosts would reach this one by; one host needs none."""
    address = ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # an address for documentation: decides the route, sends nothing
        address = str(probe.getsockname()[0])
    for name, addresses in psutil.net_if_addrs().items():
        if address and any(item.address == address for item in addresses):
            return Check("network", f"{name} ({address}); nothing listens on it in a run on one host")
    return Check("network", "no route to other hosts; runs on one host need none")


def open_files() -> Check:
    """Checks how many files and mappings a process may hold."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # gnnkit raises the soft one where it needs more
    is_unlimited = hard == resource.RLIM_INFINITY
    value, is_enough = "no limit" if is_unlimited else f"{hard} per process", is_unlimited or hard >= _ENOUGH_FILES
    fix = "stores with many parts map many files: have the hard limit raised (ulimit -H -n tells it)"
    return Check.judged("open files", value, "ok" if is_enough else "warning", fix)


_LEAST_TORCH = (2, 3)
PROBE_TIMEOUT_S = 120.0
# In a process of its own: a native library that is built for another torch may abort rather than fail.
_GLT_PROBE = "import dataclasses, json; from gnnkit.vendor.glt import status; print(json.dumps(dataclasses.asdict(status())))"
_GLT_MEANS = {
    "native": "everything of gnnkit works, GLT's own loaders and sampling on GPUs too",
    "unfit": "everything of gnnkit works but Glt() and GLT's own samplers, which need its native library",
    "absent": "everything of gnnkit works but Glt() and GLT's own samplers",
}


def _package(name: str, verdict: Verdict, fix: str) -> Check:
    version = installed_version(name)
    return Check(name, "not installed", verdict, fix) if version is None else Check(name, version)


def python() -> Check:
    """Python's version, and whether the platform has every backend."""
    value, system = f"{platform.python_version()} on {platform.system()} {platform.machine()}", platform.system()
    fix = "only InProcess works here; the other backends need Linux"
    return Check.judged("Python", value, "ok" if system == "Linux" else "warning", fix)


def torch() -> Check:
    """Torch's version."""
    row = _package("torch", "error", "pip install 'torch>=2.3'")
    release = tuple(int(part) for part in row.value.split("+")[0].split(".")[:2] if part.isdigit())
    is_old = row.verdict == "ok" and release < _LEAST_TORCH
    return Check("torch", row.value, "error", "pip install --upgrade 'torch>=2.3'") if is_old else row


torch_geometric = partial(_package, "torch_geometric", "error", "pip install torch_geometric")
# OGB has the table of datasets.
ogb = partial(_package, "ogb", "warning", "needed for GraphLoader.from_ogb: pip install ogb")


def kernels() -> Check:
    """Whether the sampling kernels are compiled, and where they are kept."""
    version = installed_version("numba")
    if version is None:
        return Check("kernels", "numba is not installed", "error", "pip install numba")
    try:
        import gnnkit.kernels.jit  # noqa: F401 - numba, which may be broken
    except ImportError as error:
        return Check("kernels", f"numba {version} cannot be imported: {error}", "error", "pip install --upgrade numba numpy")
    root = kernel_cache_root()
    if any(root.glob("**/*.nbc")):
        return Check("kernels", f"compiled, kept in {root} (numba {version})")
    return Check("kernels", f"not compiled yet: trying the backends out, below, takes up to a minute longer (numba {version})", "ok")


def copies() -> Check:
    """Says how rows are copied on this machine, and what that was chosen from."""
    found = row_copies()
    return Check("row copies", f"{found} ({processor()}: {found.reason})")


def glt_library(*, timeout_s: float = PROBE_TIMEOUT_S) -> Check:
    """Whether graphlearn-torch is there, whether its native library fits this torch, and what that means.

    Args:
        timeout_s: How long looking for it may take.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", _GLT_PROBE], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return glt_row(f"looking for it took more than {timeout_s:g} s")
    if done.returncode == 0:
        return glt_row(GltStatus(**json.loads(done.stdout)))
    return glt_row((done.stderr.strip().splitlines() or [f"looking for it ended with code {done.returncode}"])[-1])


def glt_row(found: GltStatus | str) -> Check:
    """The row about graphlearn-torch.

    Args:
        found: Its status, or why that is not known.
    """
    name = "torch/GLT pairing"
    if isinstance(found, str):
        return Check(name, f"unknown: {found}", "warning", "pip install --force-reinstall --no-deps graphlearn-torch==0.2.4")
    what = f"{found.kind}: {_GLT_MEANS[found.kind]}"
    version = f"; graphlearn-torch {found.version} on torch {installed_version('torch') or 'none'}" if found.kind != "absent" else ""
    reason = "" if found.kind == "native" else f" ({found.reason})"
    return Check(name, f"{what}{version}{reason}", "ok", found.fix)


def installation() -> Check:
    """Which gnnkit this is and where it lies."""
    return Check("gnnkit", f"{__version__} in {Path(__file__).resolve().parents[1]}")


# The names under which gnnkit offers them, and what Colocated does beyond one host.
SEVERAL_HOSTS = "several hosts"
BACKENDS = ("InProcess", "OnDevice", "Colocated", SEVERAL_HOSTS, "Glt", "GraphStore")
_NEEDS_LINUX = ("Colocated", SEVERAL_HOSTS, "Glt", "GraphStore")
# For one trial; the first imports torch and PyG, and compiles the kernels where that has not been done.
TRIAL_TIMEOUT_S = 180.0
_REPORT = "please report this"


def backends(broken: list[Check], glt: Check) -> Iterator[Check]:
    """A row for each backend, each tried out on a small graph.

    Args:
        broken: Checks that failed and that every backend depends on.
        glt: The row about graphlearn-torch, whose own engine one backend runs.
    """
    found = {name: without_trial(name, broken, glt) for name in BACKENDS}
    with closing(trials([name for name, row in found.items() if row is None])) as outcomes:
        for row in found.values():
            yield row if row is not None else next(outcomes)


def _title(name: str) -> str:
    return name if name == SEVERAL_HOSTS else f"backend {name}"


def without_trial(name: str, broken: list[Check], glt: Check) -> Check | None:
    """The row of a backend that need not be tried out, or None; see ``backends``."""
    row = _title(name)
    if broken:
        return Check(row, f"no: {', '.join(check.name for check in broken)}, see above", "error", broken[0].fix)
    if name in _NEEDS_LINUX and sys.platform != "linux":
        return Check(row, f"no: it needs Linux, this is {sys.platform}", "no")
    if name == "Glt" and not glt.value.startswith("native"):
        return Check(row, "no: graphlearn-torch's native library is not there, see above; the other backends do without it", "no", glt.fix)
    return None


def trials(names: Sequence[str], *, timeout_s: float = TRIAL_TIMEOUT_S, module: str = "gnnkit.cli.trial") -> Generator[Check, None, None]:
    """Yields the rows of trials, which a process makes one after the other; it ends when the rows are closed.

    Args:
        names: See ``trial.TRIALS``.
        timeout_s: How long one may take.
        module: What the process runs.
    """
    with tempfile.TemporaryDirectory(prefix="gnnkit-doctor-") as folder, tempfile.TemporaryFile("w+") as errors:
        # Its temporary files lie where they go with the folder, also when it is killed.
        environment = {**os.environ, "TMPDIR": folder}
        command = [sys.executable, "-m", module, *names]
        # Without a buffer, so that a line that was read with the one before it is not waited for.
        with subprocess.Popen(
            command, bufsize=0, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=environment
        ) as process:
            lines = process.stdout
            assert lines is not None
            try:
                for name in names:
                    row = _title(name)
                    if not is_ready(lines.fileno(), timeout_s):
                        process.kill()
                        yield Check(row, f"no: its trial did not end within {timeout_s:g} s", "error", _REPORT)
                    elif not (line := lines.readline()):  # there are none for the rows that follow, either
                        yield Check(row, f"no: its trial {_end(process.wait(timeout_s), errors)}", "error", _REPORT)
                    else:
                        outcome = json.loads(line)
                        said = f"{'yes' if outcome['ok'] else 'no'}: {outcome['value']}"
                        yield Check.judged(row, said, "ok" if outcome["ok"] else "error", _REPORT)
            finally:
                process.kill()


def _end(code: int, errors: IO[str]) -> str:
    """The end of a process in words, with the last line that it has written to its standard error."""
    errors.seek(0)
    tail = (errors.read().strip().splitlines() or [""])[-1]
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    return f"{how}: {tail}" if tail else how


_EXIT = {"ok": OK, "no": OK, "warning": WARNING, "error": ERROR}
# Of the longest name of a row, and of the longest verdict.
_NAME_WIDTH, _VERDICT_WIDTH = 18, 7
_STYLE = {"ok": "green", "no": "dim", "warning": "yellow", "error": "bold red"}


def doctor(
    warm: bool = typer.Option(False, "--warm", help="Compile the sampling kernels now, so that the first batch does not wait for it."),
    as_json: bool = typer.Option(False, "--json", help="Write JSON."),
) -> None:
    """Check this machine and say what to do.

    Exit codes: 0 all is well, 1 there are warnings, 2 gnnkit cannot work here.
    """
    if warm:
        from gnnkit.sampling.kinds import prepare_all  # numba
        from gnnkit.sampling.kinds import warm as compile_kernels  # the same

        prepare_all()
        with make_sink(False if as_json else "auto") as events:
            compile_kernels(events)
    raise typer.Exit(report(all_checks(), as_json=as_json))


def report(checks: Iterable[Check], *, as_json: bool) -> int:
    """Writes the rows of a report to standard output, for people each as soon as it is known; its exit code."""
    known = []
    for check in checks:
        known.append(check)
        if not as_json:
            _show(check, with_header=len(known) == 1)
    worst = max((_EXIT[check.verdict] for check in known), default=OK)
    if as_json:
        show_json({"exit_code": worst, "checks": [vars(check) for check in known]})
    return worst


def all_checks() -> Iterator[Check]:
    """Yields every row of the report."""
    needed = []
    for check in (installation, python, torch, torch_geometric, kernels):
        row = check()
        if row.verdict == "error":
            needed.append(row)
        yield row
    yield copies()
    glt = glt_library()
    yield from (ogb(), glt)
    yield from (check() for check in (processors, memory, graph_copies, shared_memory, disk, open_files, gpu, network))
    yield from backends(needed, glt)


def _show(check: Check, *, with_header: bool) -> None:
    # A table of its own for each row, of the same widths: the next one may be long in coming.
    table = bare_table(header_style="bold", show_header=with_header, expand=True)
    table.add_column("check", no_wrap=True, width=_NAME_WIDTH)
    table.add_column("value", overflow="fold", ratio=3)
    table.add_column("verdict", no_wrap=True, width=_VERDICT_WIDTH)
    table.add_column("what to do", overflow="fold", ratio=2)
    style = _STYLE[check.verdict]
    table.add_row(cell(check.name), cell(check.value), f"[{style}]{check.verdict}[/{style}]", cell(check.fix))
    console().print(table)
