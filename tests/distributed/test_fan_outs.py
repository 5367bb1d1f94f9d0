"""Fan-outs with label edges, sampler options and sampling configurations."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnkit.datasets import ArraySpec, EdgeTypeSchema, GraphSchema, NodeTypeSchema
from gnnkit.distributed import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    DatasetSchema,
    FeatureInfo,
    KHopNeighborSamplerOptions,
    SamplerOptions,
    create_sampling_config,
    is_label_edge_type,
    label_edge_type_to_message_passing_edge_type,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
    patch_fanout_for_sampling,
    resolve_sampler_options,
    reverse_edge_type,
    select_label_edge_types,
    worker_seed_ranges,
)
from gnnkit.errors import PlanError
from gnnkit.plan import num_batches

U2I, I2U = ("user", "to", "item"), ("item", "to", "user")
LABEL = message_passing_to_positive_label(U2I)
WORDS = st.text("abc_", min_size=1, max_size=8)
EDGE_TYPES = st.tuples(WORDS, WORDS, WORDS)


@pytest.mark.parametrize(
    ("edge_types", "num_neighbors", "expected"),
    [
        ([U2I, I2U, LABEL], {U2I: [2, 7], I2U: [3, 4]}, {U2I: [2, 7], I2U: [3, 4]}),
        ([U2I, I2U, LABEL], [1, 3], {U2I: [1, 3], I2U: [1, 3]}),
        ([U2I, I2U], (5,), {U2I: [5], I2U: [5]}),
        ([U2I, I2U], {U2I: [-1, 0], I2U: [0, -1]}, {U2I: [-1, 0], I2U: [0, -1]}),
        (None, [1, 3], [1, 3]),
        (None, [-1, 3], [-1, 3]),
    ],
)
def test_fan_outs_are_patched(edge_types: Any, num_neighbors: Any, expected: Any) -> None:
    before = copy.deepcopy(num_neighbors)
    patched = patch_fanout_for_sampling(edge_types, num_neighbors)
    assert patched == expected
    # The caller's own lists are neither changed nor handed on.
    (patched if isinstance(patched, list) else patched[U2I]).append(99)
    assert num_neighbors == before


@pytest.mark.parametrize(
    ("edge_types", "num_neighbors", "words"),
    [
        (None, {U2I: [2, 7]}, "homogeneous"),
        (None, [-2, 3], "-2"),
        (None, [], "empty"),
        (None, [1.5], "1.5"),
        ([U2I, I2U], {U2I: [2, 7, 10], I2U: [3, 4]}, "different numbers of hops"),
        ([U2I, I2U], {U2I: [2, 7]}, "says nothing about"),
        ([U2I, I2U], {U2I: [2, -7], I2U: [3, 4]}, "-7"),
        ([I2U], {U2I: [2, 7], I2U: [3, 4]}, "unknown edge type"),
        ([U2I, I2U, LABEL], {U2I: [1], I2U: [1], LABEL: [1]}, "label edge types"),
        ([U2I, I2U, LABEL], {U2I: [1], I2U: [1], LABEL: [0]}, "label edge types"),
        ([LABEL], [1, 3], "all labels"),
    ],
)
def test_fan_outs_that_do_not_fit(edge_types: Any, num_neighbors: Any, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        patch_fanout_for_sampling(edge_types, num_neighbors)


@given(EDGE_TYPES)
def test_label_types_and_back(edge_type: tuple[str, str, str]) -> None:
    positive, negative = message_passing_to_positive_label(edge_type), message_passing_to_negative_label(edge_type)
    assert positive[1].endswith("_gigl_positive") and negative[1].endswith("_gigl_negative")
    assert not is_label_edge_type(edge_type)
    for label in (positive, negative):
        assert is_label_edge_type(label)
        assert label_edge_type_to_message_passing_edge_type(label) == edge_type
        for again in (message_passing_to_positive_label, message_passing_to_negative_label):
            with pytest.raises(PlanError, match="label edge type already"):
                again(label)
    with pytest.raises(PlanError, match="is no label edge type"):
        label_edge_type_to_message_passing_edge_type(edge_type)
    assert select_label_edge_types(edge_type, [edge_type, negative, positive]) == (positive, negative)
    assert select_label_edge_types(edge_type, iter([edge_type, positive])) == (positive, None)
    with pytest.raises(PlanError, match="no positive labels"):
        select_label_edge_types(edge_type, [edge_type, negative])


@given(EDGE_TYPES)
def test_reversing_twice_changes_nothing(edge_type: tuple[str, str, str]) -> None:
    assert reverse_edge_type(reverse_edge_type(edge_type)) == edge_type
    assert reverse_edge_type(edge_type)[0] == edge_type[2]


@pytest.mark.parametrize(
    ("length", "batch_size", "drop_last", "expected"),
    [(0, 2, False, 0), (1, 2, True, 0), (1, 2, False, 1), (5, 2, False, 3), (5, 2, True, 2)],
)
def test_numbers_of_batches(length: int, batch_size: int, drop_last: bool, expected: int) -> None:
    assert num_batches(length, batch_size, drop_last) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((7, 2, 3), [(0, 2), (2, 4), (4, 7)]),
        ((3, 2, 3), [(0, 2), (2, 2), (2, 3)]),
        ((0, 4, 2), [(0, 0), (0, 0)]),
        ((10, 2, 3), [(0, 4), (4, 8), (8, 10)]),
        ((5, 8, 1), [(0, 5)]),
    ],
)
def test_seed_ranges(arguments: tuple[int, int, int], expected: list[tuple[int, int]]) -> None:
    assert worker_seed_ranges(*arguments) == expected


@given(st.integers(0, 500), st.integers(1, 40), st.integers(1, 9))
def test_seed_ranges_hold_every_seed_once_in_whole_batches(num_seeds: int, batch_size: int, num_workers: int) -> None:
    ranges = worker_seed_ranges(num_seeds, batch_size, num_workers)
    assert len(ranges) == num_workers
    assert [seed for start, end in ranges for seed in range(start, end)] == list(range(num_seeds))
    assert all((end - start) % batch_size == 0 for start, end in ranges[:-1])
    whole = [(end - start) // batch_size for start, end in ranges]
    assert max(whole) - min(whole) <= 1 and whole == sorted(whole, reverse=True)
    for drop_last in (False, True):
        assert sum(num_batches(end - start, batch_size, drop_last) for start, end in ranges) == num_batches(
            num_seeds, batch_size, drop_last
        )


@pytest.mark.parametrize("arguments", [(-1, 2, 1), (1, 0, 1), (1, 2, 0)])
def test_seed_ranges_of_nothing(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(PlanError, match="cannot deal"):
        worker_seed_ranges(*arguments)


def test_sampler_options() -> None:
    assert resolve_sampler_options([2, 3]) == KHopNeighborSamplerOptions([2, 3])
    given_options = KHopNeighborSamplerOptions((2, 3))
    assert resolve_sampler_options([2, 3], given_options) is given_options
    by_type = KHopNeighborSamplerOptions({U2I: [1]})
    assert resolve_sampler_options({U2I: (1,)}, by_type) is by_type
    assert pickle.loads(pickle.dumps(by_type)) == by_type
    for conflicting in ([2, 4], {U2I: [2, 3]}):
        with pytest.raises(PlanError, match="differ"):
            resolve_sampler_options(conflicting, given_options)
    with pytest.raises(PlanError, match="must be a SamplerOptions, got a dict"):
        resolve_sampler_options([2], {"num_neighbors": [2]})  # type: ignore[arg-type]


@dataclass(frozen=True)
class WalkOptions(SamplerOptions):
    """A sampler of somebody's own."""

    length: int = 4
    seen: list[Any] = field(default_factory=list, compare=False)

    def check_num_neighbors(self, num_neighbors: Any) -> None:
        self.seen.append(num_neighbors)
        if len(num_neighbors) > self.length:
            raise PlanError("too many hops")


