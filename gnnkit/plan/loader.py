"""A loader's whole plan, with its batching, its limits, and the form in which batches are handed out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from gnnkit.arguments import checks_calls
from gnnkit.bounds import LARGEST, MOST_SECONDS, check_choice, check_flag, is_real, is_whole, shown
from gnnkit.errors import PlanError
from gnnkit.files import user_path
from gnnkit.plan.files import (
    DamagedPart,
    array_from_json,
    part_of,
    path_from,
    path_in,
    read_plan_file,
    type_from_json,
    write_plan_file,
)
from gnnkit.plan.inputs import Inputs, inputs_from_json
from gnnkit.plan.records import OMITTED, Record, column, read_by
from gnnkit.plan.sampling import Sampling, check_module, sampling_from_json
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, HOMOGENEOUS_NODE_TYPE, EdgeType, NodeType
from gnnkit.urls import check_url, is_url

_HINT = (
    "'bucket', or sizes: pad=[(2000, 6000), (2500, 7500)] is nodes and edges of two shapes; types: {'paper': 2000, ('a', 'b', 'c'): 600}"
)


@dataclass(frozen=True)
class Shape(Record):
    """The size of a padded batch. Of each type it lists a bound for the end of every hop, ascending; the last one is the padded size.

    Attributes:
        nodes: ``{node type: (after the seeds, after hop 1, ...)}``; of one bound where hops do not matter.
        edges: ``{edge type: (after hop 1, ...)}``, edge types as batches show them; likewise.
    """

    nodes: Mapping[NodeType, tuple[int, ...]]
    edges: Mapping[EdgeType, tuple[int, ...]] = field(metadata=column("bounds"))

    def __post_init__(self) -> None:
        for bounds in (*self.nodes.values(), *self.edges.values()):
            if not bounds or not all(map(is_whole, bounds)) or list(bounds) != sorted(bounds):
                raise PlanError(
                    f"a shape of padded batches needs sizes of at least 0 that ascend from hop to hop, got {list(bounds)}", _HINT
                )
        for node_type, bounds in self.nodes.items():
            if bounds[-1] < 1:
                raise PlanError(f"a padded batch needs room for a node of padding of each type, {node_type!r} has none", _HINT)

    @classmethod
    def of(cls, sizes: Any) -> Shape:
        """The shape that a user means by ``(nodes, edges)`` or ``{type: size}``.

        Raises:
            PlanError: It is none.
        """
        if isinstance(sizes, tuple) and len(sizes) == 2:
            sizes = {HOMOGENEOUS_NODE_TYPE: sizes[0], HOMOGENEOUS_EDGE_TYPE: sizes[1]}
        if not isinstance(sizes, Mapping) or not all(isinstance(key, (str, tuple)) for key in sizes):
            raise PlanError(f"pad has a shape that says no sizes: {sizes!r}", _HINT)
        nodes = {key: (size,) for key, size in sizes.items() if isinstance(key, str)}
        return cls(nodes, {key: (size,) for key, size in sizes.items() if isinstance(key, tuple)})

    @property
    def size(self) -> int:
        """Rows and edges of all types."""
        return sum(bounds[-1] for bounds in (*self.nodes.values(), *self.edges.values()))


PadOption = Literal["bucket"] | tuple[Shape, ...] | None


def to_pad(value: Any) -> PadOption:
    """The option ``pad`` as a plan holds it.

    Args:
        value: None, "bucket", the sizes of a shape, or a list of these.

    Raises:
        PlanError: It is none of these.
    """
    if value is None or (isinstance(value, str) and value == "bucket"):
        return value  # type: ignore[return-value]
    if isinstance(value, (Mapping, Shape)) or (isinstance(value, tuple) and all(isinstance(size, int) for size in value)):
        value = [value]
    if isinstance(value, str) or not isinstance(value, Iterable) or hasattr(value, "ndim"):
        raise PlanError(f"pad must be None, 'bucket' or sizes, got {value!r}", _HINT)
    shapes = tuple(sorted((each if isinstance(each, Shape) else Shape.of(each) for each in value), key=lambda shape: shape.size))
    if not shapes:
        raise PlanError("pad has no shape", _HINT)
    return shapes


def _pad_from_json(value: Any) -> PadOption:
    return tuple(map(Shape.from_json, value)) if isinstance(value, list) else to_pad(value)


@dataclass(frozen=True)
class BatchForm(Record):
    """The form of the batches that a loader hands out. What is sampled does not depend on it.

    Attributes:
        is_edge_index: Whether ``edge_index`` is PyG's ``EdgeIndex``.
        pad: The shapes that were asked for: "bucket", or their sizes, the smallest first; None for batches as they are.
        shapes: What batches are padded to, the smallest first; empty until trial batches have been looked at.
    """

    is_edge_index: bool = False
    pad: PadOption = field(default=None, metadata=read_by(_pad_from_json))
    shapes: tuple[Shape, ...] = ()

    def __post_init__(self) -> None:
        check_flag("is_edge_index", self.is_edge_index)
        if self.shapes and self.pad is None:
            raise PlanError("the plan has shapes that batches are padded to, and its pad is null")


Remainder = Literal["drop", "pad", "uneven"]
# Batches ahead that would take any host's memory; more devices than any host has.
_MOST_PREFETCH, _MOST_DEVICE = 1 << 20, 1 << 16
PLAN_VERSION = 3


@dataclass(frozen=True)
class StoreRef(Record):
    """Which store a plan was made for.

    Attributes:
        path: Where it is.
        fingerprint: Digest of its content and build parameters.
        graph: Digest of what decides batches: the same for every way to cut the same graph into parts. A store with another one is refused.
        url: The URL that it was fetched from; plans that are written name it in the place of the path. None: it lies only here.
    """

    takes_defaults = True

    path: str
    fingerprint: str
    graph: str
    url: str | None = field(default=None, compare=False, metadata=OMITTED)

    def __post_init__(self) -> None:
        if not all(isinstance(value, str) for value in (self.path, self.fingerprint, self.graph)):
            given = f"got {self.path!r}, {self.fingerprint!r} and {self.graph!r}"
            raise PlanError(f"a plan's store needs a path, a fingerprint and that of its graph, {given}")
        for place in (self.path, self.url):
            if place is not None and is_url(place):
                check_url(place, "the plan's store")

    @property
    def written(self) -> str:
        """The path or URL that a file names it by, for processes elsewhere."""
        return self.url or self.path


@dataclass(frozen=True)
class Batching(Record):
    """The division of an epoch's seeds into batches, and of batches among ranks.

    Attributes:
        batch_size: Seeds per batch and rank, at least 1.
        shuffle: Whether an epoch visits the seeds in a fresh order; "parts": in one whose batches have seeds of one part of the store each,
            see ``gnnkit.sampling.schedule``.
        drop_last: Whether a last batch of fewer seeds is left out.
        remainder: Handling of a number of batches that is no multiple of ``world_size``; see ``gnnkit.sampling.schedule``.
        seed: Random seed, ``[0, 2**64)``.
        rank: This process's place among the trainers.
        world_size: Number of trainers.
    """

    takes_defaults = True

    batch_size: int
    shuffle: bool | Literal["parts"] = False
    drop_last: bool = False
    remainder: Remainder = "pad"
    seed: int = 0
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        for name in ("batch_size", "seed", "rank", "world_size"):
            if not is_whole(getattr(self, name), -math.inf, math.inf):
                raise PlanError(f"{name} must be a whole number, got {shown(getattr(self, name))}")
            object.__setattr__(self, name, int(getattr(self, name)))
        if not 1 <= self.batch_size <= LARGEST:
            limit = "least 1" if self.batch_size < 1 else "most 2**63 - 1"
            raise PlanError(f"batch_size must be at {limit}, got {shown(self.batch_size)}", "1024 is a usual choice")
        if not 0 <= self.seed < 1 << 64:
            raise PlanError(f"seed must be between 0 and 2**64 - 1, got {shown(self.seed)}")
        if not isinstance(self.shuffle, (bool, np.bool_, str)) or self.shuffle not in (True, False, "parts"):
            raise PlanError(f"shuffle must be True, False or 'parts', got {shown(self.shuffle)}")
        check_flag("drop_last", self.drop_last)
        check_choice("remainder", self.remainder, Remainder)
        if not 1 <= self.world_size <= LARGEST or not 0 <= self.rank < self.world_size:
            given = f"got rank {shown(self.rank)} of world_size {shown(self.world_size)}"
            raise PlanError(f"rank must be between 0 and world_size - 1, {given}", "ranks count from 0: the last one is world_size - 1")

    @property
    def is_by_part(self) -> bool:
        """Whether batches have seeds of one part each."""
        return self.shuffle == "parts"


def num_batches(num_seeds: int, batch_size: int, drop_last: bool) -> int:
    """Batches in one epoch over all ranks."""
    return num_seeds // batch_size if drop_last else -(-num_seeds // batch_size)


@dataclass(frozen=True)
class RuntimeOptions(Record):
    """Limits of a run.

    Attributes:
        start_timeout_s: Seconds that starting may take; while kernels are compiled, each of them.
        batch_timeout_s: Seconds that one wait for a batch may take. A thread or process that is seen to be sampling it is waited for,
            with a warning at half of the time.
        prefetch: Batches kept ready ahead of the consumer, at least 0.
        memory_budget: Bytes that one copy of the graph in huge pages may take; None: see ``copy_budget``, 0 never copies.
        pin_device: The number of the CUDA device for whose copies batches' blocks are page-locked; None: they are not.
        feature_cache: Bytes of features that are kept on the device batches are copied to; 0 keeps none.
        max_nodes: The most nodes of a batch, over all types; None sets no bound.
    """

    takes_defaults = True

    start_timeout_s: float = 120.0
    batch_timeout_s: float = 120.0
    prefetch: int = 2
    memory_budget: int | None = None
    pin_device: int | None = None
    feature_cache: int = 0
    max_nodes: int | None = field(default=None, metadata=OMITTED)

    def __post_init__(self) -> None:
        for name in ("start_timeout_s", "batch_timeout_s"):
            if not is_real(getattr(self, name)) or not 0 < getattr(self, name) <= MOST_SECONDS:
                value = shown(getattr(self, name))
                raise PlanError(f"{name} must be a positive number of seconds, and at most {MOST_SECONDS:g}, got {value}")
        for name, what, most in (
            ("prefetch", "a whole number of batches", _MOST_PREFETCH),
            ("memory_budget", "a number of bytes", LARGEST),
            ("pin_device", "the number of a device", _MOST_DEVICE),
            ("feature_cache", "a number of bytes", LARGEST),
            ("max_nodes", "a number of nodes", LARGEST),
        ):
            value = getattr(self, name)
            if value is None and name in ("memory_budget", "pin_device", "max_nodes"):
                continue
            if not is_whole(value, 0, most):
                limit = "" if most == LARGEST else f", and at most {most}"
                raise PlanError(f"{name} must be {what}, at least 0{limit}, got {shown(value)}")
            object.__setattr__(self, name, int(value))


PlacementWord = Literal["replicate", "features", "partition"]


class Held(TypedDict):
    """The files that a host has of a store, as ``Store.open`` and messages to its processes take it.

    Attributes:
        parts: Its parts.
        whole_structure: Whether it has the structure of the others, too.
    """

    parts: Sequence[int]
    whole_structure: bool


@dataclass(frozen=True)
class Placement(Record):
    """Which host holds which parts of a store.

    Attributes:
        hosts: The parts of each host, ascending. Every part is on at least one.
        whole_structure: Whether every host has the structure of all parts, so that only features are asked of other hosts.
    """

    hosts: tuple[tuple[int, ...], ...]
    whole_structure: bool = False

    def __post_init__(self) -> None:
        if not all(is_whole(part) for parts in self.hosts for part in parts):
            raise PlanError(f"a placement needs the numbers of parts, got {shown(self.hosts)}")
        held = sorted({part for parts in self.hosts for part in parts})
        if not held or held != list(range(len(held))) or any(list(parts) != sorted(set(parts)) for parts in self.hosts):
            raise PlanError(f"a placement needs every part on some host, and a host's parts in order; got {[list(p) for p in self.hosts]}")

    def to_json(self) -> Any:
        """The parts of each host; where they have the structure of all, an object that says so."""
        hosts = [list(parts) for parts in self.hosts]
        return {"hosts": hosts, "whole_structure": True} if self.whole_structure else hosts

    @classmethod
    def from_json(cls, value: Any) -> Placement:
        """Reverses ``to_json``."""
        hosts, whole_structure = (value["hosts"], value["whole_structure"]) if isinstance(value, Mapping) else (value, False)
        check_flag("whole_structure", whole_structure)
        return cls(tuple(map(tuple, hosts)), whole_structure)

    @property
    def num_hosts(self) -> int:
        """Number of hosts."""
        return len(self.hosts)

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return 1 + max(part for parts in self.hosts for part in parts)

    @property
    def is_replicated(self) -> bool:
        """Whether every host holds every part."""
        return {*map(len, self.hosts)} == {self.num_parts}

    @property
    def word(self) -> PlacementWord:
        """The option ``placement`` that stands for it."""
        return "replicate" if self.is_replicated else "features" if self.whole_structure else "partition"

    def held(self, host: int) -> Held:
        """The files that a host has of a store."""
        return {"parts": self.hosts[host], "whole_structure": self.whole_structure}

    def sources(self, host: int) -> dict[int, tuple[int, ...]]:
        """Returns the hosts that ``host`` gets the missing parts from: ``{other host: parts}``, each part from one host.

        Of several that hold a part, it is the next one after ``host``, so that hosts share the load.
        """
        found: dict[int, list[int]] = {}
        for part in sorted(set(range(self.num_parts)) - set(self.hosts[host])):
            holders = [(host + step) % self.num_hosts for step in range(1, self.num_hosts)]
            found.setdefault(next(other for other in holders if part in self.hosts[other]), []).append(part)
        return {other: tuple(parts) for other, parts in sorted(found.items())}


def _words(value: Mapping[str, Any]) -> dict[NodeType, NDArray[np.uint64]]:
    found = {}
    for node_type, packed in value.items():
        words = array_from_json(packed)
        if words is None or words.dtype != np.uint64 or words.ndim != 1:
            raise DamagedPart("bits of cached nodes must be a list of uint64")
        found[type_from_json(node_type)] = words
    return found


@checks_calls()
@dataclass(frozen=True)
class LoaderPlan(Record):
    """Everything a backend needs to produce the batches of a loader.

    Attributes:
        store: The store to read; None for a graph that is only in this process's memory.
        inputs: What batches start from.
        sampling: What is sampled around them.
        batching: How seeds become batches.
        backend: The backend's own options, ``{"kind": ..., ...}``.
        runtime: Limits.
        placement: Which host holds which parts; None where everything is on one.
        cached: ``{node type: uint64, a bit for each node by store id}``: whose features batches come without, because they are on the
            trainer's device. A loader says it to those who sample for it; its own plan says only how much memory they may take.
        form: The form in which batches are handed out.

    Example:
        >>> import gnnkit
        >>> store = gnnkit.partition(gnnkit.datasets.products_like(0.0005), 2, out="store", overwrite=True)
        >>> with gnnkit.GraphLoader.from_store(store.path, num_neighbors=[5], progress=False) as loader:
        ...     loader.plan.save("plan.json")
        >>> gnnkit.LoaderPlan.load("plan.json").batching.batch_size
        1024
    """

    store: StoreRef | None
    inputs: Inputs = field(metadata=read_by(inputs_from_json))
    sampling: Sampling = field(metadata=read_by(sampling_from_json))
    batching: Batching
    backend: Mapping[str, Any] = field(default_factory=lambda: {"kind": "InProcess"}, metadata=read_by(dict))
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    placement: Placement | None = None
    cached: Mapping[NodeType, NDArray[np.uint64]] = field(default_factory=dict, compare=False, metadata={**OMITTED, **read_by(_words)})
    form: BatchForm = field(default_factory=BatchForm, metadata=OMITTED)

    def __post_init__(self) -> None:
        self.sampling.check_inputs(self.inputs)
        if self.backend.get("kind", "InProcess") not in ("InProcess", "OnDevice"):
            check_module(self.sampling)
        if self.batching.is_by_part and (self.sampling.rows or self.inputs.weights is not None):
            what = "seed_weights" if self.inputs.weights is not None else f"{self.sampling.kind} sampling"
            raise PlanError(f"shuffle='parts' says which seeds are in a batch, and so does {what}", "shuffle=True, or leave it out")

    def save(self, path: str | Path) -> None:
        """Writes the plan into a file, all at once. ``LoaderPlan.load`` and ``GraphLoader.from_plan`` read it.

        The store's path is written relative to the file where both lie below a common folder, which can then be moved or copied as a whole;
        else as it is; of a store that was fetched its URL. No token is written.

        Args:
            path: The JSON file.

        Raises:
            PlanError: The graph is only in memory, the sampler cannot be imported elsewhere, or the file cannot be written.
        """
        check_module(self.sampling)
        if self.store is None:
            raise PlanError(
                "this plan's graph is only in memory, and it could not be opened again",
                "build a store with gnnkit.partition() and a loader with from_store()",
            )
        file, value = user_path(path), self.to_json()
        value["store"] = replace(self.store, path=path_from(file.parent, self.store.written), url=None).to_json()
        write_plan_file(value, file)

    @classmethod
    def load(cls, path: str | Path) -> LoaderPlan:
        """The plan in a file that ``save`` wrote; a relative path of its store is made absolute, as it is seen from the file.

        Raises:
            PlanError: The file cannot be read or is no plan of this version.
        """
        file = user_path(path)
        plan = cls.from_json(read_plan_file(file))
        return plan if plan.store is None else replace(plan, store=replace(plan.store, path=path_in(file.parent, plan.store.path)))

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form; ``from_json`` reverses it."""
        return {"version": PLAN_VERSION, **super().to_json()}

    @classmethod
    def from_json(cls, value: Any) -> LoaderPlan:
        """Reverses ``to_json``.

        Raises:
            PlanError: The plan is of another version, or a field is missing or of the wrong kind.
        """
        hint = "write it again with loader.plan.save()"
        version = value.get("version") if isinstance(value, Mapping) else None
        if version is None:
            raise PlanError("this is no plan: it has no version", hint)
        if version != PLAN_VERSION:
            hint = "update gnnkit" if isinstance(version, int) and version > PLAN_VERSION else hint
            raise PlanError(f"the plan is of version {version!r}, this gnnkit reads version {PLAN_VERSION}", hint)
        optional = {field.name for field in fields(cls) if "omitted" in field.metadata}
        parts = {name: read for name, read in cls.readers().items() if name in value or name not in optional}
        return cls(**{name: part_of(value, name, read) for name, read in parts.items()})
