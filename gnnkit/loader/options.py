"""The options that every way of making a loader shares."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

from gnnkit.backends import resolve_backend
from gnnkit.backends.base import Backend
from gnnkit.errors import PlanError, near_matches
from gnnkit.loader.placing import PlacementWord, Site, check_placement
from gnnkit.loader.transfer import resolve_device
from gnnkit.loader.words import FanOuts, check_fan_outs, resolve_rank
from gnnkit.plan import Batching, InputNodes, LoaderPlan, Placement, Remainder, RuntimeOptions
from gnnkit.runtime.hosts import find_hosts
from gnnkit.storage.options import BuildOptions

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """What a user may say about a loader, beside where its graph comes from.

    Attributes:
        num_neighbors: Fan-out per hop, one list or ``{edge type: list}``; -1 takes all neighbours, 0 none.
        batch_size: Seeds per batch and rank.
        shuffle: Whether an epoch visits the seeds in a fresh order; None shuffles the split "train" only.
        drop_last: Leaves out a last batch of fewer seeds.
        replace: Draws neighbours with replacement.
        seed: Random seed; the same seed gives the same batches everywhere.
        remainder: What to do with batches that are left over when they are dealt to ranks: "drop" (None: when shuffled), "pad" (None:
            otherwise) or "uneven".
        backend: Where sampling happens: an object such as ``InProcess(num_threads=4)``, its name, or "auto".
        transform: Called on each batch.
        device: Where batches are copied to; None leaves them in memory.
        rank: This trainer's rank; None asks the process group, then torchrun's environment.
        world_size: Number of trainers; goes with ``rank``.
        prefetch: Batches kept ready beyond those being sampled.
        start_timeout_s: Seconds that starting may take.
        batch_timeout_s: Seconds that one wait for a batch may take.
        memory_budget: Bytes for a copy of the graph in huge pages; None is a quarter of what is free, 0 makes no copy.
        placement: Which host holds which parts: "replicate" (each all of them), "partition" (each its share), ``{host: parts}``, or "auto":
            "replicate" where the store fits a quarter of the smallest host's memory. One host holds everything.
    """

    num_neighbors: FanOuts
    batch_size: int = 1024
    shuffle: bool | None = None
    drop_last: bool = False
    replace: bool = False
    seed: int = 0
    remainder: Remainder | None = None
    backend: Backend | str = "auto"
    transform: Callable[[Any], Any] | None = None
    device: Any = None
    rank: int | None = None
    world_size: int | None = None
    prefetch: int = 2
    start_timeout_s: float = 120.0
    batch_timeout_s: float = 120.0
    memory_budget: int | None = None
    placement: PlacementWord = "auto"

    def __post_init__(self) -> None:
        # Whatever can be found out without the graph is, before anything is downloaded, built or started.
        check_fan_outs(self.num_neighbors)
        self.batching(InputNodes("", ""))
        self.runtime()
        resolve_backend(self.backend)
        resolve_device(self.device)
        check_placement(self.placement)
        if self.transform is not None and not callable(self.transform):
            raise PlanError(f"transform must be a function of a batch, got {self.transform!r}", "transform=None leaves batches as they are")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> LoaderOptions:
        """Checks the names of ``values``.

        Raises:
            PlanError: A name is not an option, or ``num_neighbors`` is missing.
        """
        return split_options(values, with_build=False)[0]

    @classmethod
    def of_plan(cls, plan: LoaderPlan, transform: Callable[[Any], Any] | None, device: Any) -> LoaderOptions:
        """The options that led to a plan."""
        from gnnkit.backends import backend_from_json

        batching, runtime = plan.batching, plan.runtime
        return cls(
            num_neighbors=plan.sampling.num_neighbors,
            batch_size=batching.batch_size,
            shuffle=batching.shuffle,
            drop_last=batching.drop_last,
            replace=plan.sampling.replace,
            seed=batching.seed,
            remainder=batching.remainder,
            backend=backend_from_json(plan.backend),
            transform=transform,
            device=device,
            rank=batching.rank,
            world_size=batching.world_size,
            prefetch=runtime.prefetch,
            start_timeout_s=runtime.start_timeout_s,
            batch_timeout_s=runtime.batch_timeout_s,
            memory_budget=runtime.memory_budget,
            placement=plan.placement or "auto",
        )

    def changed(self, input_nodes: Any, changes: Mapping[str, Any]) -> LoaderOptions:
        """These options for other input nodes: order and remainder start from their defaults again."""
        base = {field.name: getattr(self, field.name) for field in fields(self)}
        return LoaderOptions.of({**base, "shuffle": None, "remainder": None, **changes})

    def batching(self, inputs: InputNodes) -> Batching:
        """Batch size, order and rank."""
        shuffle = inputs.split == "train" if self.shuffle is None else bool(self.shuffle)
        remainder: Remainder = self.remainder or ("drop" if shuffle else "pad")
        rank, world_size = resolve_rank(self.rank, self.world_size)
        return Batching(self.batch_size, shuffle, bool(self.drop_last), remainder, self.seed, rank, world_size)

    def runtime(self) -> RuntimeOptions:
        """Limits."""
        return RuntimeOptions(self.start_timeout_s, self.batch_timeout_s, self.prefetch, self.memory_budget)

    def site(self) -> Site:
        """The hosts of all ranks, and what is placed where; waits for the other ranks where there are several hosts.

        Raises:
            PlanError: The hosts are not clear.
            StartTimeout: Other ranks did not come in time.
        """
        addresses = resolve_backend(self.backend).to_json().get("hosts")
        return Site(self.placement, find_hosts(addresses, resolve_rank(self.rank, self.world_size)[1], self.start_timeout_s))

    def backend_json(self, placement: Placement | None) -> dict[str, Any]:
        """The backend in a plan's form, for a placement of the parts."""
        return resolve_backend(self.backend, is_whole=placement is None or placement.is_replicated).to_json()