def test_sampler_options_are_open() -> None:
    options = WalkOptions()
    assert resolve_sampler_options([2], options) is options
    assert options.seen == [[2]]
    with pytest.raises(PlanError, match="too many hops"):
        resolve_sampler_options([1] * 5, options)
    with pytest.raises(TypeError):
        SamplerOptions()  # type: ignore[abstract]


FLOATS = FeatureInfo(3, torch.float32)


@pytest.mark.parametrize(
    ("schema", "with_edge"),
    [
        (DatasetSchema(False, None, FLOATS, None, "in"), False),
        (DatasetSchema(False, None, None, FLOATS, "out"), True),
        (DatasetSchema(False, [U2I, I2U], {"user": FLOATS}, {U2I: FLOATS}, "in"), True),
        (DatasetSchema(False, [U2I, I2U], {"user": FLOATS}, {}, "in"), False),
    ],
)
def test_sampling_configs(schema: DatasetSchema, with_edge: bool) -> None:
    config = create_sampling_config([4, -1], schema, batch_size=8, shuffle=True)
    fan_out = [4, -1] if schema.edge_types is None else {U2I: [4, -1], I2U: [4, -1]}
    assert (config.num_neighbors, config.batch_size, config.shuffle, config.drop_last) == (fan_out, 8, True, False)
    assert (config.with_edge, config.collect_features, config.with_neg, config.with_weight) == (with_edge, True, False, False)
    assert (config.edge_dir, config.seed, config.sampling_type.name) == (schema.edge_dir, None, "NODE")
    assert create_sampling_config([4, -1], schema, 8, True) == config, "equal arguments must give equal configurations"
    assert create_sampling_config([1], schema, seed=7, with_weight=True, drop_last=True).seed == 7


