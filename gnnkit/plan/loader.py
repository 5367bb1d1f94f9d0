"""A loader's whole plan, with its batching and its limits."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.plan.encoding import array_from_json, array_to_json
from gnnkit.plan.files import path_from, path_in, read_plan_file, write_plan_file
from gnnkit.plan.form import BatchForm
from gnnkit.plan.inputs import Inputs, inputs_from_json
from gnnkit.plan.sampling import Sampling, sampling_from_json
from gnnkit.schema import NodeType
from gnnkit.urls import check_url, is_url

Remainder = Literal["drop", "pad", "uneven"]
PLAN_VERSION = 3


@dataclass(frozen=True)
class StoreRef:
    """Which store a plan was made for.

    Attributes:
        path: Where it is.
        fingerprint: Digest of its content and build parameters.
        graph: Digest of what decides batches: the same for every way to cut the same graph into parts. A store with another one is refused.
        url: The URL that it was fetched from; plans that are written name it in the place of the path. None: it lies only here.
    """

    path: str
    fingerprint: str
    graph: str
    url: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not all(isinstance(value, str) for value in (self.path, self.fingerprint, self.graph)):
            given = f"got {self.path!r}, {self.fingerprint!r} and {self.graph!r}"
            raise PlanError(f"a plan's store needs a path, a fingerprint and that of its graph, {given}")
        for place in (self.path, self.url):
            if place is not None and is_url(place):
                check_url(place, "the plan's store")

    @property
    def written(self) -> str:
        """The path or URL that a file names it by, for whoever opens it elsewhere."""
        return self.url or self.path

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        return {name: value for name, value in asdict(self).items() if name != "url" or value is not None}


@dataclass(frozen=True)
class Batching:
    """The division of an epoch's seeds into batches, and of batches among ranks.

    Attributes:
        batch_size: Seeds per batch and rank, at least 1.
        shuffle: Whether an epoch visits the seeds in a fresh order.
        drop_last: Whether a last batch of fewer seeds is left out.
        remainder: Handling of a number of batches that is no multiple of ``world_size``; see ``gnnkit.sampling.schedule``.
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


def num_batches(num_seeds: int, batch_size: int, drop_last: bool) -> int:
    """Batches in one epoch over all ranks."""
    return num_seeds // batch_size if drop_last else -(-num_seeds // batch_size)


@dataclass(frozen=True)
class RuntimeOptions:
    """Limits of a run.

    Attributes:
        start_timeout_s: Seconds that starting may take.
        batch_timeout_s: Seconds that one wait for a batch may take.
        prefetch: Batches kept ready ahead of the consumer, at least 0.
        memory_budget: Bytes that one copy of the graph in huge pages may take; None is a quarter of what is free, 0 never copies.
        pin_device: The number of the CUDA device for whose copies batches' blocks are page-locked; None: they are not.
        feature_cache: Bytes of features that are kept on the device batches are copied to; 0 keeps none.
    """

    start_timeout_s: float = 120.0
    batch_timeout_s: float = 120.0
    prefetch: int = 2
    memory_budget: int | None = None
    pin_device: int | None = None
    feature_cache: int = 0

    def __post_init__(self) -> None:
        for name in ("start_timeout_s", "batch_timeout_s"):
            if not getattr(self, name) > 0:
                raise PlanError(f"{name} must be a positive number of seconds, got {getattr(self, name)!r}")
        if isinstance(self.prefetch, bool) or not isinstance(self.prefetch, int) or self.prefetch < 0:
            raise PlanError(f"prefetch must be a whole number of batches, at least 0, got {self.prefetch!r}")
        if self.memory_budget is not None and self.memory_budget < 0:
            raise PlanError(f"memory_budget must be a number of bytes, at least 0, got {self.memory_budget!r}")
        if isinstance(self.feature_cache, bool) or not isinstance(self.feature_cache, int) or self.feature_cache < 0:
            raise PlanError(f"feature_cache must be a number of bytes, at least 0, got {self.feature_cache!r}")


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
        """Returns the hosts that ``host`` gets the missing parts from: ``{other host: parts}``, each part from one host.

        Of several that hold a part, it is the next one after ``host``, so that hosts share the load.
        """
        found: dict[int, list[int]] = {}
        for part in sorted(set(range(self.num_parts)) - set(self.hosts[host])):
            holders = [(host + step) % self.num_hosts for step in range(1, self.num_hosts)]
            found.setdefault(next(other for other in holders if part in self.hosts[other]), []).append(part)
        return {other: tuple(parts) for other, parts in sorted(found.items())}