# Options of a build that a loader's constructor takes; the others are the loader's own or follow from them.
BUILD_WORDS = ("num_parts", "partition", "edge_dir", "weight", "feature_dtype", "cache_ratio")


def split_options(values: Mapping[str, Any], *, with_build: bool) -> tuple[LoaderOptions, BuildOptions]:
    """Sorts what a user said into options of the loader and of the store that is built for it.

    Args:
        values: Names and values.
        with_build: Whether options of a build are allowed.

    Raises:
        PlanError: A name is not an option, a value is unusable, or ``num_neighbors`` is missing.
    """
    own = [field.name for field in fields(LoaderOptions)]
    known = own + (list(BUILD_WORDS) if with_build else [])
    for name in values:
        if name not in known:
            raise PlanError(f"unknown option {name!r}{near_matches(name, known)}", f"known options: {known}")
    if "num_neighbors" not in values:
        raise PlanError("num_neighbors is missing", "give one number per hop, for example num_neighbors=[15, 10, 5]")
    loader = LoaderOptions(**{name: value for name, value in values.items() if name in own})
    build = {name: value for name, value in values.items() if name in BUILD_WORDS}
    if with_build and build.get("num_parts") is None:
        build["num_parts"] = loader.site().hosts.count
    return loader, BuildOptions(**build)


def takes_options(*, with_build: bool) -> Callable[[F], F]:
    """Shows the options that a function takes as ``**options`` in its signature, where notebooks look for them."""

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        options = list(inspect.signature(LoaderOptions).parameters.values())
        build = inspect.signature(BuildOptions).parameters
        options += [build[name].replace(default=None) if name == "num_parts" else build[name] for name in BUILD_WORDS] if with_build else []
        keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in options]
        positional = [p for p in own if p.kind is not inspect.Parameter.KEYWORD_ONLY]
        named = [p for p in own if p.kind is inspect.Parameter.KEYWORD_ONLY]
        function.__signature__ = signature.replace(parameters=[*positional, *keyword_only, *named])  # type: ignore[attr-defined]
        return function

    return decorate


Progress = bool | Literal["auto", "off", "epoch", "widget", "html", "text", "plain"]
