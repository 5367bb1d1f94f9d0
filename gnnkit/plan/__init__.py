"""The plan: everything one run of a loader needs, frozen and JSON-serialisable.

A plan says what is sampled and how; which process samples it is the ``backend``'s affair, and never changes a batch.
"""

from gnnkit.plan.inputs import (
    LABEL_COUNTS,
    LABEL_KINDS,
    LABEL_NODES,
    AnchorLabels,
    ExcludeEdges,
    InputAnchors,
    InputLinks,
    InputNodes,
    Inputs,
    LabelLists,
    LabelOutput,
    NegativeSampling,
    label_name,
)
from gnnkit.plan.loader import (
    PLAN_VERSION,
    Batching,
    LoaderPlan,
    Placement,
    Remainder,
    RuntimeOptions,
    StoreRef,
    num_batches,
)
from gnnkit.plan.sampling import (
    HGTSampling,
    LayerSampling,
    NeighborSampling,
    PPRChannel,
    PPRSampling,
    Sampling,
    SubgraphType,
    TemporalComparison,
    TemporalStrategy,
)

__all__ = [
    "AnchorLabels",
    "Batching",
    "ExcludeEdges",
    "HGTSampling",
    "InputAnchors",
    "InputLinks",
    "InputNodes",
    "Inputs",
    "LABEL_COUNTS",
    "LABEL_KINDS",
    "LABEL_NODES",
    "LabelLists",
    "LabelOutput",
    "LayerSampling",
    "LoaderPlan",
    "NegativeSampling",
    "NeighborSampling",
    "PLAN_VERSION",
    "PPRChannel",
    "PPRSampling",
    "Placement",
    "Remainder",
    "RuntimeOptions",
    "Sampling",
    "StoreRef",
    "SubgraphType",
    "TemporalComparison",
    "TemporalStrategy",
    "label_name",
    "num_batches",
]
