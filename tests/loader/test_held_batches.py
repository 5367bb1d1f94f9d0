"""Batches own their memory: hold them, pickle them, drop them anywhere, at any time."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import random
import subprocess
import sys
import threading
from typing import Any, ClassVar

import pytest
import torch

from gnnkit import GraphLoader, InProcess
from gnnkit.backends.inprocess import LoopSampling
from gnnkit.errors import MemoryLimitError
from tests.helpers.batches import digest, same
from tests.helpers.system import pretend_free_memory
from tests.loader.graphs import NUM_NODES, make, plain, seeds, typed


def test_held_batches_keep_their_values() -> None:
    with make(shuffle=True, backend=InProcess(num_threads=2), prefetch=0) as loader:
        held, digests = [], []
        for _ in range(3):
            for batch in loader:
                held.append(batch)
                digests.append(digest([batch]))
        for _ in range(2):  # blocks that come back are reused; the held ones are not among them
            list(loader)
        assert [digest([batch]) for batch in held] == digests
        del held[::2], digests[::2]
        gc.collect()
        list(loader)
        assert [digest([batch]) for batch in held] == digests
    assert [digest([batch]) for batch in held] == digests  # also after close()


def test_a_single_tensor_keeps_its_values() -> None:
    with make(typed(), input_nodes="paper") as loader:
        tensors = [batch["paper"].x[2:4] for batch in loader]
        copies = [tensor.clone() for tensor in tensors]
        for _ in range(3):
            list(loader)
    assert all(tensor.equal(kept) for tensor, kept in zip(tensors, copies, strict=True))


def test_batches_are_the_users_to_change() -> None:
    """Writing into a batch reaches neither the graph nor another batch."""
    data = plain()
    x, edge_attr = data.x.clone(), data.edge_attr.clone()
    with make(data) as loader:
        expected = [copy.deepcopy(batch) for batch in loader]
        for batch in loader:
            for _, value in batch:
                if isinstance(value, torch.Tensor):
                    value.zero_()
            batch.num_sampled_nodes.clear()
        loader.set_epoch(0)
        for batch, wanted in zip(loader, expected, strict=True):
            same(batch, wanted)
    assert data.x.equal(x) and data.edge_attr.equal(edge_attr)


def test_batches_are_dropped_from_other_threads() -> None:
    with make(backend=InProcess(num_threads=2), shuffle=True) as loader:
        for epoch in range(6):
            held = list(loader)
            digests = {id(batch): digest([batch]) for batch in held}
            rng = random.Random(epoch)
            rng.shuffle(held)
            shares = [held[i::3] for i in range(3)]
            del held

            def drop(share: list[Any]) -> None:
                while share:
                    share.pop()

            threads = [threading.Thread(target=drop, args=(share,)) for share in shares[1:]]
            for thread in threads:
                thread.start()
            for batch in shares[0]:
                assert digest([batch]) == digests[id(batch)]
            for thread in threads:
                thread.join()
        assert sorted(seeds(loader)) == list(range(NUM_NODES))


def test_batches_survive_their_loader() -> None:
    loader = make()
    iterator = iter(loader)
    first, second = next(iterator), next(iterator)
    expected = digest([first, second])
    del loader, iterator
    gc.collect()
    with make() as other:
        list(other)
    assert digest([first, second]) == expected


@pytest.mark.parametrize("data", [plain, typed])
def test_batches_are_pickled_and_saved(data: Any) -> None:
    with make(data(), input_nodes=None if data is plain else "paper") as loader:
        batches = list(loader)
    for batch in batches:
        same(pickle.loads(pickle.dumps(batch)), batch)
        same(copy.deepcopy(batch), batch)
        file = io.BytesIO()
        torch.save(batch, file)
        file.seek(0)
        same(torch.load(file, weights_only=False), batch)
        same(batch.clone(), batch)


def test_a_pickled_batch_is_no_larger_than_what_it_holds() -> None:
    """A tensor is a view of a block with the other tensors; pickling it takes none of those along."""
    with make() as loader:
        batch = loader.peek()
    nbytes = sum(value.nbytes for _, value in batch if isinstance(value, torch.Tensor))
    block = batch.x.untyped_storage().nbytes()
    assert len(pickle.dumps(batch)) < nbytes + block + 6000
    assert block == batch.x.nbytes


def test_holding_more_than_fits_is_an_error_with_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [1 << 40]
    pretend_free_memory(monkeypatch, lambda: free[0])
    with make(shuffle=True) as loader:
        held = [batch for batch, _ in zip(loader, range(3), strict=False)]
        free[0] = 0
        with pytest.raises(MemoryLimitError, match=r"needs .* MB.*0 MB are free.*held take .* MB") as caught:
            for batch in loader:
                held.append(batch)
        assert "drop batches" in str(caught.value.hint)
        values = digest(held)
        free[0] = 1 << 40
        assert sorted(seeds(loader)) == list(range(NUM_NODES))
        assert digest(held) == values


_LIST_EVERYTHING = """
import psutil
import torch
from torch_geometric.data import Data
from gnnkit import GraphLoader
from gnnkit.errors import MemoryLimitError
from gnnkit.runtime import ring

process, start = psutil.Process(), psutil.Process().memory_info().rss
ring.available_memory = lambda: max(0, start + (600 << 20) - process.memory_info().rss)  # a machine with 600 MB to spare
data = Data(x=torch.ones(20_000, 256), edge_index=torch.randint(0, 20_000, (2, 200_000)))
held = []
with GraphLoader.from_pyg(data, num_neighbors=[5, 5], batch_size=512, progress=False) as loader:
    try:
        for _ in range(10):
            held.extend(loader)
    except MemoryLimitError as error:
        print(len(held), sum(batch.x.nbytes for batch in held) >> 20, (process.memory_info().rss - start) >> 20, error)
        held.clear()
        del error
    print(sum(batch.batch_size for batch in loader))
"""


@pytest.mark.slow
def test_a_list_of_everything_stops_before_memory_does() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", _LIST_EVERYTHING], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    count, held_mib, used_mib, *_ = first.split()
    assert int(count) > 5 and int(held_mib) > 100 and int(used_mib) < 600
    assert "MB are free" in first and last == "20000"


class InThreads(InProcess):
    """However quick the loop is: threads sample, one batch after the other."""

    loop_sampling: ClassVar = LoopSampling(small_s=0.0)


def test_a_block_goes_back_once_everything_on_it_is_gone() -> None:
    with make(backend=InThreads(num_threads=1), prefetch=0) as loader:
        list(loader)
        addresses = set()
        for _ in range(3):
            for batch in loader:
                addresses.add(batch.n_id.data_ptr())
                del batch
    assert len(addresses) <= 4


@pytest.mark.slow
def test_memory_stays_where_it_is_over_many_epochs() -> None:
    """No growth: what is leased goes back, whoever held it."""
    with make(shuffle=True, backend=InProcess(num_threads=2)) as loader:

        def leased() -> int:
            gc.collect()
            return loader.status().buffer_bytes  # what the card shows

        list(loader)
        before = leased()
        for _ in range(20):
            for _batch in loader:
                pass
            del _batch
        assert leased() <= before + (1 << 17)


def test_loaders_hold_no_more_than_one_copy_of_the_users_features() -> None:
    data = plain()
    with GraphLoader.from_pyg(data, num_neighbors=[2], progress=False) as loader:
        assert loader.pipeline.graph.arrays.nodes["node"][0].arrays["x"].ctypes.data == data.x.data_ptr()
