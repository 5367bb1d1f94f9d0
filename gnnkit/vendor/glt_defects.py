"""What is known to be wrong with graphlearn-torch, and what gnnkit does about it."""

from __future__ import annotations

from gnnkit.vendor.ogb import Defect

KNOWN_DEFECTS = (
    Defect(
        "GLT-1",
        "<=0.2.4",
        "the native library is built for the CUDA builds of torch 2.3 and 2.4, and the package cannot be imported without it",
        "where it does not load, a stand-in takes its place, whose members say what to install when they are used",
        "wheels for current torch exist, or the package imports without its native library",
    ),
    Defect(
        "GLT-2",
        "<=0.2.4",
        "`graphlearn_torch.utils.topo` imports torch_sparse, for which there are few wheels, to sort edges",
        "where torch_sparse cannot be imported, that one module is given `gnnkit.vendor.glt_sparse` under its name",
        "utils/topo.py no longer imports torch_sparse",
    ),
    Defect(
        "GLT-3",
        "<=0.2.4",
        "five modules of `graphlearn_torch.loader` have the default argument torch.device(0), which raises without a GPU from torch 2.5 on",
        "where it raises, these modules are compiled with torch.device('cuda', 0) instead",
        "a release has the string 'cuda:0' there, as upstream's main branch does",
    ),
    Defect(
        "GLT-4",
        "<=0.2.4",
        "importing it sets the environment variable TORCH_CPP_LOG_LEVEL",
        "the variable is put back after the import",
        "importing it leaves the environment alone",
    ),
    Defect(
        "GLT-5",
        "<=0.2.4",
        "its RPC starts once per process, listens on every interface, runs any pickle and can hang at start",
        "nothing in gnnkit starts it",
        "never: gnnkit has its own part service",
    ),
    Defect(
        "GLT-6",
        "<=0.2.4",
        "RangePartitionBook refuses parts without nodes, which small types have; GLTPartitionBook takes 8 bytes a node",
        "gnnkit has partition books of its own",
        "RangePartitionBook takes empty ranges",
    ),
    Defect(
        "GLT-7",
        "<=0.2.4",
        "DistGraph.get_edge_partitions fails on homogeneous graphs, and DistFeature[type, ids] on every graph",
        "gnnkit has classes of its own under these names",
        "both are fixed upstream and released",
    ),
)
