"""The plan: everything one run of a loader needs, frozen and JSON-serialisable.

A plan says what is sampled and how; which process samples it is the ``backend``'s affair, and never changes a batch.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.schema import EdgeDir, EdgeType, NodeType

Remainder = Literal["drop", "pad", "uneven"]
PLAN_VERSION = 1


@dataclass(frozen=True)
class StoreRef:
    """Which store a plan was made for.

    Attributes:
        path: Where it is.
        fingerprint: Digest of its content and build parameters; a store with another one is refused.
    """

    path: str
    fingerprint: str

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not isinstance(self.fingerprint, str):
            raise PlanError(f"a plan's store needs a path and a fingerprint, got {self.path!r} and {self.fingerprint!r}")


@dataclass(frozen=True, eq=False)
class InputNodes:
    """The nodes that an epoch's batches start from.

    Attributes:
        node_type: Their type.
        stream: Name that keeps the draws of different loaders apart, e.g. ``"node/train"``.
        split: The store's split that the ids are read from, or None.
        ids: int64 ``[n]`` dataset ids, or None for a split or for every node of the type.
    """

    node_type: NodeType
    stream: str
    split: str | None = None
    ids: NDArray[np.int64] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InputNodes) and self.to_json() == other.to_json()

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form; ids are zlib-compressed little-endian int64 in base64."""
        ids = None if self.ids is None else base64.b64encode(zlib.compress(self.ids.astype("<i8").tobytes())).decode()
        return {"node_type": self.node_type, "stream": self.stream, "split": self.split, "ids": ids}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> InputNodes:
        """Reverses ``to_json``."""
        encoded = value["ids"]
        ids = None if encoded is None else np.frombuffer(zlib.decompress(base64.b64decode(encoded)), "<i8").astype(np.int64)
        return cls(value["node_type"], value["stream"], value["split"], ids)