def _words(value: Mapping[str, Any]) -> NDArray[np.uint64]:
    words = array_from_json(value)
    if words is None or words.dtype != np.uint64 or words.ndim != 1:
        raise ValueError("bits of cached nodes must be a list of uint64")
    return words


@dataclass(frozen=True)
class LoaderPlan:
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
    """

    store: StoreRef | None
    inputs: Inputs
    sampling: Sampling
    batching: Batching
    backend: Mapping[str, Any] = field(default_factory=lambda: {"kind": "InProcess"})
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    placement: Placement | None = None
    cached: Mapping[NodeType, NDArray[np.uint64]] = field(default_factory=dict, compare=False)
    form: BatchForm = field(default_factory=BatchForm)

    def save(self, path: str | Path) -> None:
        """Writes the plan into a file, all at once. ``LoaderPlan.load`` and ``GraphLoader.from_plan`` read it.

        The store's path is written relative to the file where both lie below a common folder, which can then be moved or copied as a whole;
        else as it is; of a store that was fetched its URL. No token is written.

        Args:
            path: The JSON file.

        Raises:
            PlanError: The graph is only in memory, or the file cannot be written.
        """
        if self.store is None:
            raise PlanError(
                "this plan's graph is only in memory, and nobody could open it again",
                "build a store with gnnkit.partition() and a loader with from_store()",
            )
        file, value = Path(path), self.to_json()
        value["store"] = replace(self.store, path=path_from(file.parent, self.store.written), url=None).to_json()
        write_plan_file(value, file)

    @classmethod
    def load(cls, path: str | Path) -> LoaderPlan:
        """The plan in a file that ``save`` wrote; a relative path of its store is made absolute, as it is seen from the file.

        Raises:
            PlanError: The file cannot be read or is no plan of this version.
        """
        file = Path(path)
        plan = cls.from_json(read_plan_file(file))
        return plan if plan.store is None else replace(plan, store=replace(plan.store, path=path_in(file.parent, plan.store.path)))

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form; ``from_json`` reverses it."""
        return {
            "version": PLAN_VERSION,
            "store": None if self.store is None else self.store.to_json(),
            "inputs": self.inputs.to_json(),
            "sampling": self.sampling.to_json(),
            "batching": asdict(self.batching),
            "backend": dict(self.backend),
            "runtime": asdict(self.runtime),
            "placement": None if self.placement is None else [list(parts) for parts in self.placement.hosts],
            **({"form": self.form.to_json()} if self.form != BatchForm() else {}),
            **({"cached": {node_type: array_to_json(words) for node_type, words in self.cached.items()}} if self.cached else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LoaderPlan:
        """Reverses ``to_json``.

        Raises:
            PlanError: The plan is of another version, or a field is missing or of the wrong kind.
        """
        version, hint = value.get("version"), "write it again with loader.plan.save()"
        if version is None:
            raise PlanError("this is no plan: it has no version", hint)
        if version != PLAN_VERSION:
            hint = "update gnnkit" if isinstance(version, int) and version > PLAN_VERSION else hint
            raise PlanError(f"the plan is of version {version!r}, this gnnkit reads version {PLAN_VERSION}", hint)
        try:
            return cls(
                None if value["store"] is None else StoreRef(**value["store"]),
                inputs_from_json(value["inputs"]),
                sampling_from_json(value["sampling"]),
                Batching(**value["batching"]),
                dict(value["backend"]),
                RuntimeOptions(**value["runtime"]),
                None if value["placement"] is None else Placement(tuple(tuple(map(int, parts)) for parts in value["placement"])),
                {str(node_type): _words(words) for node_type, words in value.get("cached", {}).items()},
                BatchForm.from_json(value["form"]) if "form" in value else BatchForm(),
            )
        except PlanError:
            raise
        except (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError, zlib.error) as error:
            raise PlanError(f"the plan cannot be read: {type(error).__name__}: {error}", hint) from error