@pytest.mark.parametrize("batch_size", [0, -1, 1.5, True])
def test_a_batch_size_that_makes_no_sense(batch_size: Any) -> None:
    with pytest.raises(PlanError, match="batch_size"):
        create_sampling_config([1], DatasetSchema(False, None, None, None, "in"), batch_size=batch_size)


NODE = DEFAULT_HOMOGENEOUS_NODE_TYPE
PASSING = DEFAULT_HOMOGENEOUS_EDGE_TYPE


def test_schemas_of_stored_graphs() -> None:
    x, y, attr = ArraySpec("float16", (5,)), ArraySpec("int64"), ArraySpec("bfloat16", (2, 3))
    plain = DatasetSchema.from_graph(GraphSchema.homogeneous(4, 3, {"x": x, "y": y}, {"weight": ArraySpec("float32")}), "in")
    assert plain == DatasetSchema(False, None, FeatureInfo(5, torch.float16), None, "in")
    typed = GraphSchema({"user": NodeTypeSchema(2, {"x": x}), "item": NodeTypeSchema(1)}, {U2I: EdgeTypeSchema(2, {"edge_attr": attr})})
    expected = DatasetSchema(False, [U2I], {"user": FeatureInfo(5, torch.float16)}, {U2I: FeatureInfo(6, torch.bfloat16)}, "out")
    assert DatasetSchema.from_graph(typed, "out") == expected
    label = message_passing_to_negative_label(PASSING)
    labelled = GraphSchema({NODE: NodeTypeSchema(2)}, {PASSING: EdgeTypeSchema(1), label: EdgeTypeSchema(1)})
    assert DatasetSchema.from_graph(labelled, "in") == DatasetSchema(True, [PASSING, label], None, None, "in")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((False, None, None, None, "both"), "edge_dir"),
        ((False, None, {"user": FLOATS}, None, "in"), "homogeneous dataset must be one FeatureInfo"),
        ((False, [U2I], None, FLOATS, "in"), "typed dataset must be a dict"),
        ((True, [U2I, LABEL], None, None, "in"), "not those of a homogeneous graph with labels"),
        ((True, None, None, None, "in"), "not those of a homogeneous graph with labels"),
    ],
)
def test_schemas_that_contradict_themselves(arguments: Any, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        DatasetSchema(*arguments)


@pytest.mark.parametrize("dim", [0, -1, 2.0, True])
def test_features_of_no_dimension(dim: Any) -> None:
    with pytest.raises(PlanError, match="dim"):
        FeatureInfo(dim, torch.float32)