@dataclass(frozen=True)
class NeighborSampling:
    """How neighbourhoods are sampled.

    Attributes:
        num_neighbors: ``{edge type: fan-out per hop}``; -1 takes all neighbours, 0 none. Every list has the same length.
        replace: Whether a neighbour may be drawn more than once.
        edge_dir: The direction in which the store is compressed and sampled.
        weight: Name of the edge array that neighbours are drawn in proportion to, or None for uniform draws.
        with_edge: Whether batches carry ``e_id``.
    """

    num_neighbors: Mapping[EdgeType, tuple[int, ...]]
    replace: bool = False
    edge_dir: EdgeDir = "in"
    weight: str | None = None
    with_edge: bool = False

    @property
    def num_hops(self) -> int:
        """Length of every fan-out list."""
        return max((len(fan_out) for fan_out in self.num_neighbors.values()), default=0)

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        fan_outs = [{"edge_type": list(edge_type), "num_neighbors": list(fan)} for edge_type, fan in sorted(self.num_neighbors.items())]
        return {
            "num_neighbors": fan_outs,
            "replace": self.replace,
            "edge_dir": self.edge_dir,
            "weight": self.weight,
            "with_edge": self.with_edge,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> NeighborSampling:
        """Reverses ``to_json``."""
        fan_outs: dict[EdgeType, tuple[int, ...]] = {}
        for row in value["num_neighbors"]:
            source, relation, target = row["edge_type"]
            fan_outs[(source, relation, target)] = tuple(int(n) for n in row["num_neighbors"])
        return cls(fan_outs, value["replace"], value["edge_dir"], value["weight"], value["with_edge"])


@dataclass(frozen=True)
class Batching:
    """How an epoch's seeds become batches and how batches are dealt to ranks.

    Attributes:
        batch_size: Seeds per batch and rank, at least 1.
        shuffle: Whether an epoch visits the seeds in a fresh order.
        drop_last: Whether a last batch of fewer seeds is left out.
        remainder: What happens when the number of batches is no multiple of ``world_size``; see ``gnnkit.sampling.schedule``.
        seed: Random seed, ``[0, 2**64)``.
        rank: This process's place among the trainers.
        world_size: Number of trainers.
    """

    batch_size: int
    shuffle: bool = False
    drop_last: bool = False
    remainder: Remainder = "pad"
    seed: int = 0
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        for name in ("batch_size", "seed", "rank", "world_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise PlanError(f"{name} must be a whole number, got {value!r}")
            object.__setattr__(self, name, int(value))
        if self.batch_size < 1:
            raise PlanError(f"batch_size must be at least 1, got {self.batch_size}", "1024 is a usual choice")
        if not 0 <= self.seed < 1 << 64:
            raise PlanError(f"seed must be between 0 and 2**64 - 1, got {self.seed}")
        if self.remainder not in ("drop", "pad", "uneven"):
            raise PlanError(f"remainder must be 'drop', 'pad' or 'uneven', got {self.remainder!r}")
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise PlanError(f"rank must be between 0 and world_size - 1, got rank {self.rank} of world_size {self.world_size}")


@dataclass(frozen=True)
class RuntimeOptions:
    """Limits of a run.

    Attributes:
        start_timeout_s: Seconds that starting may take.
        batch_timeout_s: Seconds that one wait for a batch may take.
        prefetch: Batches kept ready ahead of the consumer, at least 0.
        memory_budget: Bytes that one copy of the graph in huge pages may take; None is a quarter of what is free, 0 never copies.
        pin_memory: Whether batches' blocks are page-locked for copies to a CUDA device.
    """

    start_timeout_s: float = 120.0
    batch_timeout_s: float = 120.0
    prefetch: int = 2
    memory_budget: int | None = None
    pin_memory: bool = False

    def __post_init__(self) -> None:
        for name in ("start_timeout_s", "batch_timeout_s"):
            if not getattr(self, name) > 0:
                raise PlanError(f"{name} must be a positive number of seconds, got {getattr(self, name)!r}")
        if isinstance(self.prefetch, bool) or not isinstance(self.prefetch, int) or self.prefetch < 0:
            raise PlanError(f"prefetch must be a whole number of batches, at least 0, got {self.prefetch!r}")
        if self.memory_budget is not None and self.memory_budget < 0:
            raise PlanError(f"memory_budget must be a number of bytes, at least 0, got {self.memory_budget!r}")


@dataclass(frozen=True)
class Placement:
    """Which host holds which parts of a store.

    Attributes:
        hosts: The parts of each host, ascending. Every part is on at least one.
    """

    hosts: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        held = sorted({part for parts in self.hosts for part in parts})
        if not held or held != list(range(len(held))) or any(list(parts) != sorted(set(parts)) for parts in self.hosts):
            raise PlanError(f"a placement needs every part on some host, and a host's parts in order; got {[list(p) for p in self.hosts]}")

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
        return all(len(parts) == self.num_parts for parts in self.hosts)

    def sources(self, host: int) -> dict[int, tuple[int, ...]]:
        """Where ``host`` gets the parts from that it does not hold: ``{other host: parts}``, each part from one host.

        Of several that hold a part, it is the next one after ``host``, so that hosts share the load.
        """
        found: dict[int, list[int]] = {}
        for part in sorted(set(range(self.num_parts)) - set(self.hosts[host])):
            holders = [(host + step) % self.num_hosts for step in range(1, self.num_hosts)]
            found.setdefault(next(other for other in holders if part in self.hosts[other]), []).append(part)
        return {other: tuple(parts) for other, parts in sorted(found.items())}


@dataclass(frozen=True)
class LoaderPlan:
    """Everything a backend needs to produce the batches of a loader.

    Attributes:
        store: The store to read; None for a graph that is only in this process's memory.
        inputs: What batches start from.
        sampling: How neighbourhoods are sampled.
        batching: How seeds become batches.
        backend: The backend's own options, ``{"kind": ..., ...}``.
        runtime: Limits.
        placement: Which host holds which parts; None where everything is on one.
    """

    store: StoreRef | None
    inputs: InputNodes
    sampling: NeighborSampling
    batching: Batching
    backend: Mapping[str, Any] = field(default_factory=lambda: {"kind": "InProcess"})
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    placement: Placement | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form; ``from_json`` reverses it."""
        return {
            "version": PLAN_VERSION,
            "store": None if self.store is None else asdict(self.store),
            "inputs": self.inputs.to_json(),
            "sampling": self.sampling.to_json(),
            "batching": asdict(self.batching),
            "backend": dict(self.backend),
            "runtime": asdict(self.runtime),
            "placement": None if self.placement is None else [list(parts) for parts in self.placement.hosts],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LoaderPlan:
        """Reverses ``to_json``.

        Raises:
            PlanError: The plan is of a newer version, or a field is missing or of the wrong kind.
        """
        version = value.get("version")
        if version != PLAN_VERSION:
            raise PlanError(f"the plan is of version {version!r}, this gnnkit reads version {PLAN_VERSION}", "update gnnkit")
        try:
            return cls(
                None if value["store"] is None else StoreRef(**value["store"]),
                InputNodes.from_json(value["inputs"]),
                NeighborSampling.from_json(value["sampling"]),
                Batching(**value["batching"]),
                dict(value["backend"]),
                RuntimeOptions(**value["runtime"]),
                None if value["placement"] is None else Placement(tuple(tuple(map(int, parts)) for parts in value["placement"])),
            )
        except (AttributeError, KeyError, TypeError, ValueError, zlib.error) as error:
            raise PlanError(f"the plan cannot be read: {type(error).__name__}: {error}", "write it again with loader.plan") from error
