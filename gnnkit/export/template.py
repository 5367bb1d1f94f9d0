"""The program that a job starts from where the user has given none: GraphSAGE for the plan's kind of batch."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path

import numpy as np

from gnnkit.errors import PlanError
from gnnkit.plan import InputLinks, InputNodes, LoaderPlan, PPRSampling
from gnnkit.schema import NodeType
from gnnkit.storage.layout import FEATURE_NAME, node_file
from gnnkit.storage.manifest import Manifest
from gnnkit.storage.store import Store

_LABELS = "y"
# Read at a time, so that an interrupt waits for no more.
_ROWS = 1 << 20


def template_source(plan: LoaderPlan, path: Path, manifest: Manifest) -> str:
    """A file that defines ``train``, fit for a plan.

    Args:
        plan: The plan.
        path: A store of its graph.
        manifest: That store's manifest.

    Raises:
        PlanError: There is no template for this kind of batch, or the graph lacks what it needs.
    """
    inputs, schema = plan.inputs, manifest.schema
    if plan.batching.remainder == "uneven":
        raise _none("remainder='uneven' gives ranks different numbers of batches, and DDP waits for all of them")
    if isinstance(plan.sampling, PPRSampling):
        raise _none("batches of personalised PageRank have no layers of edges to convolve along")
    num_layers = max(1, plan.sampling.num_hops)
    if isinstance(inputs, InputNodes):
        return _for_nodes(inputs, num_layers, path, manifest)
    if not isinstance(inputs, InputLinks):
        raise _none("batches of anchors")
    if not schema.is_homogeneous:
        raise _none("links of typed graphs")
    if inputs.neg_sampling is None and inputs.edge_label is None:
        raise _none("these links have neither negatives nor labels (neg_sampling='binary' draws some), so nothing can be told apart")
    if inputs.edge_label is not None and inputs.edge_label.ndim != 1:
        raise _none(f"links with {inputs.edge_label.ndim}-dimensional labels")
    _check_features(manifest, next(iter(schema.node_types)))
    return _filled("links", {"NUM_LAYERS": num_layers})


def _none(why: str) -> PlanError:
    return PlanError(f"there is no template for this plan: {why}", "write one: export(..., train=train), with def train(loader, ctx): ...")


def _for_nodes(inputs: InputNodes, num_layers: int, path: Path, manifest: Manifest) -> str:
    schema, node_type = manifest.schema, inputs.node_type
    labels = schema.node_types[node_type].arrays.get(_LABELS)
    if labels is None:
        raise _none(f"nodes of type {node_type!r} have no labels y")
    classes, is_multi = _classes(path, manifest, node_type)
    splits = manifest.splits.get(node_type, {})
    valid = "valid" if "valid" in splits and inputs.split != "valid" and inputs.time is None else None
    values: dict[str, object] = {"NUM_CLASSES": classes, "NUM_LAYERS": num_layers, "MULTI_LABEL": is_multi, "VALID": valid}
    if schema.is_homogeneous:
        _check_features(manifest, node_type)
        return _filled("nodes", values)
    return _filled("typed_nodes", {"TARGET": node_type, **values})


def _check_features(manifest: Manifest, node_type: NodeType) -> None:
    if FEATURE_NAME not in manifest.schema.node_types[node_type].arrays:
        raise _none(f"nodes of type {node_type!r} have no features x")


def _classes(path: Path, manifest: Manifest, node_type: NodeType) -> tuple[int, bool]:
    """Returns the number of classes, and whether a node may have several of them."""
    spec = manifest.schema.node_types[node_type].arrays[_LABELS]
    width = int(np.prod(spec.row_shape, dtype=np.int64))
    if width > 1:
        return width, True
    if spec.numpy_dtype.kind not in "iu" and manifest.metadata.get("num_classes") is None:
        raise _none(f"the labels y of {node_type!r} are of {spec.dtype}, and classes are whole numbers")
    known = int(manifest.metadata.get("num_classes") or 0)
    return known or _largest_label(path, manifest, node_type) + 1, False


def _largest_label(path: Path, manifest: Manifest, node_type: NodeType) -> int:
    store, largest = Store.open(path), -1
    for part in range(manifest.num_parts):
        labels = store.file(node_file(part, node_type, _LABELS))
        for first in range(0, len(labels), _ROWS):
            largest = max(largest, int(labels[first : first + _ROWS].max()))
    if largest < 0:
        raise _none(f"no node of type {node_type!r} has a label")
    return largest


def _filled(name: str, values: dict[str, object]) -> str:
    """A template with its constants replaced."""
    text = resources.files("gnnkit.export").joinpath("templates").joinpath(f"{name}.py").read_text(encoding="utf-8")
    for constant, value in values.items():
        shown = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
        line = f"{constant} = {shown}".replace("\\", r"\\")
        text, count = re.subn(rf"^{constant} = [^ \n]+", line, text, flags=re.MULTILINE)
        assert count == 1, constant
    return text
