"""``NeighborLoader``, ``LinkNeighborLoader``, ``HGTLoader`` and ``ShaDowKHopSampler`` of PyG, over ``GraphLoader``."""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import math
import random
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils.data import DataLoader
from torch_geometric import loader as theirs
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData
from torch_geometric.sampler import NegativeSampling
from torch_geometric.sampler.base import SubgraphType

from gnnkit.arguments import check_kind, check_known, checks_arguments
from gnnkit.backends.colocated import Colocated
from gnnkit.backends.inprocess import InProcess
from gnnkit.backends.on_device import OnDevice, backend_for_data
from gnnkit.bounds import whole_number
from gnnkit.callers import warn
from gnnkit.errors import AttributeNotSettable, PlanError
from gnnkit.graph_loader import NEXT_BATCH, GraphLoader
from gnnkit.pyg.inputs import (
    Inputs,
    NodeForm,
    ShadowForm,
    as_object,
    attributes_of,
    link_inputs,
    node_inputs,
    prepare,
)
from gnnkit.pyg.samplers import GraphSampler, HGTSampler, NeighborSampler, drawn_seed
from gnnkit.user_arrays import to_array

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class _Iteration:
    """An iteration.

    Attributes:
        loader: Where its batches come from.
        iterator: The iteration, as long as the user holds it.
        order: The places that it is made of, where the user said them.
    """

    loader: GraphLoader
    iterator: weakref.ref[Any]
    order: list[int] | None

    @property
    def is_under_way(self) -> bool:
        """Whether its next batch may be asked for."""
        iterator = self.iterator()
        return iterator is not None and not iterator.is_over


# Numbers of calls take the place of epochs; with so many bits, workers hardly meet, and there is room to count on.
_CALL_BITS = 40


