"""The configuration of a sampling run, in graphlearn-torch's own record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gnnkit.distributed.fan_outs import patch_fanout_for_sampling
from gnnkit.errors import PlanError
from gnnkit.schema import EdgeType
from gnnkit.vendor import glt

if TYPE_CHECKING:
    from gnnkit.distributed.dataset_schema import DatasetSchema


def create_sampling_config(
    num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]],
    dataset_schema: DatasetSchema,
    batch_size: int = 1,
    shuffle: bool = False,
    drop_last: bool = False,
    *,
    with_weight: bool = False,
    seed: int | None = None,
) -> Any:
    """Makes the ``graphlearn_torch.sampler.SamplingConfig`` of a node loader.

    Features are collected; edge ids are where edges have features, and cost time and memory where they have none. The same
    arguments give equal configurations on every rank.

    Args:
        num_neighbors: See ``patch_fanout_for_sampling``.
        dataset_schema: Edge types, features and direction.
        batch_size: Seeds per batch and rank.
        shuffle: Whether an epoch visits the seeds in a fresh order.
        drop_last: Whether a last batch of fewer seeds is left out.
        with_weight: Whether neighbours are drawn in proportion to edge weights.
        seed: Random seed; None leaves it to the loader.

    Raises:
        PlanError: ``num_neighbors`` does not fit the dataset, ``batch_size`` is no whole number of at least 1, or
            graphlearn-torch is not installed.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise PlanError(f"batch_size must be a whole number of at least 1, got {batch_size!r}", "1024 is a usual choice")
    fan_outs = patch_fanout_for_sampling(dataset_schema.edge_types, num_neighbors)
    return glt.attribute("sampler.SamplingConfig", "create_sampling_config")(
        sampling_type=glt.attribute("sampler.SamplingType").NODE,
        num_neighbors=fan_outs,
        batch_size=batch_size,
        shuffle=shuffle,
        drop_last=drop_last,
        with_edge=bool(dataset_schema.edge_feature_info),
        collect_features=True,
        with_neg=False,
        with_weight=with_weight,
        edge_dir=dataset_schema.edge_dir,
        seed=seed,
    )
