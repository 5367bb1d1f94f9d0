"""Answers of other hosts, changed after they were honest: the sampling host makes a batch or raises an error, and its memory stays its own.

One target for each answer. A case samples a batch whose walk needs it; every few cases no host lies, and the batch is that of one host.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gnnkit import BuildOptions
from gnnkit.cluster.network.requests import answer_from_value, answer_to_value, picks_from_value, picks_to_value
from gnnkit.cluster.network_child.receiver import walk_from_value
from gnnkit.errors import SamplingError
from gnnkit.plan import HGTSampling, InputLinks, LayerWiseSampling, NegativeSampling, NeighborSampling, PPRSampling
from gnnkit.runtime.remote import layout_to_json
from gnnkit.sampling.kinds import prepare
from gnnkit.sampling.owners import BadRequest
from gnnkit.sampling.subgraph import SampleRequest
from gnnkit.sampling.tables import address_of
from tests.cluster.parts.several_hosts import OwnersHere, inputs_of, received, receiver, sampled, sampler_on, spread_samplers
from tests.fuzz.mutations import mutated, mutated_json
from tests.fuzz.running import Case, Target
from tests.fuzz.targets import folder
from tests.helpers.graphs import random_source, stored
from tests.helpers.wires import packed, unpacked

# Every so often all hosts are honest.
CHECKED_EVERY = 50
_ENDS = (0, 1, -1, 7, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63), 10**6)
_DTYPES = ("int32", "int64", "uint8", "uint64", "float32", "int16", "bool")

Change = Callable[[Any], Any]


def changed(rng: random.Random, value: Any) -> Any:
    """A value in which one to three arrays have other numbers, another length or another dtype; as it arrives."""
    text, block = packed(value)
    if rng.random() < 0.2:
        text = json.dumps(mutated_json(rng, json.loads(text))).encode()
    arrived = unpacked(text, block)
    for _ in range(rng.choice((1, 1, 2, 3))):
        arrays = list(arrays_of(arrived))
        if arrays:
            old = rng.choice(arrays)
            arrived = with_array(arrived, old, spoiled(rng, old))
    return arrived


def arrays_of(value: Any) -> Iterator[np.ndarray]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from arrays_of(item)


def with_array(value: Any, old: np.ndarray, new: np.ndarray) -> Any:
    if value is old:
        return new
    if isinstance(value, dict):
        return {key: with_array(item, old, new) for key, item in value.items()}
    return type(value)(with_array(item, old, new) for item in value) if isinstance(value, (list, tuple)) else value


def spoiled(rng: random.Random, array: np.ndarray) -> np.ndarray:
    """An array with other numbers: single ones at the ends of what there is, several whose sum wraps to what it was, or longer."""
    how = rng.randrange(6)
    with np.errstate(invalid="ignore"):
        return _spoiled(rng, array, how)


def _spoiled(rng: random.Random, array: np.ndarray, how: int) -> np.ndarray:
    if how == 0:
        return array[: rng.randrange(len(array) + 1)] if array.ndim else array
    if how == 1:
        return np.concatenate([array, array]) if array.ndim else array
    if how == 2:
        return array.astype(rng.choice(_DTYPES))
    if how == 3 and array.ndim:
        return array.reshape(*array.shape, 1)
    values = array.astype(np.int64).reshape(-1)
    if how == 4 and len(values) >= 4:  # as int64, all four together are what they were
        places = rng.sample(range(len(values)), 4)
        values[places] += 1 << 62
    elif len(values):
        for _ in range(rng.choice((1, 1, 3))):
            values[rng.randrange(len(values))] = rng.choice((*_ENDS, int(values[rng.randrange(len(values))])))
    return values.reshape(array.shape) if rng.random() < 0.7 else values.astype(array.dtype).reshape(array.shape)


class Hosts(OwnersHere):
    """Other hosts, whose answers of one kind are changed while ``rng`` is set."""

    def __init__(self, what: str, *owners: Any, **options: Any) -> None:
        super().__init__(*owners, **options)
        self._what = what
        self.rng: random.Random | None = None

    def _arrived(self, what: str, value: Any, read: Callable[[Any], Any]) -> Any:
        lies = self.rng is not None and self._what == what
        try:
            return read(changed(self.rng, value) if lies and self.rng is not None and self.rng.random() < 0.7 else value)
        except (BadRequest, ValueError) as error:
            if not lies:
                raise
            raise SamplingError(f"it cannot be read: {error}") from error

    def expand(self, requests: Mapping[int, Any]) -> Callable[[], Mapping[int, Mapping[int, Any]]]:
        wait = super().expand(requests)

        def changed_picks() -> Mapping[int, Mapping[int, Any]]:
            many = [1 << 20] * 64
            told = {host: picks_to_value(picks, many, many) for host, picks in wait().items()}
            return {host: self._arrived("expand", value, picks_from_value) for host, value in told.items()}

        return changed_picks

    def answer(self, questions: Mapping[int, Any]) -> Callable[[], Mapping[int, Any]]:
        wait = super().answer(questions)

        def changed_answers() -> Mapping[int, Any]:
            found = {host: answer_to_value(answer) for host, answer in wait().items()}
            return {host: self._arrived(questions[host].what, value, answer_from_value) for host, value in found.items()}

        return changed_answers

    def rows(self, requests: Mapping[int, Any], take: Callable[[int, int, int], None]) -> Callable[[], None]:
        def wait() -> None:
            for host, request in requests.items():
                for number, rows in enumerate(self._owners[host].rows(request)):
                    lies = self.rng is not None and self._what == "rows"
                    block = rows if not lies or self.rng is None else np.frombuffer(mutated(self.rng, rows.tobytes()), np.uint8)
                    if len(block) != len(rows):  # the size is looked at where messages are received
                        raise SamplingError("it is not what was asked for")
                    take(host, number, address_of(block.copy()))

        return wait


def samplings(graph: Any, what: str) -> list[tuple[Any, Any]]:
    """Inputs and ways of sampling whose walks ask for such an answer."""
    types, edge_types = list(graph.schema.node_types), list(graph.schema.edge_types)
    fan_outs, counts = dict.fromkeys(edge_types, (3, -1)), dict.fromkeys(types, (9, 6))
    plain, nodes = NeighborSampling(fan_outs, with_edge=True), inputs_of(graph)
    every = {
        "degrees": [PPRSampling(edge_types=tuple(sorted(edge_types)), max_ppr_nodes=6, include_sampled_edges=True, with_edge=True)],
        "induce": [replace(plain, subgraph_type="induced"), replace(plain, subgraph_type="induced", disjoint=True)],
        "weights": [LayerWiseSampling(counts, "in", "weight", True)],
        "rows": [plain],
        "walk": [plain],
    }
    if what == "has_edges":
        return [(InputLinks(edge_types[0], "test", neg_sampling=NegativeSampling("binary", 2, strict=True)), plain)]
    if what == "expand":
        wide = {edge_type: (40, 40) for edge_type in edge_types}
        ways: list[Any] = [
            plain,
            replace(plain, weight="weight"),
            replace(plain, disjoint=True),
            NeighborSampling(wide, True, with_edge=True),
        ]
        ways += [HGTSampling(counts, "in", True), LayerWiseSampling(counts, "in", None, True), *every["degrees"], *every["weights"]]
        return [(nodes, way) for way in ways]
    return [(nodes, way) for way in every[what]]


def requests_of(rng: np.random.Generator, inputs: Any, graph: Any) -> SampleRequest:
    """A request for a batch of a few inputs."""
    if isinstance(inputs, InputLinks):
        ends = [graph.schema.node_types[inputs.edge_type[end]].num_nodes for end in (0, 2)]
        arrays = {name: rng.integers(0, count, 4) for name, count in zip(("src", "dst"), ends, strict=True)}
    else:
        arrays = {"node": rng.integers(0, graph.schema.node_types[inputs.node_type].num_nodes, 6)}
    count = len(next(iter(arrays.values())))
    return SampleRequest(int(rng.integers(1 << 60)), np.arange(count), arrays)


@contextmanager
def lies(what: str) -> Iterator[Case]:
    """Batches of a graph of three hosts, two of which lie in one kind of answer."""
    source = random_source(np.random.default_rng(6), max_nodes=60, max_edges=400, num_node_types=2, num_edge_types=3)
    with folder() as root:
        graph = stored(source, root / "store", BuildOptions(3, "random", with_edge=True, weight="weight")).arrays()
        made = []
        for inputs, sampling in samplings(graph, what):
            prepare(inputs, sampling, caches=False)
            parts = {0: (0,), 1: (1,), 2: (2,)}
            sampler, hosts = spread_samplers(graph, sampling, parts, inputs=inputs, owners=partial(Hosts, what))[0]
            made.append((inputs, sampling, hosts, sampler, sampler_on(graph, sampling, inputs=inputs)))
        count = 0

        def case(rng: random.Random) -> None:
            nonlocal count
            count += 1
            inputs, sampling, hosts, sampler, one = rng.choice(made)
            request = requests_of(np.random.default_rng(rng.randrange(1 << 30)), inputs, graph)
            if count % CHECKED_EVERY == 0:
                hosts.rng = None
                assert sampled(sampler, request) == sampled(one, request), "an honest batch is another one"
            hosts.rng = rng
            sampled(sampler, request)

        yield case


@contextmanager
def walks() -> Iterator[Case]:
    """Structures of servers, as a network child makes batches of them."""
    source = random_source(np.random.default_rng(6), max_nodes=60, max_edges=400, num_node_types=2, num_edge_types=3)
    with folder() as root:
        graph = stored(source, root / "store", BuildOptions(2, "random", with_edge=True)).arrays()
        ((inputs, sampling),) = samplings(graph, "walk")
        walker, one = sampler_on(graph, sampling, walks_only=True), sampler_on(graph, sampling)
        receiving = receiver(graph, sampling, {0: (0, 1)}, partial(Hosts, "walk"))

        def walk(request: SampleRequest) -> tuple[Any, np.ndarray, Sequence[Any]]:
            layout, block, *_ = walker.sample_all([request], lambda nbytes: np.zeros(max(1, nbytes), np.uint8))[0]
            return json.loads(json.dumps(layout_to_json(layout))), block, layout.fields

        def case(rng: random.Random) -> None:
            request = requests_of(np.random.default_rng(rng.randrange(1 << 30)), inputs, graph)
            layout, block, fields = walk(request)
            honest = walk_from_value((json.dumps(layout), block))
            if rng.random() < 1 / CHECKED_EVERY:
                assert sampled(receiving, received(honest)) == sampled(one, request), "an honest batch is another one"
            if rng.random() < 0.5:
                layout = mutated_json(rng, layout)
            else:
                field = rng.choice([field for field in fields if field.nbytes])
                values = block[field.offset : field.offset + field.nbytes].view(field.numpy_dtype)
                values[rng.randrange(len(values))] = np.array(rng.choice(_ENDS)).astype(values.dtype)
            try:
                structure = walk_from_value((json.dumps(layout), block))
            except BadRequest:
                return
            sampled(receiving, received(structure))

        yield case


TARGETS = (
    *(Target(f"answers: {what}", partial(lies, what)) for what in ("expand", "degrees", "has_edges", "induce", "weights", "rows")),
    Target("answers: walk", walks),
)
