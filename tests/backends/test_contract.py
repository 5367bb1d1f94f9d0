"""What every backend promises, tried on each of them."""

from __future__ import annotations

import copy
import gc
import io
import itertools
import json
import os
import pickle
import random
import signal
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from gnnkit import Colocated, GraphLoader, InProcess
from gnnkit.backends import backend_from_json
from gnnkit.errors import LoaderClosed, PlanError, SamplingError
from tests.backends.setups import BACKENDS, COLOCATED, loader_of
from tests.helpers.batches import digest, same
from tests.helpers.graphs import ArraySource, random_source
from tests.helpers.waiting import HANG_S, is_readable, wait_until
from tests.loader.graphs import NUM_NODES, make, plain, seeds, typed

EVERYTHING = list(range(NUM_NODES))


# Quick are one of each; GraphStore's servers take a second to start.
TRIED = [name if name in ("InProcess-2", "Colocated-2", "OnDevice") else pytest.param(name, marks=pytest.mark.slow) for name in BACKENDS]


@pytest.fixture(scope="module", params=TRIED)
def shared(request: pytest.FixtureRequest) -> Iterator[GraphLoader]:
    """A loader that several tests use one after another, as cells of a notebook do."""
    with loader_of(request.param) as loader:
        yield loader


@pytest.fixture
def loader(shared: GraphLoader) -> GraphLoader:
    shared.set_epoch(0)
    return shared


@cache
def expected(epoch: int) -> list[Any]:
    """An epoch of the same plan in one thread of this process."""
    with loader_of("inprocess", backend=InProcess(1)) as reference:
        reference.set_epoch(epoch)
        return list(reference)


def assert_epoch(batches: list[Any], epoch: int, first: int = 0) -> None:
    wanted = expected(epoch)[first:]
    assert len(batches) == len(wanted)
    for batch, other in zip(batches, wanted, strict=True):
        same(batch, other)


# Batches ------------------------------------------------------------------------------------------------------------------


@pytest.mark.core
def test_batches_are_the_same_everywhere(loader: GraphLoader) -> None:
    for epoch in range(3):
        assert_epoch(list(loader), epoch)


def test_peek_and_sample_are_the_same_everywhere(loader: GraphLoader) -> None:
    iterator = iter(loader)
    next(iterator)
    with loader_of("inprocess") as reference:
        reference.set_epoch(1)
        same(loader.peek(), reference.peek())
        for ids in ([3, 1, 2], list(range(NUM_NODES)), []):
            same(loader.sample(ids, epoch=4, index=2), reference.sample(ids, epoch=4, index=2))
    rest = list(iterator)
    assert_epoch(rest, 0, first=1)


@pytest.mark.parametrize("name", TRIED)
def test_a_batch_that_is_too_large_is_refused_by_its_name(name: str) -> None:
    """Wherever it is sampled; loaders beside this one keep the bound, until another is given."""
    sizes = [batch.num_nodes for batch in expected(0)]
    first = next(index for index, size in enumerate(sizes) if size > sizes[0])
    said = f"(?s)batch {first} of epoch 0 has {sizes[first]} nodes, more than max_nodes={sizes[0]}.*a smaller batch_size"

    def refused(loader: GraphLoader) -> None:
        batches = iter(loader)
        assert [next(batches).num_nodes for _ in range(first)] == sizes[:first]
        with pytest.raises(SamplingError, match=said):
            next(batches)

    with loader_of(name, max_nodes=sizes[0]) as loader:
        refused(loader)
        with loader.with_backend("inprocess") as beside, loader.with_backend("inprocess", max_nodes=max(sizes)) as larger:
            refused(beside)
            assert_epoch(list(larger), 0)


@cache
def typed_source() -> ArraySource:
    """A random typed graph with enough seeds for several batches."""
    for seed in itertools.count():
        source = random_source(np.random.default_rng(seed), max_nodes=60, max_edges=400, num_node_types=3, num_edge_types=4)
        first = next(iter(source.splits))
        if source.schema.node_types[first].num_nodes >= 45 and source.schema.num_edges > 300:
            return source
    raise AssertionError


