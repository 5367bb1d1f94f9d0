"""``DistDataset`` where graphlearn-torch's native library fits: a dataset of its own as well, for its loaders and servers.

What graphlearn-torch reads is made of the store when it is first asked for, in the dataset's ids, and shared with its processes.
"""

from __future__ import annotations

import functools
from functools import cache, partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch

from gnnkit.backends.glt.data import IdScheme, PartBuilder
from gnnkit.distributed.dataset import DistDataset
from gnnkit.distributed.store_views import StoreViews
from gnnkit.storage.store import Store
from gnnkit.vendor import glt

# What graphlearn-torch's processes are given rather than make again.
_SHARED = ("graph", "node_features", "edge_features", "node_pb", "edge_pb", "node_labels")


@cache
def native_class() -> type[DistDataset] | None:
    """The class of datasets that are graphlearn-torch's own too; None where its native library does not fit."""
    if glt.status().kind != "native":
        return None
    base: Any = glt.attribute("distributed.DistDataset", "gnnkit.distributed.DistDataset")

    class NativeDistDataset(_Native, base):  # type: ignore[misc]
        __doc__ = DistDataset.__doc__

    ForkingPickler.register(NativeDistDataset, _reduce_shared)
    return NativeDistDataset


class _Made:
    """An attribute whose value may be a function that makes it, called when it is first read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, dataset: Any, owner: type | None = None) -> Any:
        if dataset is None:
            return self
        value = dataset.__dict__[self._name]
        if isinstance(value, partial):
            value = dataset.__dict__[self._name] = value()
        return value

    def __set__(self, dataset: Any, value: Any) -> None:
        dataset.__dict__[self._name] = value


class _Split:
    """A split of the store, until somebody gives another one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, dataset: Any, owner: type | None = None) -> Any:
        if dataset is None:
            return self
        return dataset.own_split[self._name] if self._name in dataset.own_split else dataset._split(self._name)

    def __set__(self, dataset: Any, value: Any) -> None:
        dataset.own_split[self._name] = value


def _both(name: str) -> Any:
    """A method that is ``DistDataset``'s, and then graphlearn-torch's own."""

    def method(self: Any, *args: Any, **kwargs: Any) -> None:
        getattr(super(_Native, self), name)(*args, **kwargs)
        getattr(super(DistDataset, self), name)(*args, **kwargs)

    return functools.wraps(getattr(DistDataset, name))(method)


class _Native(DistDataset):
    """A dataset with the attributes of graphlearn-torch's base class."""

    graph, node_features, edge_features = _Made(), _Made(), _Made()
    node_pb, edge_pb, node_labels = _Made(), _Made(), _Made()
    train_node_ids = train_idx = _Split("train")
    val_node_ids = val_idx = _Split("valid")
    test_node_ids = test_idx = _Split("test")
    init_graph, init_node_features, init_edge_features, init_node_labels = map(
        _both, ("init_graph", "init_node_features", "init_edge_features", "init_node_labels")
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.own_split: dict[str, Any] = {}
        self._graph_mode: Any = "CPU"
        self._device: int | None = None
        self._directed = False
        self.graph_caching = False
        self.id_filter = glt.attribute("utils.default_id_filter")
        self.id_select = glt.attribute("utils.default_id_select")
        super().__init__(*args, **kwargs)
        self.node_labels = self._labels

    def __reduce__(self) -> Any:
        if self._views is None:
            return super().__reduce__()
        return (_rebuild, (self._views.store, self.partition_idx, self._choices, {}))

    @property
    def _choices(self) -> dict[str, Any]:
        """The user's choices that a store does not hold: splits of one's own, and the place where graphlearn-torch samples."""
        return {name: self.__dict__[name] for name in ("own_split", "_graph_mode", "_device")}

    def load(
        self, root_dir: str | Path | None = None, partition_idx: int | None = None, graph_mode: str = "ZERO_COPY", *args: Any, **kwargs: Any
    ) -> None:
        """As ``DistDataset.load``; graphlearn-torch's own sampling runs where ``graph_mode`` and ``device`` say."""
        self._graph_mode, self._device = graph_mode, kwargs.get("device", args[3] if len(args) > 3 else None)
        super().load(root_dir, partition_idx, graph_mode, *args, **kwargs)

    def _take(self, views: StoreViews, part: int) -> None:
        super()._take(views, part)
        self.own_split = {}
        schema = views.store.schema
        self.graph = partial(self._of, "edges", schema.edge_types, "weight")
        for kind, types, name in (("node", schema.node_types, "x"), ("edge", schema.edge_types, "edge_attr")):
            with_features: Any = {t: of_type for t, of_type in types.items() if name in of_type.arrays}
            setattr(self, f"{kind}_features", partial(self._of, f"{kind}_features", with_features, name))
            setattr(self, f"{kind}_pb", partial(self._of, f"{kind}_book", types))
        self.node_labels = partial(self._read_labels, views)

    def _of(self, what: str, types: Any, name: str | None = None) -> Any:
        """One of ``PartBuilder``'s for every type."""
        views = self._stored(what)
        # "ZERO_COPY" is the default of `load`, also where there is no GPU to read the memory.
        graph_mode: Any = self._graph_mode if torch.cuda.is_available() else "CPU"
        builder = PartBuilder(IdScheme(views.arrays, of_dataset=True), self.partition_idx, graph_mode, self._device)
        if what == "edges":
            name = views.store.options.weight
        arguments = () if what.endswith("book") else (name,)
        return views.unwrapped({graph_type: getattr(builder, what)(graph_type, *arguments) for graph_type in types})

    def _read_labels(self, views: StoreViews) -> Any:
        labels = views.labels()
        if not labels and not views.store.schema.is_homogeneous:
            return {"": torch.empty(0)}  # GLT-10
        return views.unwrapped(labels)


def _reduce_shared(dataset: Any) -> Any:
    """Pickles a dataset for graphlearn-torch's processes, with the objects that it has made; their memory goes by descriptor."""
    store = dataset.store
    if store is None:
        return DistDataset.__reduce__(dataset)
    made = {name: getattr(dataset, name) for name in _SHARED}
    return _rebuild, (store, dataset.partition_idx, dataset._choices, made)


def _rebuild(store: Store, partition_idx: int, choices: dict[str, Any], made: dict[str, Any]) -> Any:
    dataset: Any = DistDataset()
    dataset._take(StoreViews(store), partition_idx)
    dataset.__dict__.update(choices)
    for name, value in made.items():
        setattr(dataset, name, value)
    return dataset
