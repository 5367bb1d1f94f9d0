"""Cora, the citation graph that comes with gnnkit; ``data/README.md`` says where it is from."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.arguments import checks_calls
from gnnkit.errors import DatasetError
from gnnkit.files import open_regular
from gnnkit.shipped import shipped_data_dir
from gnnkit.storage.files import NPY_DAMAGE

if TYPE_CHECKING:
    from torch_geometric.data import Data

_NUM_NODES, _NUM_FEATURES = 2708, 1433
_KEYS = ("edge_index", "x_count", "x_index", "y", "train", "val", "test")


@checks_calls()
def cora() -> Data:
    """Cora with the public split, equal to what PyG's ``Planetoid`` reads (without transform).

    Returns:
        ``x`` float32 ``[2708, 1433]`` (0 or 1: a word is absent or present), ``edge_index`` int64 ``[2, 10556]``, ``y`` int64
        ``[2708]`` (7 classes), ``train_mask``, ``val_mask`` and ``test_mask`` bool ``[2708]`` (140, 500 and 1000 nodes).

    Raises:
        DatasetError: The file is missing or damaged.
    """
    return read_cora(shipped_data_dir() / "cora" / "cora.npz")


def read_cora(path: Path) -> Data:
    """Reads ``cora`` from a file.

    Raises:
        DatasetError: The file is missing or damaged.
    """
    import torch  # heavy
    from torch_geometric.data import Data  # heavy

    arrays = _read(path)
    x = np.zeros((_NUM_NODES, _NUM_FEATURES), np.float32)
    x[np.repeat(np.arange(_NUM_NODES), arrays["x_count"]), arrays["x_index"].astype(np.int64)] = 1.0
    data = Data(
        x=torch.from_numpy(x),
        edge_index=torch.from_numpy(arrays["edge_index"].astype(np.int64)),
        y=torch.from_numpy(arrays["y"].astype(np.int64)),
    )
    for split in ("train", "val", "test"):
        mask = torch.zeros(_NUM_NODES, dtype=torch.bool)
        mask[torch.from_numpy(arrays[split].astype(np.int64))] = True
        data[f"{split}_mask"] = mask
    return data


def _read(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with open(open_regular(path), "rb") as file, np.load(file, allow_pickle=False) as archive:
            return {key: archive[key] for key in _KEYS}
    except (*NPY_DAMAGE, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise DatasetError(f"{path} cannot be read: {error}", "reinstall gnnkit") from error
