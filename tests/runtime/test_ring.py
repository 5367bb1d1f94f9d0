"""Slots, their owners, and shared blocks."""

from __future__ import annotations

import gc
import mmap
import os
import random
import subprocess
import sys
import textwrap
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnkit.runtime.ring import HUGE_PAGE, BlockPool, Ring, SharedBlock, slot_size
from tests.helpers.batches import to_pyg
from tests.helpers.graphs import random_source
from tests.helpers.shared_graphs import attached, shared


def test_a_slot_comes_back_with_its_last_view() -> None:
    ring = Ring(2, 4096)
    owner = object()
    assert ring.take(owner) == 0 and ring.take(owner) == 1 and ring.take(owner) is None
    tensor = torch.from_numpy(ring.lease(0, ring.slot_bytes)[100:200])[10:]
    gc.collect()
    assert ring.num_leased == 1 and ring.owner(0) is owner
    del tensor
    assert ring.num_leased == 0 and ring.owner(0) is None and ring.take(owner) == 0


def test_only_the_owner_gives_a_slot_back() -> None:
    ring = Ring(1, 4096)
    slot = ring.take("first")
    assert slot == 0
    ring.free(slot, "second")
    assert ring.owner(slot) == "first"
    ring.free(slot, "first")
    assert ring.take("second") == 0


def test_slots_are_returned_from_many_threads() -> None:
    ring = Ring(8, 4096)
    for round_ in range(50):
        leases = [ring.lease(slot, ring.slot_bytes) for number in range(8) if (slot := ring.take(number)) is not None]
        assert len(leases) == 8
        random.Random(round_).shuffle(leases)
        shares = [leases[i::4] for i in range(4)]
        del leases
        threads = [threading.Thread(target=share_.clear) for share_ in shares]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ring.num_leased == 0 and all(ring.owner(slot) is None for slot in range(8))


def test_a_lease_outlives_its_ring() -> None:
    before = len(os.listdir("/proc/self/fd"))
    ring = Ring(2, 4096)
    ring.take(1)
    array = ring.lease(0, ring.slot_bytes)
    array[:] = 7
    storage = weakref.ref(ring.block.storage)
    del ring
    assert int(array.sum()) == 7 * 4096 and storage() is not None
    del array
    assert storage() is None and len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("nbytes", "size"), [(0, 4096), (1, 4096), (4097, 8192), (HUGE_PAGE, HUGE_PAGE), (HUGE_PAGE + 1, 2 * HUGE_PAGE)])
def test_slot_sizes(nbytes: int, size: int) -> None:
    assert slot_size(nbytes) == size


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("nbytes", [100, HUGE_PAGE + 5, 6 << 20, 20 << 20, 40 << 20])
def test_the_first_block_has_pages_before_its_size_is_known(nbytes: int) -> None:
    """8 MiB of 32, of which the batch needs less, more, or more than there are."""
    pool = BlockPool(2, most_ahead=8 << 20)
    before = resident_bytes()
    pool.prepare(60)
    assert resident_bytes() - before < 10 << 20
    first = pool.lease(nbytes)
    first[:nbytes] = 7
    assert first.nbytes >= nbytes and resident_bytes() - before < slot_size(nbytes) + (4 << 20), "what is not needed has been given back"
    assert pool.num_leased_bytes == first.nbytes
    pool.prepare(60)
    second = pool.lease(nbytes)
    assert not np.shares_memory(first, second) and pool.num_leased_bytes == 2 * first.nbytes
    address = first.ctypes.data
    del first
    assert pool.lease(nbytes).ctypes.data == address


@pytest.mark.parametrize("nbytes", [HUGE_PAGE, 16 << 20])
def test_a_first_block_that_is_leased_while_it_gets_pages(nbytes: int) -> None:
    pool = BlockPool(2, most_ahead=256 << 20)
    thread = threading.Thread(target=pool.prepare, args=(60,))
    thread.start()
    block = pool.lease(nbytes)
    block[:] = 3
    thread.join(30)
    assert not thread.is_alive() and (block == 3).all()


def test_a_pool_that_is_cleared_gets_no_more_pages() -> None:
    pool, before = BlockPool(2, most_ahead=256 << 20), resident_bytes()
    thread = threading.Thread(target=pool.prepare, args=(60,))
    thread.start()
    while thread.is_alive():
        pool.clear()
    assert resident_bytes() - before < 4 << 20


def test_a_first_block_where_addresses_are_short() -> None:
    program = """
        import mmap, resource
        from gnnkit.runtime.ring import BlockPool
        taken = int(open("/proc/self/statm").read().split()[0]) * mmap.PAGESIZE
        resource.setrlimit(resource.RLIMIT_AS, (taken + (64 << 20), -1))
        pool = BlockPool(2, most_ahead=256 << 20)
        pool.prepare(60)
        print(pool.lease(5 << 20).nbytes)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=100, check=True)
    assert int(done.stdout) >= 5 << 20, "the first batch does without"


def test_a_block_is_shared_by_descriptor() -> None:
    block = SharedBlock.create("gnnkit-test", 10_000)
    assert block.nbytes == HUGE_PAGE and block.address % HUGE_PAGE == 0 and block.touched_bytes == 0
    other = SharedBlock.attach(os.dup(block.fd), writable=False)
    block.bytes[5000] = 9
    assert other.bytes[5000] == 9 and not other.bytes.flags.writeable
    with pytest.raises(PermissionError):  # nobody can cut it under the feet of the others
        os.ftruncate(other.fd, 4096)
    assert block.touched_bytes > 0


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_graphs_are_found_again(seed: int, knows_graph: bool) -> None:
    from gnnkit.datasets import graph_from_pyg

    source = random_source(np.random.default_rng(seed))
    graph = graph_from_pyg(to_pyg(source), weight="weight", with_edge=bool(seed % 2))
    copy = shared(graph)
    other = attached(copy, graph if knows_graph else None)
    assert_same_graph(copy.graph, graph)
    assert_same_graph(other.graph, graph)
    assert not knows_graph or other.graph.schema is graph.schema


def assert_same_graph(left: Any, right: Any) -> None:
    assert left.schema == right.schema and left.edge_dir == right.edge_dir
    for t in right.schema.node_types:
        assert list(left.schema.node_types[t].arrays) == list(right.schema.node_types[t].arrays)
        np.testing.assert_array_equal(left.node_bounds[t], right.node_bounds[t])
        for a, b in zip(left.nodes[t], right.nodes[t], strict=True):
            assert list(a.arrays) == list(b.arrays)
            for name in b.arrays:
                np.testing.assert_array_equal(a.arrays[name], b.arrays[name])
    for e in right.schema.edge_types:
        for c, d in zip(left.edges[e], right.edges[e], strict=True):
            pairs = [(c.indptr, d.indptr), (c.indices, d.indices), (c.edge_id, d.edge_id), (c.weight_prefix, d.weight_prefix)]
            for x, y in [*pairs, *((c.arrays[name], d.arrays[name]) for name in d.arrays)]:
                assert (x is None) == (y is None)
                if x is not None and y is not None:
                    assert x.dtype == y.dtype
                    np.testing.assert_array_equal(x, y)
