"""A ``GraphLoader`` on what a user's PyG object holds when an epoch begins."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData

from gnnkit.errors import PlanError
from gnnkit.graph_loader import GraphLoader
from gnnkit.pyg.graphs import PreparedGraph, attributes_of, prepare
from gnnkit.pyg.inputs import Inputs, NodeForm


class LiveLoader:
    """A ``GraphLoader`` that follows the object it was made of.

    Scripts for PyG add attributes to ``loader.data`` and delete some after the loader was made. Where an attribute was added, deleted or
    replaced, or ``transform`` was, the next epoch runs on a new ``GraphLoader``.

    Args:
        data: What the user gave.
        graph: The graph in it.
        inputs: What batches start from.
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
        options: Mapping[str, Any],
        form: Callable[[PreparedGraph], NodeForm],
        transform: Callable[[Any], Any] | None,
    ) -> None:
        self.data, self.inputs, self.transform = data, inputs, transform
        self._graph = graph
        self._options, self._make_form = dict(options), form
        self._loader: GraphLoader
        self._form: NodeForm
        self._seen: list[tuple[Any, str, Any]] | None = None
        self._calls = self._orders = 0
        self._lock = threading.Lock()
        self._open()

    @property
    def loader(self) -> GraphLoader:
        """The loader of the object as it is now."""
        with self._lock:
            return self._open()

    def epoch(self, order: Sequence[int] | None = None) -> Iterator[Any]:
        """Begins the next epoch.

        Args:
            order: Places of the inputs that it is made of, in their order; None: all of them, as the options say.
        """
        if order is None:
            return iter(self.loader)
        with self._lock:
            self._orders += 1
            number = self._orders - 1
        beside = self._beside(self.inputs.taken(torch.tensor(order, dtype=torch.long)))
        beside.set_epoch(number)
        return iter(beside)  # which holds the loader, and ends it with itself

    def at(self, places: Any) -> Any:
        """The batch of the inputs at these places; each call draws anew.

        Raises:
            PlanError: There is no such place.
        """
        index = torch.as_tensor(places)
        index = index.nonzero() if index.dtype == torch.bool else index
        index = index.reshape(-1).to(torch.long)
        count = self.inputs.count
        if index.numel() and not -count <= int(index.min()) <= int(index.max()) < count:
            raise PlanError(f"there is no input {places!r:.80}", f"the loader has {count} inputs, with places from 0")
        return self.around(self.inputs.taken(index % max(count, 1)))

    def around(self, inputs: Inputs) -> Any:
        """The batch of some inputs; each call draws anew."""
        with self._lock:
            self._calls += 1
            number = self._calls - 1
        with self._beside(inputs, batch_size=max(inputs.count, 1), drop_last=False) as beside:
            beside.set_epoch(number)
            return beside.peek()

    def _beside(self, inputs: Inputs, **changes: Any) -> GraphLoader:
        loader = self.loader
        return inputs.beside(loader, transform=replace(self._form, input_id=inputs.input_id), shuffle=False, **changes)

    def _open(self) -> GraphLoader:
        seen = [*attributes_of(self._graph), (None, "transform", self.transform)]
        if self._seen is None or not _are_same(seen, self._seen):
            graph = prepare(self._graph, self.inputs.edge_type)
            form = replace(self._make_form(graph), transform=self.transform, input_id=self.inputs.input_id)
            options = {**self._options, **self.inputs.options(), "device": graph.device}
            loader = GraphLoader.from_pyg(graph.data, transform=form, with_edge=True, rank=0, world_size=1, **options)
            if self._seen is not None:
                loader.set_epoch(self._loader.epoch + 1)
            self._loader, self._form, self._seen = loader, form, seen
        return self._loader


def _are_same(left: list[tuple[Any, str, Any]], right: list[tuple[Any, str, Any]]) -> bool:
    """Whether the same objects stand under the same names."""
    return len(left) == len(right) and all(a[:2] == b[:2] and a[2] is b[2] for a, b in zip(left, right, strict=True))
