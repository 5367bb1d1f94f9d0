"""The names under which users find datasets."""

from __future__ import annotations

import subprocess
import sys

from gnnkit import datasets


def test_names() -> None:
    assert datasets.__all__ == sorted(datasets.__all__)
    for name in datasets.__all__:
        assert callable(getattr(datasets, name)), name


def test_a_function_is_never_hidden_by_its_module() -> None:
    # Importing a module sets an attribute of its package: no public function may be called like its module.
    script = (
        "import importlib, pkgutil, gnnkit.datasets as datasets\n"
        "for module in pkgutil.iter_modules(datasets.__path__):\n"
        "    assert module.name not in datasets.__all__, module.name\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=240)


def test_nothing_heavy_is_imported_for_a_description() -> None:
    script = (
        "import sys\n"
        "from gnnkit.datasets import products_like, shipped_data_dir\n"
        "products_like(1).fingerprint(); shipped_data_dir()\n"
        "print(*sorted({'torch', 'torch_geometric', 'ogb', 'pyarrow', 'pandas'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, timeout=240, capture_output=True, text=True)
    assert done.stdout.strip() == ""
