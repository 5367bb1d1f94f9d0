"""Importing PyTorch and PyG takes seconds, the first time: it is nobody's batch, and an interrupt does it no harm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gnnkit.datasets import products_like
from tests.helpers.machine import ROOT

# What is imported stands in PyG's place: in a process that has imported PyG nothing would be left to see.
_PYG = "import __main__\n__main__.imported()\n"
_IMPORTS = """
import os, signal, sys, threading
from gnnkit import GraphLoader, InProcess
from gnnkit.sampling.collate import load_batch_classes

main, go_on, states, threads = threading.main_thread(), threading.Event(), [], []

def imported():
    threads.append(threading.current_thread())
    if len(threads) == 1:  # that fails
        states.append(loader.status().state)
        raise ImportError("not there")
    while sys._current_frames()[main.ident].f_code.co_name != "wait":  # the main thread waits for it
        go_on.wait(0.001)
    os.kill(os.getpid(), signal.SIGINT)
    assert go_on.wait(60)

loader = GraphLoader.from_store(sys.argv[1], num_neighbors=[2], batch_size=16, backend=InProcess(1), progress=False)
try:
    iter(loader)
except ImportError as error:
    assert str(error) == "not there"
assert states[0] in ("ready", "importing"), "over before an epoch begins, else the first picture of a session would show little but them"
try:
    load_batch_classes()  # tries again
except KeyboardInterrupt:
    print("interrupted")
# Torch that was imported by half cannot be imported any more: the import goes on.
_, thread = threads
assert thread.is_alive() and not thread.daemon
go_on.set()
load_batch_classes()
thread.join(60)
assert not thread.is_alive() and len(threads) == 2
loader.close()
print("imported")
"""


def test_imports_come_before_an_epoch_are_tried_again_and_outlive_an_interrupt(tmp_path: Path) -> None:
    store = products_like(0.0001, out=tmp_path / "store")
    (tmp_path / "torch_geometric").mkdir()
    (tmp_path / "torch_geometric" / "__init__.py").touch()
    (tmp_path / "torch_geometric" / "data.py").write_text(_PYG)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    words = [sys.executable, "-c", _IMPORTS, str(store.path)]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "interrupted\nimported\n"), done.stderr
