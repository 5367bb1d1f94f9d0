"""A run and its progress wherever output may go: notebooks that nobody watches, terminals, pipes that close, nothing at all."""

from __future__ import annotations

import fcntl
import gzip
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import nbformat
import pytest

from tests.helpers.machine import ROOT
from tests.helpers.ogb_trees import write_csv, write_tree
from tests.ui.test_streams import environment, screen_after

pytestmark = pytest.mark.slow

NUM_EDGES = 600_000
# Stages of less than half a second are not drawn; here all are, however fast the machine.
EVERY_STAGE = "from gnnkit.ui import progress\nprogress.SHOWN_AFTER_S = 0.001\n"
CODE = """
from pathlib import Path
from gnnkit import GraphLoader
loader = GraphLoader.from_ogb("ogbn-arxiv", root=ROOT, store_dir=STORES, num_neighbors=[5, 5], batch_size=20, progress=PROGRESS)
seeds = sum(batch.batch_size for batch in loader)
loader.close()
Path(STORES, "seeds").write_text(str(seeds))
print("sampled", seeds)
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset that is read in several steps."""
    root = tmp_path_factory.mktemp("root")
    block = 60_000
    folder = write_tree("ogbn-arxiv", root, num_nodes=1000)
    write_csv(folder / "raw/num-edge-list.csv.gz", [[NUM_EDGES]])
    text = "".join(f"{i * 31 % 1000},{i * 7 % 1000}\n" for i in range(block)).encode()
    (folder / "raw/edge.csv.gz").write_bytes(gzip.compress(text, 1) * (NUM_EDGES // block))
    return root


def code_for(tree: Path, stores: Path, progress: object = "auto") -> str:
    return heading(tree, stores, progress) + EVERY_STAGE + CODE


def check_lines(text: str) -> None:
    """Plain lines that tell of the store that was built."""
    lines = text.splitlines()
    assert lines and all(line.startswith("gnnkit: ") and line.isprintable() for line in lines), text
    assert re.search(r"^gnnkit: ingest ogbn-arxiv: 100% ", text, re.MULTILINE), text
    assert not any("epoch" in line for line in lines)


# Notebooks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", [pytest.param(name, marks=pytest.mark.packages(name)) for name in ("papermill", "nbconvert")])
def test_a_notebook_that_nobody_watches_keeps_plain_lines(program: str, tree: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.ipynb", tmp_path / "out.ipynb"
    cells = [nbformat.v4.new_code_cell(code_for(tree, tmp_path)), nbformat.v4.new_code_cell("loader")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), source)
    arguments = {
        "papermill": ["papermill", str(source), str(target), "-k", "python3"],
        "nbconvert": ["jupyter", "nbconvert", "--execute", "--to", "notebook", "--output", str(target), str(source)],
    }[program]
    home = {name: str(tmp_path / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")}
    env = environment(
        **home, PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]), PYDEVD_DISABLE_FILE_VALIDATION="1"
    )
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = nbformat.read(target, as_version=4).cells
    streams = {name: "".join(out.text for out in first.outputs if out.get("name") == name) for name in ("stdout", "stderr")}
    *progress, last = streams["stdout"].splitlines() or [""]
    assert last == "sampled 200"
    check_lines("\n".join(progress) + streams["stderr"])
    (card,) = second.outputs
    assert "ogbn-arxiv" in card.data["text/plain"] and "<" in card.data["text/html"]


# Terminals ---------------------------------------------------------------------------------------------------------------


def run_on_terminal(code: str, term: str) -> str:
    """Runs a program with all its output on a terminal; returns what the terminal got."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 110, 0, 0))
    env = environment(TERM=term)
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], stdin=follower, stdout=follower, stderr=follower, env=env)
    os.close(follower)
    received = b""
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # the last process on the other side has gone
            break
        if not chunk:
            break
        received += chunk
    os.close(leader)
    assert process.wait(60) == 0, received.decode()
    return received.decode()


def test_a_dumb_terminal_gets_plain_lines(tree: Path, tmp_path: Path) -> None:
    output = run_on_terminal(code_for(tree, tmp_path), "dumb").replace("\r\n", "\n")
    *progress, last = output.splitlines()
    assert last == "sampled 200"
    check_lines("\n".join(progress))


TQDM = """
from tqdm import tqdm
from gnnkit import GraphLoader
loader = GraphLoader.from_ogb("ogbn-arxiv", root=ROOT, store_dir=STORES, num_neighbors=[5, 5], batch_size=20, progress=PROGRESS)
"""
TWO_EPOCHS = TQDM + "for _ in range(2):\n    for batch in loader:\n        pass\n"


@pytest.fixture(scope="module")
def built(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the store already."""
    stores = tmp_path_factory.mktemp("stores")
    done = subprocess.run([sys.executable, "-c", code_for(tree, stores, False)], env=environment(), capture_output=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, b""), "progress=False draws nothing"
    return stores


def heading(tree: Path, stores: Path, progress: object) -> str:
    return f"ROOT, STORES, PROGRESS = {str(tree)!r}, {str(stores)!r}, {progress!r}\n"


def test_tqdm_around_a_loader_is_the_only_bar(tree: Path, built: Path) -> None:
    # Where torch is imported with the first batch, a line says so.
    code = heading(tree, built, "auto") + "import torch_geometric.data\n" + TQDM + "for batch in tqdm(loader, mininterval=0):\n    pass\n"
    output = run_on_terminal(code, "xterm-256color")
    assert "10/10" in output and "100%" in output  # its length is the loader's
    assert "epoch" not in output and "\x1b" not in output[output.index("0/10") :]


def test_epochs_leave_a_line_each_where_they_are_asked_for(tree: Path, built: Path) -> None:
    lines = screen_after(run_on_terminal(heading(tree, built, True) + TWO_EPOCHS, "xterm-256color"))
    epochs = [line for line in lines if "epoch" in line]
    assert len(epochs) == 2, lines
    assert "epoch 0" in epochs[0] and "epoch 1" in epochs[1] and all("100%|" in line and "10/10" in line for line in epochs)


# Pipes and closed streams ------------------------------------------------------------------------------------------------


def run_in_shell(line: str, code: str) -> subprocess.CompletedProcess[str]:
    """Runs a line of bash in which ``$0 -c "$1"`` is the program; its exit status is the program's."""
    return subprocess.run(
        ["bash", "-c", line, sys.executable, code], env=environment(), capture_output=True, text=True, timeout=240, cwd=ROOT, check=False
    )


@pytest.mark.parametrize(
    "line",
    [
        '"$0" -c "$1" | head -1; exit ${PIPESTATUS[0]}',
        '"$0" -c "$1" 2>&1 >/dev/null | head -1; exit ${PIPESTATUS[0]}',
        '"$0" -c "$1" >&- 2>&- <&-',
    ],
    ids=["head of stdout", "head of stderr", "no streams"],
)
def test_a_run_ends_well_whatever_happens_to_its_streams(line: str, tree: Path, tmp_path: Path) -> None:
    done = run_in_shell(line, code_for(tree, tmp_path))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "seeds").read_text() == "200"
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_an_error_is_the_exit_status_of_a_run_without_streams(tree: Path, tmp_path: Path) -> None:
    code = code_for(tree, tmp_path).replace("batch_size=20", "batch_size=0")
    assert run_in_shell('"$0" -c "$1" >&- 2>&-', code).returncode == 1