# How many processes there are makes no difference to a store: one pair of them.
STORES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("OnDevice", {"num_parts": 3, "partition": "ldg", "weight": "weight"}, {"num_neighbors": [3, -1], "replace": True, "with_edge": True}),
    ("OnDevice", {"num_parts": 2, "edge_dir": "out"}, {"num_neighbors": [-1, 2], "rank": 1, "world_size": 3, "remainder": "pad"}),
    ("Colocated-1", {"num_parts": 1}, {"num_neighbors": [4, 3]}),
    ("Colocated-2", {"num_parts": 2, "partition": "random", "edge_dir": "out"}, {"num_neighbors": [-1, 2], "remainder": "pad"}),
    ("Colocated-1", {"num_parts": 3, "partition": "ldg", "weight": "weight"}, {"num_neighbors": [3, 3], "replace": True}),
    ("Colocated-1", {"num_parts": 3, "partition": "metis", "weight": "weight"}, {"num_neighbors": [3, 3], "rank": 1, "world_size": 3}),
    ("Colocated-1", {"num_parts": 2, "partition": "frequency"}, {"num_neighbors": [5], "with_edge": True, "memory_budget": 0}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "build", "options"), STORES, ids=lambda value: value if isinstance(value, str) else "")
def test_stores_of_any_kind(tmp_path: Path, name: str, build: dict[str, Any], options: dict[str, Any]) -> None:
    common = {"batch_size": 7, "shuffle": True, "progress": False, "store_dir": tmp_path, **build, **options}
    with (
        GraphLoader.from_source(typed_source(), backend=InProcess(1), **common) as reference,
        GraphLoader.from_source(typed_source(), backend=BACKENDS[name], **common) as loader,
    ):
        for _ in range(2):
            for batch, wanted in zip(loader, reference, strict=True):
                same(batch, wanted)
        same(loader.peek(), reference.peek())


@pytest.mark.parametrize("name", ["Colocated-1", "OnDevice"])
def test_graphs_in_memory(name: str) -> None:
    data = typed()
    for options in ({"input_nodes": "paper"}, {"input_nodes": ("tag", torch.tensor([5, 1, 7])), "edge_dir": "out", "with_edge": True}):
        with make(data, backend=InProcess(1), **options) as reference, make(data, backend=BACKENDS[name], **options) as loader:
            for batch, wanted in zip(loader, reference, strict=True):
                same(batch, wanted)
    with make(plain(), backend=BACKENDS[name], input_nodes="valid") as loader:  # a split lives in the user's object only
        assert sorted(int(i) for batch in loader for i in batch.n_id[: batch.batch_size]) == list(range(3, NUM_NODES, 5))


def test_several_threads_in_a_worker() -> None:
    with loader_of("", backend=Colocated(1, threads_per_worker=3, worker_concurrency=1)) as loader:
        for epoch in range(3):
            assert_epoch(list(loader), epoch)


def test_no_batches_at_all() -> None:
    with make(input_nodes=[], backend=Colocated(1)) as loader:
        assert list(loader) == [] and len(loader) == 0 and len(loader.sample([1, 2]).input_id) == 2


# Epochs -------------------------------------------------------------------------------------------------------------------


def test_every_seed_once_whatever_happened_before(loader: GraphLoader) -> None:
    next(iter(loader))  # dropped at once
    for batch in loader:  # left
        del batch
        break
    with pytest.raises(ZeroDivisionError):
        for _ in loader:
            _ = 1 / 0
    loader.peek()
    for epoch in range(3, 6):
        batches = list(loader)
        assert sorted(seeds(batches)) == EVERYTHING
        assert_epoch(batches, epoch)


def test_many_epochs_broken_off_at_once(loader: GraphLoader) -> None:
    """Answers of old epochs arrive in later ones, and only give their slots back."""
    for _ in range(50):
        next(iter(loader))
    assert_epoch(list(loader), 50)


def test_a_second_iteration_ends_the_first(loader: GraphLoader) -> None:
    first = iter(loader)
    next(first)
    second = iter(loader)
    next(second)
    with pytest.raises(LoaderClosed, match="newer"):
        next(first)
    assert_epoch(list(second), 1, first=1)