class LiveLoader:
    """A ``GraphLoader`` that follows the object it was made of.

    Scripts for PyG add attributes to ``loader.data`` and delete some after the loader was made, or change its sampler's fan-outs. Where
    an attribute was added, deleted or replaced, or ``transform`` or an option of the sampler was, the next epoch runs on a new
    ``GraphLoader``. So does one that begins while another is under way.

    Args:
        data: What the user gave.
        graph: The graph in it.
        inputs: What batches start from.
        sampler: What is sampled.
        options: Options of ``GraphLoader.from_pyg``, beside these.
        form: Makes the form of batches for a graph.
        transform: The user's function of a batch.

    Attributes:
        data: See above.
        inputs: See above.
        transform: See above.

    Raises:
        PlanError: An option's value is unusable.
    """

    def __init__(
        self,
        data: Any,
        graph: Data | HeteroData,
        inputs: Inputs,
        sampler: GraphSampler,
        options: Mapping[str, Any],
        form: Callable[..., NodeForm],
        transform: Callable[[Any], Any] | None,
    ) -> None:
        self.data, self.inputs, self.transform = data, inputs, transform
        self._graph, self._sampler = graph, sampler
        self._options, self._make_form = dict(options), form
        self._loader: GraphLoader
        self._form: NodeForm
        self._seen: list[tuple[Any, str, Any]] | None = None
        self._near: tuple[GraphLoader, GraphLoader] | None = None
        self._runs: list[_Iteration] = []  # the last one, and those that were under way when it began
        self._loaded: tuple[dict[str, Any], list[int] | None] | None = None  # a state, until the next epoch begins
        self._next_epoch = 0
        self._calls = self._orders = 0
        self._lock = threading.Lock()
        self._open()

    def __getstate__(self) -> dict[str, Any]:
        """Everything that it is opened from, wherever it is used next."""
        with self._lock:
            next_epoch = self._loader.pipeline.next_epoch if self._seen is not None else self._next_epoch
            left = {name: value for name, value in self.__dict__.items() if name not in ("_loader", "_form", "_lock", "_near", "_runs")}
            return {**left, "_near": None, "_runs": [], "_seen": None, "_next_epoch": next_epoch}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    @property
    def loader(self) -> GraphLoader:
        """The loader of the object as it is now."""
        with self._lock:
            return self._open()

    def epoch(self, order: Callable[[], list[int]] | None = None, batches: Iterable[Iterable[int]] | None = None) -> Iterator[Any]:
        """Begins the next epoch.

        Args:
            order: Gives the places of the inputs that it is made of, in their order; None: all of them, as the options say.
            batches: Places of the inputs of each batch, where a user says them; ``order`` is None then.
        """
        if batches is not None:
            return itertools.chain.from_iterable(map(self._run, _runs(batches)))
        with self._lock:
            loader, places = self._open(), None
            state, kept = self._loaded or ({}, None)
            if order is not None:
                if state:
                    self._orders = state["epoch"]
                places = order() if kept is None else kept
                loader = self._ordered(places)
                loader.set_epoch(self._next_order())
                if kept is not None:
                    loader.load_state_dict(state)
            elif any(run.loader is loader and run.is_under_way for run in self._runs):  # which goes on
                loader = loader.with_backend(loader.pipeline.backend)
                loader.set_epoch(self._loader.epoch + 1 + self._next_order())
            iterator = iter(loader)  # which holds the loader, and ends it with itself
            self._loaded = None
            self._runs = [*(run for run in self._runs if run.is_under_way), _Iteration(loader, weakref.ref(iterator), places)]
            return iterator

    def _run(self, batches: list[list[int]]) -> Iterator[Any]:
        """The batches of a run, see ``_runs``; it counts as an epoch."""
        with self._lock:
            counting = self._open()
            loader = self._ordered([*itertools.chain.from_iterable(batches)], batch_size=max(1, len(batches[0])), drop_last=False)
            epoch = counting.pipeline.next_epoch
            loader.set_epoch(epoch)
            counting.set_epoch(epoch + 1)
            self._loaded = None
            return iter(loader)

    def _next_order(self) -> int:
        self._orders += 1
        return self._orders - 1

    def state_dict(self) -> dict[str, Any]:
        """The position in the epoch, of this process."""
        with self._lock:
            if self._loaded is not None:
                state, order = self._loaded
            elif not self._runs:
                state, order = self._open().state_dict(), None
            else:
                # Of iterations at once the first is the one of training. One that was left behind counts only where there is no other.
                states = [(run, run.loader.state_dict()) for run in self._runs]
                under_way = [found for found in states if found[0].is_under_way]
                run, state = (under_way or [found for found in states if not found[1]["next_batch"]][-1:] or states[-1:])[0]
                order = run.order
            if order is None:
                return dict(state)
            # An epoch that has not begun has no order yet, and may get one of any length.
            if state["next_batch"]:
                return {**state, "order": list(order)}
            here = self._open().state_dict()
            return {**state, "num_seeds": here["num_seeds"], "inputs": here["inputs"]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a position."""
        state = dict(state)
        order: list[int] | None = state.pop("order", None)
        with self._lock:
            loader = self._open() if order is None else self._ordered(order)
            seed = loader.plan.batching.seed
            loader.load_state_dict({**state, "seed": seed} if "seed" in state else state)
            replace(loader.plan.batching, seed=state["seed"])  # which refuses what is no seed
            self._loaded, self._runs = (state, order), []
            if state["seed"] != seed:  # that of another process, which drew its own
                self._options["seed"], self._seen = state["seed"], None
                self._open()

    def at(self, places: Any) -> Any:
        """The batch of the inputs at these places; each call draws anew.

        Raises:
            PlanError: There is no such place.
        """
        return self._here().pipeline.sample_at(self._places(places).numpy(), self._next_call())

    def _places(self, places: Any) -> torch.Tensor:
        """Returns places of inputs, int64 ``[n]``, or those where a mask of all of them is true.

        Raises:
            PlanError: There is no such place.
        """
        array, count = to_array(places, "the places of inputs"), self.inputs.count
        if array.ndim > 1 and array.size != len(array):
            raise PlanError(f"places of inputs are one list, got an array of shape {list(array.shape)}")
        index = torch.from_numpy(array.copy()).reshape(-1)
        if index.dtype == torch.bool:
            if len(index) != count:
                raise PlanError(f"there is a mask of {len(index)} elements, and the loader has {count} inputs")
            index = index.nonzero().view(-1)
        if index.numel() and index.is_floating_point():
            raise PlanError(f"places of inputs are whole numbers, got {places!r:.80}")
        index = index.to(torch.long)
        if index.numel() and not -count <= int(index.min()) <= int(index.max()) < count:
            raise PlanError(f"there is no input {places!r:.80}", f"the loader has {count} inputs, with places from 0")
        return index % max(count, 1)

    def around(self, ids: Any) -> Any:
        """The batch of some nodes; each call draws anew."""
        return self._here().sample(torch.as_tensor(ids, dtype=torch.long), index=self._next_call())

    def _next_call(self) -> int:
        with self._lock:
            self._calls += 1
            return _first_call() + self._calls - 1

    def _here(self) -> GraphLoader:
        """A loader that samples in the calling thread: no other process has to be asked for a single batch."""
        with self._lock:
            loader = self._open()
            if isinstance(loader.pipeline.backend, (InProcess, OnDevice)):
                return loader
            if self._near is None or self._near[0] is not loader:
                self._near = loader, loader.with_backend(InProcess(num_threads=1))
            return self._near[1]

    def _ordered(self, order: list[int], **changes: Any) -> GraphLoader:
        """A loader of the inputs at these places, for one epoch."""
        loader, inputs = self._open(), self.inputs.taken(self._places(order))
        form = replace(self._form, input_id=inputs.input_id)
        return inputs.beside(loader, transform=form, shuffle=False, seed=self._options["seed"], **changes)

    def _open(self) -> GraphLoader:
        own = vars(self._sampler).items()
        seen = [*attributes_of(self._graph), (None, "transform", self.transform), *((None, name, value) for name, value in own)]
        if self._seen is None or not _are_same(seen, self._seen):
            graph = prepare(self._graph, self.inputs.edge_type)
            form = self._make_form(graph, **self._sampler.form(), transform=self.transform, input_id=self.inputs.input_id)
            sampled = {**self._sampler.options(self._graph, self.inputs.edge_type), **self._sampler.build}
            options = {**self._options, **sampled, **self.inputs.options(), "device": graph.device}
            if isinstance(options["backend"], InProcess):
                options["backend"] = backend_for_data(options["backend"], graph.device, options.get("sampler"))
            loader = GraphLoader.from_pyg(graph.data, transform=form, with_edge=True, rank=0, world_size=1, **options)
            if self._seen is not None:
                self._next_epoch = self._loader.pipeline.next_epoch
            if self._loaded is not None and self._loaded[1] is None:
                loader.load_state_dict(self._loaded[0])
            else:
                loader.set_epoch(self._next_epoch)
            self._loader, self._form, self._seen = loader, form, seen
        return self._loader


def _first_call() -> int:
    """The number that calls count from in this process: a worker of a ``DataLoader`` draws otherwise than the others, and in each epoch."""
    worker = torch.utils.data.get_worker_info()
    return 0 if worker is None else random.Random(worker.seed).getrandbits(_CALL_BITS)


def _plain(places: Any, what: str) -> list[Any]:
    """Returns the places that a sampler gives, which may be elements of a tensor or an array, as numbers of Python's own.

    Raises:
        PlanError: It gives none, but a single number or rows of them.
    """
    _check_list(places, what)
    found = []
    for place in places:
        if hasattr(place, "item") and math.prod(place.shape) != 1:
            raise PlanError(
                f"{what} gives rows of numbers, not places of inputs: {place!r:.80}", "give a list of places, one after the other"
            )
        found.append(place.item() if hasattr(place, "item") else place)
    return found


def _check_list(value: Any, what: str) -> None:
    """Refuses what has no elements; a tensor of one number says that it has some."""
    if not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0:
        raise PlanError(
            f"{what} must be a list, got {value!r:.80}", "places of inputs count from 0; a batch_sampler gives a list for each batch"
        )


def _runs(batches: Iterable[Iterable[int]]) -> Iterator[list[list[int]]]:
    """Yields the batches in runs that a loader can have: all of one size, but for the last one, which may be smaller."""
    _check_list(batches, "batch_sampler")
    run: list[list[int]] = []
    for batch in (_plain(batch, "a batch of batch_sampler") for batch in batches):
        if run and (len(run[-1]) < len(run[0]) or len(batch) > len(run[0])):
            yield run
            run = []
        run.append(batch)
    if run:
        yield run


def _are_same(left: list[tuple[Any, str, Any]], right: list[tuple[Any, str, Any]]) -> bool:
    """Whether the same objects stand under the same names."""
    return len(left) == len(right) and all(a[:2] == b[:2] and a[2] is b[2] for a, b in zip(left, right, strict=True))


# A neighbourhood of so many hops is a mistake.
_MOST_HOPS = 1 << 10
# Arguments of PyG's loaders and of DataLoader that ask for something that is done otherwise here.
_BY_PYG = "torch_geometric.loader.{}(data, gnnkit.pyg.{}(data, ...), ...) calls it"
_ANOTHER = "make another loader with it"
# What is done otherwise here: arguments of PyG's loaders and of DataLoader, attributes, and methods of derived classes.
_REFUSED = {
    "transform_sampler_output": f"there is no sampler output between sampling and the batch; transform= gets the whole batch, or {_BY_PYG}",
    "collate_fn": f"batches come whole from where they are sampled; transform= gets each, or {_BY_PYG}",
    "filter_fn": f"batches come whole from where they are sampled; transform= gets each, or {_BY_PYG}",
    "__collate__": "batches come whole from where they are sampled; call a function of your own on each",
    "neighbor_sampler": f"sampling is gnnkit's own: num_neighbors, replace, disjoint, ... say how, or {_BY_PYG}",
    "node_sampler": "its options may be assigned: loader.node_sampler.num_neighbors = [5, 5]; or make another loader",
    "link_sampler": "its options may be assigned: loader.link_sampler.num_neighbors = [5, 5]; or make another loader",
    "custom_cls": "give a transform= that makes an object of the class; a Data or HeteroData of a class of its own keeps it",
    **dict.fromkeys(("batch_size", "shuffle", "drop_last", "sampler", "batch_sampler", "dataset"), _ANOTHER),
    **dict.fromkeys(("num_workers", "prefetch_factor", "pin_memory", "timeout", "generator", "input_data"), _ANOTHER),
}
# These where a loader has them; elsewhere they are a script's own.
_OWN = ("input_nodes", "input_time", "input_id", "edge_label_index", "neg_sampling", "depth", "num_neighbors", "replace", "node_idx")
# Arguments of DataLoader that it takes of any kind, and fails with later.
_OF_DATA_LOADER = {
    **dict.fromkeys(("batch_size", "prefetch_factor"), "int | None"),
    **dict.fromkeys(("sampler", "batch_sampler"), "Iterable | None"),
    **dict.fromkeys(("drop_last", "pin_memory"), "bool"),
    "shuffle": "bool | None",
    "num_workers": "int",
    "timeout": "float",
}


_NO_WORKERS = "the processes that sample are not DataLoader's workers"


def _refusing(message: str, hint: str) -> Callable[..., NoReturn]:
    def method(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuses.

        Raises:
            PlanError: Always.
        """
        raise PlanError(message, hint)

    return method


class _OverGraphLoader:
    """Base of the loaders: a ``DataLoader`` whose iterations are those of a ``GraphLoader``."""

    _live: LiveLoader
    _given_order: bool
    _given_batches: bool

    def _keep(self, arguments: Mapping[str, Any]) -> None:
        """Has ``vars`` show what the constructor was given: Lightning makes loaders anew from that, with a sampler for each process.

        Raises:
            PlanError: ``transform_sampler_output`` is given, which cannot be followed.
        """
        vars(self).update({name: value for name, value in arguments.items() if name not in ("self", "kwargs")})
        if "filter_per_worker" in arguments:
            self._refuse(transform_sampler_output=arguments["transform_sampler_output"])
            given, data = arguments["filter_per_worker"], arguments["data"]
            # As PyG sets it: False for a graph on a GPU.
            self.filter_per_worker = not (isinstance(data, (Data, HeteroData)) and data.is_cuda) if given is None else given
            self.custom_cls = None

    def __setattr__(self, name: str, value: Any) -> None:
        if "_live" in vars(self):
            if name in _REFUSED or (name in _OWN and name in vars(self)):
                raise AttributeNotSettable(f"{name!r} of a loader cannot be assigned: batches would not follow it", self._advice(name))
            if name == "worker_init_fn" and value is not None:
                _ignore_worker_init_fn()
        super().__setattr__(name, value)

    def __getitem__(self, index: object) -> NoReturn:
        """Refuses what reads items by their numbers."""
        hint = f"{NEXT_BATCH}; loader([0, 1]) makes one of the first two inputs"
        raise PlanError(f"a loader has no item {index!r:.40}: it makes batches in the order of an epoch", hint)

    def __next__(self) -> NoReturn:
        """Refuses what takes a loader for one iteration over it."""
        raise PlanError("a loader is no iterator: each iter(loader) begins an epoch", NEXT_BATCH)

    def _advice(self, name: str) -> str:
        by_pyg = "LinkLoader" if isinstance(self, theirs.LinkLoader) else "NodeLoader"
        return _REFUSED.get(name, _ANOTHER).format(by_pyg, "HGTSampler" if isinstance(self, theirs.HGTLoader) else "NeighborSampler")

    def _refuse(self, **given: Any) -> None:
        """Refuses arguments that cannot be followed.

        Raises:
            PlanError: One is given.
        """
        for name, value in given.items():
            if value is not None:
                raise PlanError(f"{name}={value!r:.80} cannot be followed", self._advice(name))

    def _sampler_of(self, given: Any, graph: Data | HeteroData, directed: bool, *settings: Any) -> NeighborSampler:
        """The loader's sampler: the one that is given, or one of its own.

        Raises:
            PlanError: It is not gnnkit's.
        """
        if isinstance(given, NeighborSampler):
            return given
        self._refuse(neighbor_sampler=given)
        return NeighborSampler.unopened(graph, *settings, directed=directed)

    def _refuse_overrides(self) -> None:
        """Refuses methods of a derived class that PyG's loaders call for every batch, and these do not.

        Raises:
            PlanError: There is one.
        """
        own = next(kind for kind in type(self).__mro__ if kind.__module__ == __name__)
        for name in ("collate_fn", "filter_fn", "__collate__"):
            if getattr(type(self), name, None) is not getattr(own, name, None) and hasattr(own, name):
                raise PlanError(f"{type(self).__name__}.{name} would never be called", self._advice(name))

    def _start(
        self,
        data: Any,
        graph: Data | HeteroData,
        inputs: Inputs,
        sampler: GraphSampler,
        form: type[NodeForm],
        transform: Callable[[Any], Any] | None,
        kwargs: dict[str, Any],
        *,
        dataset: Any = None,
    ) -> None:
        """Makes the loader.

        Args:
            data: What the user gave.
            graph: The graph in it.
            inputs: What batches start from.
            sampler: What is sampled.
            form: The form of batches.
            transform: The user's function of a batch.
            kwargs: Arguments of ``DataLoader``.
            dataset: What the inputs are to ``DataLoader``, and to ``collate_fn``; None: their places.

        Raises:
            PlanError: A value is unusable, or a derived class has methods that would never be called.
        """
        self._refuse_overrides()
        kwargs.pop("dataset", None)  # Lightning gives it back, as it does the collate_fn of a loader
        if isinstance(getattr(kwargs.get("collate_fn"), "__self__", None), LiveLoader):
            del kwargs["collate_fn"]
        self._refuse(**{name: kwargs.pop(name, None) for name in ("transform_sampler_output", "custom_cls", "collate_fn", "filter_fn")})
        if kwargs.pop("worker_init_fn", None) is not None:
            _ignore_worker_init_fn()
        known = {**inspect.signature(type(self).__init__).parameters, **inspect.signature(DataLoader.__init__).parameters}
        own = [name for name, each in known.items() if name != "self" and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
        check_known(kwargs, own, {}, of=f" of {type(self).__name__}()")
        kwargs = {name: check_kind(name, value, _OF_DATA_LOADER.get(name, "Any"), globals()) for name, value in kwargs.items()}
        if kwargs.get("batch_size", 1) is None:
            raise PlanError("batch_size=None, and batches have a size", "batch_size=1 gives single inputs")
        self._given_order, self._given_batches = (kwargs.get(name) is not None for name in ("sampler", "batch_sampler"))
        # Its attributes, and its checks of its arguments; nothing of it runs.
        loader: Any = self
        inputs_of: Any = range(inputs.count) if dataset is None else dataset
        try:
            DataLoader.__init__(loader, inputs_of, **kwargs)
        except ValueError as error:
            raise PlanError(f"an argument of DataLoader is unusable: {error}") from error
        pin_memory = bool(loader.pin_memory) and torch.cuda.is_available()
        self._live = LiveLoader(
            data,
            graph,
            inputs,
            sampler,
            {
                "batch_size": loader.batch_size or 1,  # of batches of a batch_sampler, their own
                "shuffle": bool(kwargs.get("shuffle")),
                "drop_last": loader.drop_last,
                "seed": drawn_seed(loader.generator),
                "backend": Colocated(num_workers=loader.num_workers) if loader.num_workers else InProcess(),
                **_limits(loader),
            },
            functools.partial(form, pin_memory=pin_memory),
            transform,
        )
        vars(self)["collate_fn"] = self._live.at if dataset is None else self._live.around

    @property
    def graph_loader(self) -> GraphLoader:
        """The ``GraphLoader`` underneath: ``dashboard()``, ``profile()``, ``stats()``, ``state_dict()``, ``plan`` and ``close()``."""
        return self._live.loader

    @property
    def data(self) -> Any:
        """The graph. The next epoch sees attributes that are added, replaced or deleted."""
        return self._live.data

    @property
    def transform(self) -> Callable[[Any], Any] | None:
        """The function that is called on each batch, in the process that iterates."""
        return self._live.transform

    @transform.setter
    def transform(self, value: Callable[[Any], Any] | None) -> None:
        self._live.transform = vars(self)["transform"] = value

    def __iter__(self) -> Iterator[Any]:
        """Begins the next epoch; an iteration that is under way goes on."""
        loader: Any = self
        if self._given_batches:
            return self._live.epoch(batches=loader.batch_sampler)
        return self._live.epoch((lambda: _plain(loader.sampler, "sampler")) if self._given_order else None)

    def state_dict(self) -> dict[str, Any]:
        """The loader's position: that of ``GraphLoader.state_dict``, with the order of the epoch where it is the user's (``sampler=``).

        Of a ``batch_sampler=`` the place is the sampler's own: the state is that of an epoch that has not begun.
        While iterations are under way at once, as where one loader is for training and validation, it is that of the first of them.
        """
        return self._live.state_dict()

    @checks_arguments
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next iteration give exactly the batches that were left when the state was taken.

        It takes over the state's random seed, which a loader draws when it is made.

        Raises:
            PlanError: The state is of another kind of loader, or damaged.
        """
        if state_dict.get("next_batch") and self._given_batches:
            raise PlanError("the state is of a loader without batch_sampler=, amid an epoch", "make it as the other was made")
        if state_dict.get("next_batch") and ("order" in state_dict) != self._given_order:
            with_, without = ("with", "without") if "order" in state_dict else ("without", "with")
            raise PlanError(f"the state is of a loader {with_} sampler=, and this one is {without}", "make it as the other was made")
        self._live.load_state_dict(state_dict)

    def __call__(self, index: Tensor | list[int]) -> Data | HeteroData:
        """The batch of the inputs at places ``index``; each call draws anew."""
        batch: Data | HeteroData = self._live.at(index)
        return batch

    def filter_fn(self, out: Any) -> Any:
        """The batch, as it is: ``collate_fn`` gives whole ones."""
        return out

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    enable_cpu_affinity = _refusing(
        f"{_NO_WORKERS}, and cannot be bound to cores by a loader",
        "start the script with taskset or numactl: they may use the cores that it may use",
    )
    enable_multithreading = _refusing(_NO_WORKERS, "gnnkit.Colocated(threads_per_worker=...) with gnnkit.GraphLoader")
    enable_memory_log = _refusing(_NO_WORKERS, "loader.graph_loader.status() says how much memory they use")


def _limits(loader: Any) -> dict[str, Any]:
    """Waits and batches ahead, as the loader says where it says it."""
    found: dict[str, Any] = {}
    if loader.timeout:
        found["batch_timeout_s"] = float(loader.timeout)
    if loader.num_workers and loader.prefetch_factor is not None:
        found["prefetch"] = (loader.prefetch_factor - 1) * loader.num_workers  # beside those that are being sampled
    return found


def _ignore_worker_init_fn() -> None:
    warn("worker_init_fn is ignored: no code of a script runs in the processes that sample, and draws need no seeds of workers")


class NeighborLoader(_OverGraphLoader, theirs.NeighborLoader):  # type: ignore[misc]
    """PyG's ``NeighborLoader``, over ``gnnkit.GraphLoader``.

    Args:
        data: A ``Data``, a ``HeteroData``, or ``(FeatureStore, GraphStore)``, which is read once.
        num_neighbors: Fan-out per hop, one list or ``{edge type: list}``; -1 takes all neighbours.
        input_nodes: Ids or a mask, or None for all nodes; of a ``HeteroData`` a type, or ``(type, any of these)``.
        input_time: A time for each input node, with ``time_attr``; None: their own.
        replace: Draws neighbours with replacement.
        subgraph_type: "directional", "bidirectional" or "induced".
        disjoint: Gives every input node a neighbourhood of its own.
        temporal_strategy: "uniform" or "last".
        time_attr: Name of the node or edge array of times: nothing later than an input node is sampled around it.
        weight_attr: Name of the edge array in proportion to which neighbours are drawn.
        transform: Called on each batch, in the process that iterates.
        transform_sampler_output: Cannot be followed.
        is_sorted: Changes nothing: edges are sorted in linear time.
        filter_per_worker: Changes nothing: rows are gathered where batches are sampled.
        neighbor_sampler: A ``gnnkit.pyg.NeighborSampler`` whose options count instead of these.
        directed: Deprecated; False is ``subgraph_type="induced"``.
        input_id: What batches call the inputs, ``[n]``; None: the ids of a mask's nodes, else their places.
        **kwargs: Arguments of ``torch.utils.data.DataLoader``, such as ``batch_size``, ``shuffle``, ``drop_last`` and ``num_workers``.

    Raises:
        PlanError: A value is unusable, or cannot be followed.

    Example:
        >>> import gnnkit
        >>> from gnnkit.pyg import NeighborLoader
        >>> data = gnnkit.datasets.cora()
        >>> loader = NeighborLoader(data, num_neighbors=[5, 5], input_nodes=data.train_mask, batch_size=32)
        >>> next(iter(loader)).batch_size
        32
    """

    @checks_arguments
    def __init__(  # noqa: PLR0913 - PyG's
        self,
        data: Data | HeteroData | tuple[FeatureStore, GraphStore],
        num_neighbors: list[int] | dict[tuple[str, str, str], list[int]],
        input_nodes: Any = None,
        input_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[..., Any] | None = None,
        transform_sampler_output: Callable[..., Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: Any = None,
        directed: bool = True,
        input_id: Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        self._keep(locals())
        graph = as_object(data)
        sampler = self._sampler_of(
            neighbor_sampler, graph, directed, num_neighbors, subgraph_type, replace, disjoint, temporal_strategy, time_attr, weight_attr
        )
        if input_time is not None and not sampler.is_temporal:
            raise PlanError("input_time is given, and time_attr is not", "name the array that times are compared with: time_attr='time'")
        inputs = node_inputs(graph, input_nodes, input_time, input_id)
        self.node_sampler = sampler
        self.input_nodes, self.input_time, self.input_id = input_nodes, input_time, inputs.input_id
        self._start(data, graph, inputs, sampler, NodeForm, transform, kwargs)


class LinkNeighborLoader(_OverGraphLoader, theirs.LinkNeighborLoader):  # type: ignore[misc]
    """PyG's ``LinkNeighborLoader``, over ``gnnkit.GraphLoader``.

    Args:
        data: A ``Data``, a ``HeteroData``, or ``(FeatureStore, GraphStore)``, which is read once.
        num_neighbors: Fan-out per hop, one list or ``{edge type: list}``; -1 takes all neighbours.
        edge_label_index: ``[2, n]`` sources and targets, or None for all edges; of a ``HeteroData`` an edge type, or
            ``(edge type, any of these)``.
        edge_label: Labels ``[n, ...]``; where negatives are drawn with label 0, those that start from 0 become one higher.
        edge_label_time: Times ``[n]``, with ``time_attr``: nothing later is sampled around a link's ends.
        replace: Draws neighbours with replacement.
        subgraph_type: "directional", "bidirectional" or "induced".
        disjoint: Gives every end of a link a neighbourhood of its own.
        temporal_strategy: "uniform" or "last".
        neg_sampling: PyG's ``NegativeSampling``, "binary", "triplet", or a dict of its arguments.
        neg_sampling_ratio: Deprecated in PyG; negatives for each link, as "binary".
        time_attr: Name of the node or edge array of times.
        weight_attr: Name of the edge array in proportion to which neighbours are drawn.
        transform: Called on each batch, in the process that iterates.
        transform_sampler_output: Cannot be followed.
        is_sorted: Changes nothing: edges are sorted in linear time.
        filter_per_worker: Changes nothing: rows are gathered where batches are sampled.
        neighbor_sampler: A ``gnnkit.pyg.NeighborSampler`` whose options count instead of these.
        directed: Deprecated; False is ``subgraph_type="induced"``.
        input_id: What batches call the inputs, ``[n]``; None: the ids of a mask's nodes, else their places.
        **kwargs: Arguments of ``torch.utils.data.DataLoader``, such as ``batch_size``, ``shuffle``, ``drop_last`` and ``num_workers``.

    Raises:
        PlanError: A value is unusable, or cannot be followed.

    Example:
        >>> import gnnkit
        >>> from gnnkit.pyg import LinkNeighborLoader
        >>> data = gnnkit.datasets.cora()
        >>> loader = LinkNeighborLoader(data, num_neighbors=[5, 5], edge_label_index=data.edge_index, batch_size=32)
        >>> next(iter(loader)).edge_label_index.shape
        torch.Size([2, 32])
    """

    @checks_arguments
    def __init__(  # noqa: PLR0913 - PyG's
        self,
        data: Data | HeteroData | tuple[FeatureStore, GraphStore],
        num_neighbors: list[int] | dict[tuple[str, str, str], list[int]],
        edge_label_index: Any = None,
        edge_label: Tensor | None = None,
        edge_label_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: NegativeSampling | str | dict[str, Any] | None = None,
        neg_sampling_ratio: float | None = None,
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[..., Any] | None = None,
        transform_sampler_output: Callable[..., Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: Any = None,
        directed: bool = True,
        input_id: Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        self._keep(locals())
        graph = as_object(data)
        sampler = self._sampler_of(
            neighbor_sampler, graph, directed, num_neighbors, subgraph_type, replace, disjoint, temporal_strategy, time_attr, weight_attr
        )
        if (edge_label_time is None) == sampler.is_temporal:
            missing, given = ("edge_label_time", "time_attr") if edge_label_time is None else ("time_attr", "edge_label_time")
            raise PlanError(
                f"'{missing}' is not set, and '{given}' is", "times need both: the links' own, and the name of the array of the graph's"
            )
        inputs = link_inputs(graph, edge_label_index, edge_label, edge_label_time, neg_sampling, neg_sampling_ratio, input_id)
        self.link_sampler = sampler
        self.edge_label_index, self.neg_sampling = edge_label_index, inputs.negatives
        self._start(data, graph, inputs, sampler, NodeForm, transform, kwargs)


class HGTLoader(_OverGraphLoader, theirs.HGTLoader):  # type: ignore[misc]
    """PyG's ``HGTLoader``, over ``gnnkit.GraphLoader``.

    Args:
        data: A ``HeteroData``, or ``(FeatureStore, GraphStore)``, which is read once.
        num_samples: Nodes of each type in each iteration, one list or ``{node type: list}``; a type that is missing gets none.
        input_nodes: A node type, or ``(type, ids or a mask or None)``.
        is_sorted: Changes nothing: edges are sorted in linear time.
        transform: Called on each batch, in the process that iterates.
        transform_sampler_output: Cannot be followed.
        filter_per_worker: Changes nothing: rows are gathered where batches are sampled.
        input_id: What batches call the inputs, ``[n]``; None: the ids of a mask's nodes, else their places.
        **kwargs: Arguments of ``torch.utils.data.DataLoader``, such as ``batch_size``, ``shuffle``, ``drop_last`` and ``num_workers``.

    Raises:
        PlanError: A value is unusable, or cannot be followed.

    Example:
        >>> import gnnkit
        >>> from gnnkit.pyg import HGTLoader
        >>> data = gnnkit.datasets.cora().to_heterogeneous()
        >>> loader = HGTLoader(data, num_samples=[64, 64], input_nodes=("0", None), batch_size=32)
        >>> next(iter(loader))["0"].batch_size
        32
    """

    @checks_arguments
    def __init__(
        self,
        data: HeteroData | tuple[FeatureStore, GraphStore],
        num_samples: list[int] | dict[str, list[int]],
        input_nodes: Any,
        is_sorted: bool = False,
        transform: Callable[..., Any] | None = None,
        transform_sampler_output: Callable[..., Any] | None = None,
        filter_per_worker: bool | None = None,
        input_id: Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        self._keep(locals())
        graph = as_object(data)
        sampler = HGTSampler.unopened(graph, num_samples)
        inputs = node_inputs(graph, input_nodes, None, input_id)
        self.node_sampler = sampler
        self.input_nodes, self.input_time, self.input_id = input_nodes, None, inputs.input_id
        self._start(data, graph, inputs, sampler, NodeForm, transform, kwargs)


class ShaDowKHopSampler(_OverGraphLoader, theirs.ShaDowKHopSampler):  # type: ignore[misc]
    """PyG's ``ShaDowKHopSampler``, over ``gnnkit.GraphLoader``.

    Args:
        data: The graph.
        depth: Hops.
        num_neighbors: Neighbours that are drawn for each node in each hop; -1 takes all.
        node_idx: The roots, ids or a mask; None for all nodes.
        replace: Draws neighbours with replacement.
        **kwargs: Arguments of ``torch.utils.data.DataLoader``, such as ``batch_size``, ``shuffle``, ``drop_last`` and ``num_workers``.

    Raises:
        PlanError: A value is unusable, or cannot be followed.

    Example:
        >>> import gnnkit
        >>> from gnnkit.pyg import ShaDowKHopSampler
        >>> data = gnnkit.datasets.cora()
        >>> loader = ShaDowKHopSampler(data, depth=2, num_neighbors=5, node_idx=data.train_mask, batch_size=32)
        >>> next(iter(loader)).root_n_id.shape
        torch.Size([32])
    """

    @checks_arguments
    def __init__(
        self, data: Data, depth: int, num_neighbors: int, node_idx: Tensor | None = None, replace: bool = False, **kwargs: Any
    ) -> None:
        self._keep(locals())
        data = copy.copy(as_object(data))
        if not isinstance(data, Data):
            raise PlanError(
                f"data must be a Data, got {type(data).__name__}",
                "NeighborLoader(data, disjoint=True, subgraph_type='induced') gives such subgraphs of a HeteroData",
            )
        depth = whole_number("depth", depth, 1, _MOST_HOPS)
        inputs = node_inputs(data, node_idx)
        ids = torch.arange(inputs.count) if inputs.ids is None else inputs.ids
        self.node_idx = ids
        self.is_sparse_tensor = "edge_index" not in data and "adj_t" in data
        sampler = NeighborSampler.unopened(data, [num_neighbors] * depth, "induced", replace, True, "uniform")
        self._start(data, data, inputs, sampler, ShadowForm, None, kwargs, dataset=ids.tolist())

    def __collate__(self, n_id: list[int]) -> Any:
        return self._live.around(n_id)
