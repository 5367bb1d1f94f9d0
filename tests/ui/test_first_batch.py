"""The first batch of a process, which waits for torch and PyG: the loader says so."""

from __future__ import annotations

import subprocess
import sys
import textwrap

SCRIPT = """
    import sys, threading
    from gnnkit import GraphLoader
    from gnnkit.datasets import products_like

    seen, states = [], []
    import gnnkit.sampling.collate as collate

    with GraphLoader.from_source(products_like(0.001), num_neighbors=[2], batch_size=64, store_dir=sys.argv[1], progress=False) as loader:
        assert "torch_geometric" not in sys.modules
        loader.history.listen(lambda event: (seen.append((event.kind, event.stage, event.label)), states.append(loader.status().state)))
        next(iter(loader))
        print([(kind, label) for kind, stage, label in seen if stage == "import"], states[0], loader.status().state)
"""


def test_the_wait_for_torch_is_a_stage_and_a_state(tmp_path: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "('start', 'torch and PyG, of which batches are made')" in done.stdout and "importing" in done.stdout, done.stdout