def test_of_threads_that_begin_together_one_has_the_epoch_and_the_others_an_error(loader: GraphLoader) -> None:
    """Each epoch comes whole or ends with the error, whichever thread is the later one."""
    together = threading.Barrier(2)

    def take(found: list[tuple[int, str]]) -> None:
        together.wait(HANG_S)
        number, said = 0, "whole"
        try:
            for batch in loader:
                number += batch.batch_size
        except LoaderClosed as error:
            said = str(error)
        found.append((number, said))

    for _ in range(60):
        found: list[tuple[int, str]] = []
        threads = [threading.Thread(target=take, args=(found,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ("whole" in (said := [text for _, text in found])) and len(found) == 2, found
        assert all(number == NUM_NODES for number, text in found if text == "whole"), found
        assert all("newer" in text for text in said if text != "whole"), found


@pytest.mark.parametrize("backend", [InProcess(1), Colocated(1)], ids=["InProcess", "Colocated"])
def test_an_iteration_that_waits_in_another_thread_takes_nothing_of_a_newer_one(backend: Any) -> None:
    ends = torch.from_numpy(np.random.default_rng(0).integers(0, 20_000, (2, 400_000)))
    graph = Data(x=torch.arange(20_000.0)[:, None], edge_index=ends)  # batches take long enough to be waited for
    options = {"num_neighbors": [15, 10], "batch_size": 5_000, "input_nodes": None, "progress": False, "batch_timeout_s": 20.0}
    with GraphLoader.from_pyg(graph, shuffle=False, backend=backend, **options) as loader:
        for _ in range(8):
            old, said = iter(loader), []

            def take(old: Any = old, said: list[str] = said) -> None:
                try:
                    next(old)
                except LoaderClosed as error:
                    said.append(str(error))

            waiting = threading.Thread(target=take)
            waiting.start()
            firsts = [int(batch.input_id[0]) for batch in loader]
            waiting.join()
            assert firsts == [0, 5_000, 10_000, 15_000] and all("newer" in text for text in said)


@pytest.mark.core
def test_resuming_in_the_middle(loader: GraphLoader) -> None:
    iterator = iter(loader)
    for _ in range(6):
        next(iterator)
    state = loader.state_dict()
    list(iterator)
    loader.load_state_dict(state)
    assert_epoch(list(loader), 0, first=6)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_plan_names_its_backend(name: str) -> None:
    value = BACKENDS[name].to_json()
    assert backend_from_json(json.loads(json.dumps(value))) == BACKENDS[name]


# Memory -------------------------------------------------------------------------------------------------------------------


@pytest.mark.core
def test_held_batches_keep_their_values(loader: GraphLoader) -> None:
    """More than there are slots, and ten times as many."""
    held = [batch for _ in range(7) for batch in loader]
    assert len(held) > 100
    for epoch in range(7):
        assert_epoch(held[epoch * 15 : (epoch + 1) * 15], epoch)
    del held[::2]
    kept = [digest([batch]) for batch in held]
    list(loader)
    assert [digest([batch]) for batch in held] == kept


def test_batches_are_dropped_from_other_threads(loader: GraphLoader) -> None:
    for epoch in range(4):
        held = list(loader)
        random.Random(epoch).shuffle(held)
        shares = [held[i::3] for i in range(3)]
        del held
        threads = [threading.Thread(target=share.clear) for share in shares]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert_epoch(list(loader), 4)


def test_single_tensors_keep_their_values(loader: GraphLoader) -> None:
    tensors = [batch.x[2:4] for batch in loader]
    list(loader)
    assert all(tensor.equal(batch.x[2:4]) for tensor, batch in zip(tensors, expected(0), strict=True))


def test_tensors_that_autograd_keeps(loader: GraphLoader) -> None:
    weight = torch.ones(8, 1, requires_grad=True)
    losses = [(batch.x @ weight).sum() for batch in loader]
    list(loader)
    torch.stack(losses).sum().backward()
    wanted = torch.stack([batch.x.sum(0) for batch in expected(0)]).sum(0).view(-1, 1)
    assert weight.grad is not None and torch.allclose(weight.grad, wanted, atol=1e-4)


def test_batches_are_the_users_to_change_and_to_pickle(loader: GraphLoader) -> None:
    for batch in loader:
        same(pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch))
        batch.x.zero_()
        batch.edge_index.zero_()
    assert_epoch(list(loader), 1)


def test_slots_come_back(loader: GraphLoader) -> None:
    if loader.plan.backend["kind"] == "OnDevice":  # its batches lie in memory of PyTorch's, and in no slots
        return
    addresses = set()
    for _ in range(10):
        for batch in loader:
            addresses.add(batch.n_id.untyped_storage().data_ptr())
            del batch
    gc.collect()
    assert len(addresses) < 30


# One of each that owns the memory of batches.
@pytest.mark.parametrize("name", ["InProcess-2", "OnDevice", "Colocated-2", pytest.param("GraphStore-2", marks=pytest.mark.slow)])
def test_batches_survive_their_loader(name: str) -> None:
    loader = loader_of(name)
    iterator = iter(loader)
    first, second = next(iterator), next(iterator)
    loader.close()
    loader.close()
    with pytest.raises(LoaderClosed):
        next(iterator)
    with pytest.raises(LoaderClosed):
        loader.peek()
    del loader, iterator
    gc.collect()
    with loader_of("inprocess") as other:
        list(other)
    same(first, expected(0)[0])
    same(second, expected(0)[1])


# Several at once ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COLOCATED[1:2])
def test_two_loaders_at_once(name: str, tmp_path: Path) -> None:
    with loader_of(name) as left, left.for_split("valid", batch_size=3) as right, loader_of(name, seed=3) as third:
        assert left.pipeline.graph is right.pipeline.graph
        for a, b, c in itertools.zip_longest(left, right, third):
            assert a is not None and c is not None and (b is None or b.batch_size <= 3)
        left.close()
        assert len(list(right)) == 7
        assert sorted(seeds(third)) == EVERYTHING


def test_another_thread_may_sample_meanwhile(loader: GraphLoader) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(loader.sample([i]) for i in range(20)))
    thread.start()
    batches = list(loader)
    thread.join()
    assert_epoch(batches, 0)
    assert [int(batch.n_id[0]) for batch in found] == list(range(20))


# Other processes ----------------------------------------------------------------------------------------------------------


def in_a_fork(calls: list[Callable[[], object]]) -> list[str]:
    """What each call ends in, in one forked child of this process: its value, or its error's type."""
    receiving, sending = os.pipe()
    child = os.fork()
    if not child:
        try:
            for call in calls:
                try:
                    said = str(call())
                except BaseException as error:
                    said = f"{type(error).__name__}: {error}"
                os.write(sending, json.dumps(said).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(sending)
    try:
        with open(receiving) as answers:
            ends = is_readable(answers.fileno(), HANG_S)
            assert ends, "the child hangs"
            watchdog = threading.Timer(HANG_S, os.kill, (child, signal.SIGKILL))
            watchdog.start()
            said = [json.loads(line) for line in answers]
            watchdog.cancel()
    finally:
        os.waitpid(child, 0)
    return said


FORKS = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


@FORKS
def test_a_forked_child_opens_the_loader_again(loader: GraphLoader) -> None:
    iterator = iter(loader)
    first = next(iterator)
    if loader.plan.backend["kind"] == "InProcess":  # batches that are ready are the parent's, too
        assert wait_until(lambda: loader.status().batches_ready > 0)
    as_it_was: list[Callable[[], object]] = [
        lambda: len(loader),
        lambda: loader.epoch,
        lambda: loader.status().state,
        lambda: bool(repr(loader)),
        lambda: first.batch_size,
    ]
    again: list[Callable[[], object]] = [
        lambda: assert_epoch(list(loader), 1),
        lambda: assert_epoch(list(loader.for_split(None, shuffle=True)), 0),
        lambda: same(loader.peek(), expected(2)[0]),
        lambda: len(list(loader.resume())),
        lambda: loader.epoch,
        loader.close,
        lambda: next(iter(loader)),
        lambda: gc.collect() >= 0,
    ]
    for epoch in range(3):
        expected(epoch)
    said = in_a_fork([*as_it_was, lambda: next(iterator), *again])
    assert said[:5] == ["15", "0", "closed", "True", str(first.batch_size)]
    assert said[5].startswith("LoaderClosed: ") and "forked" in said[5]
    assert said[6:12] == ["None", "None", "None", "0", "1", "None"]
    assert said[12].startswith("LoaderClosed: the loader is closed") and said[13] == "True"
    assert in_a_fork([loader.close, lambda: gc.collect() >= 0]) == ["None", "True"], "what the child gives up is its own"
    assert_epoch([first, *iterator], 0)


@FORKS
def test_a_forked_child_has_loaders_of_its_own() -> None:
    """As DataLoader's workers do, whatever the parent is at."""
    with loader_of("InProcess-2") as loader:
        next(iter(loader))

        def own() -> bool:
            with loader_of("InProcess-2") as other:
                assert_epoch(list(other), 0)
            return True

        expected(0)
        assert in_a_fork([own]) == ["True"]


def saved(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


SENT: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "cloudpickle": lambda value: pickle.loads(cloudpickle.dumps(value)),
    "torch.save": saved,
}


@pytest.mark.parametrize(
    ("way", "name"),
    [
        *((way, "InProcess-2") for way in SENT),
        ("pickle", "Colocated-2"),
        pytest.param("pickle", "GraphStore-2", marks=pytest.mark.slow),
    ],
)
def test_a_loader_travels_as_its_plan(way: str, name: str) -> None:
    """With its siblings on the same graph; it begins with the epoch that would be the next."""
    with loader_of(name) as loader, loader.for_split([5, 3, 8], shuffle=False) as split:
        iterator = iter(loader)
        first = next(iterator)
        other, sibling = SENT[way]((loader, split))
        with other, sibling:
            assert other.epoch == -1 and other.plan == loader.plan and len(other) == 15
            assert_epoch(list(other), 1)
            assert seeds(sibling) == [0, 1, 2] and sibling.pipeline.graph is other.pipeline.graph
            with pytest.raises(PlanError, match="can be neither pickled nor copied"):
                SENT[way](iterator)
        assert_epoch([first, *iterator], 0)


def test_a_closed_loader_does_not_travel() -> None:
    loader = loader_of("inprocess")
    loader.close()
    with pytest.raises(LoaderClosed, match="the loader is closed"):
        pickle.dumps(loader)
