"""The known defects of graphlearn-torch, and what gnnkit does about them."""

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
        "only Glt() starts it, in processes of its own, on one interface and with a rendezvous store on that interface",
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
    Defect(
        "GLT-8",
        "<=0.2.4",
        "a batch whose sampling raises is logged and left out, and a worker that dies is not noticed: the loader waits for ever",
        "Glt() has its sampler send the error instead, and watches its workers",
        "errors are sent to the loader, and workers are watched",
    ),
    Defect(
        "GLT-9",
        "<=0.2.4",
        "sampling on the CPU draws with replacement where a node has more neighbours than asked for; all workers get the same random seed",
        "the first is documented; Glt() gives each worker a seed of its own",
        "sampling without replacement is released",
    ),
    Defect(
        "GLT-10",
        "<=0.2.4",
        "sampling a typed graph fails without any labels, and where only some node types or edge types have features",
        "Glt() gives every type a row of features with labels in it; DistDataset of a graph without labels has one of no type",
        "types without features or labels are left out of batches",
    ),
    Defect(
        "GLT-11",
        "<=0.2.4",
        "sampling a homogeneous batch in which no seed has a neighbour fails",
        "Glt() walks the hops of homogeneous graphs itself, with the native sampler",
        "it does not fail",
    ),
    Defect(
        "GLT-12",
        "<=0.2.4",
        "the shared-memory channel blocks for ever after a message larger than itself, ignores strides, and outlives killed processes",
        "Glt() checks sizes before sending, sends contiguous copies, and has the system remove the memory with its last process",
        "the channel does all three",
    ),
    Defect(
        "GLT-13",
        "<=0.2.4",
        "the bound on a batch's nodes, which memory is set aside for, is no number for a fan-out of -1 and overflows for large ones",
        "Glt() bounds it by the number of nodes",
        "the bound is at most the number of nodes",
    ),
    Defect(
        "GLT-14",
        "<=0.2.4",
        "weighted sampling returns neighbours of weight 0; a typed graph in which hop 1 found nothing is sampled from its seeds again",
        "Glt() refuses weights, and fan-outs of 0 that are followed by others",
        "neither happens",
    ),
)
