"""Loaders beside a loader: other inputs, options or places to sample, on the same graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from gnnkit.backends.base import Backend
from gnnkit.events import EventSink
from gnnkit.loader.graphs import placed_graph
from gnnkit.loader.input_words import LINK_WORDS, InputWords
from gnnkit.loader.link_words import LinkOptions, resolve_input_links
from gnnkit.loader.options import LoaderOptions, check_names
from gnnkit.loader.planned import checked_inputs
from gnnkit.loader.sampling_words import resolve_sampling
from gnnkit.plan import Inputs, LoaderPlan, Sampling
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.schema import EdgeType

if TYPE_CHECKING:
    from gnnkit.loader.facade import GraphLoader
    from gnnkit.loader.feature_cache import FeatureCache
    from gnnkit.plan import LabelOutput


class LoaderSiblings:
    """The methods of ``GraphLoader`` that make another one; closing one leaves the rest.

    Attributes:
        plan: The plan of this one.
    """

    plan: LoaderPlan
    _graph: GraphHandle
    _events: EventSink
    _transform: Callable[[Any], Any] | None
    _device: Any
    _cache: FeatureCache | None
    _check_open: Callable[[], None]

    def for_split(self, input_nodes: Any, *, input_time: Any = None, **changes: Any) -> GraphLoader:
        """A loader of other nodes; other options where they are given.

        Args:
            input_nodes: A split's name, ids, a mask, ``("type", any of these)``, or None for all nodes.
            input_time: See ``InputWords``.
            **changes: Any of ``num_neighbors``, ``sampler``, ``batch_size``, ``shuffle`` (False unless given), ``drop_last``, ``replace``,
                ``disjoint``, ``subgraph_type``, ``temporal_strategy``, ``seed``, ``remainder``, ``transform``, ``device``, ``backend``,
                ``feature_cache``, ``placement``.

        Raises:
            PlanError: An option is unknown or its value unusable.
        """
        words = InputWords(input_nodes=input_nodes, input_time=input_time)
        return self._sibling(lambda sampling: (words.resolve(sampling, self._graph), sampling), changes)

    def for_links(self, edge_label_index: Any, **changes: Any) -> GraphLoader:
        """A loader of links, as PyG's ``LinkNeighborLoader``.

        Args:
            edge_label_index: ``[2, n]`` ids of sources and targets, a split's name, ``(edge type, either of these)``, or an edge type for
                all its edges; None for all edges of a homogeneous graph.
            **changes: ``edge_label``, ``edge_label_time``, ``neg_sampling``, ``neg_amount``, ``neg_strict``, ``exclude_edges`` (see
                ``LinkOptions``), and those of ``for_split``.

        Raises:
            PlanError: An option is unknown or its value unusable.
        """
        check_names(changes, [*LINK_WORDS, *(field.name for field in fields(LoaderOptions))])
        said = {name: value for name, value in changes.items() if name in LINK_WORDS}
        links = LinkOptions(**said)
        rest = {name: value for name, value in changes.items() if name not in LINK_WORDS}
        return self._sibling(lambda sampling: (resolve_input_links(edge_label_index, links, sampling, self._graph), sampling), rest)

    def for_anchors(
        self,
        positive: EdgeType | list[EdgeType],
        negative: EdgeType | list[EdgeType | None] | None = None,
        *,
        input_nodes: Any = None,
        cap: int | None = None,
        output: LabelOutput = "dict",
        **changes: Any,
    ) -> GraphLoader:
        """A loader of anchors, each with the nodes that it is to be told together with, and apart from.

        Args:
            positive: The edge type of the positive labels, as it leads from anchors to labels; or several.
            negative: The same for negative labels; for several positive types a list of as many, None where there are none.
            input_nodes: The anchors: a split's name, ids, a mask, or None for all nodes of the type.
            cap: Labels of each kind that an anchor keeps, at most; None keeps all.
            output: "dict" gives ``{number of an anchor: numbers of its labels}``, "edge_index" ``[2, e]``.
            **changes: Those of ``for_split``.

        Raises:
            PlanError: A type is unknown, or stored the wrong way round, or an option's value is unusable.
        """
        from gnnkit.loader.anchor_words import resolve_anchors, without_labels

        inputs = resolve_anchors(self._graph, input_nodes, positive=positive, negative=negative, cap=cap, output=output)
        return self._sibling(lambda sampling: (inputs, without_labels(sampling, inputs.label_types)), changes)

    def with_backend(self, backend: Backend | str, **changes: Any) -> GraphLoader:
        """The same batches from somewhere else.

        Args:
            backend: Where sampling happens, see ``LoaderOptions``.
            **changes: Those of ``for_split``.

        Raises:
            PlanError: An option is unknown or its value unusable.
        """
        return self._elsewhere(backend, changes)

    def _elsewhere(self, backend: Backend | str, changes: Mapping[str, Any], events: EventSink | None = None) -> GraphLoader:
        """See ``with_backend``; its events go to ``events``, None is where this one's go."""
        batching = self.plan.batching
        kept = {"shuffle": batching.shuffle, "remainder": batching.remainder, "backend": backend}
        return self._sibling(lambda sampling: checked_inputs(self.plan.inputs, sampling, self._graph), {**kept, **changes}, events)

    def _sibling(
        self,
        inputs_on: Callable[[Sampling], tuple[Inputs, Sampling]],
        changes: Mapping[str, Any],
        events: EventSink | None = None,
    ) -> GraphLoader:
        from gnnkit.loader.facade import GraphLoader

        self._check_open()
        before = self.plan.sampling
        options = LoaderOptions.of_plan(self.plan, self._transform, self._device).changed(changes)
        sampling = resolve_sampling(
            options,
            self._graph.arrays.schema,
            edge_dir=before.edge_dir,
            weight=before.weight,
            time_attr=before.time_attr,
            with_edge=before.with_edge,
        )
        inputs, sampling = inputs_on(sampling)
        graph, placement = placed_graph(self._graph, options) if "placement" in changes else (self._graph, self.plan.placement)
        plan = replace(
            self.plan,
            inputs=inputs,
            sampling=sampling,
            batching=options.batching(inputs),
            backend=options.backend_json(placement),
            runtime=options.runtime(),
            placement=placement,
        )
        return GraphLoader(plan, graph, events or self._events, transform=options.transform, device=options.device, cache=self._cache)
