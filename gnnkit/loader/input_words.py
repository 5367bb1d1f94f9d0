"""What users write about a loader's inputs, nodes or links, turned into what a plan holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from gnnkit.errors import PlanError
from gnnkit.loader.link_words import LinkOptions, resolve_input_links
from gnnkit.loader.words import resolve_input_nodes
from gnnkit.plan import Inputs, Sampling
from gnnkit.runtime.graph_handle import GraphHandle


@dataclass(frozen=True, kw_only=True)
class InputWords:
    """What batches start from.

    Attributes:
        input_nodes: A split's name, ids, a mask, ``("type", any of these)``, or None for all nodes.
        input_time: Whole numbers ``[n]``, with ``time_attr``: nothing later is sampled around a node; None is each node's own time.
        edge_label_index: Makes batches start from links: ``[2, n]`` ids, a split's name, ``(edge type, either of these)``, or an edge type
            for all its edges.
        links: What else is said about links.
    """

    input_nodes: Any = None
    input_time: Any = None
    edge_label_index: Any = None
    links: LinkOptions = field(default_factory=LinkOptions)

    def __post_init__(self) -> None:
        if self.edge_label_index is None:
            said = [one.name for one in fields(LinkOptions) if getattr(self.links, one.name) is not one.default]
            if said:
                raise PlanError(f"{said[0]} is about links, and edge_label_index says none", "give edge_label_index, or leave it out")
        elif self.input_time is not None:
            raise PlanError("input_time is about input nodes, and edge_label_index is given", "links have edge_label_time")

    @classmethod
    def of(cls, values: Mapping[str, Any], input_nodes: Any, usual: Any) -> InputWords:
        """Takes the words about inputs.

        Args:
            values: Names and values, of ``INPUT_WORDS``.
            input_nodes: What the user says of nodes.
            usual: What that is where nobody says anything.

        Raises:
            PlanError: A value is unusable, or nodes and links are given.
        """
        links = LinkOptions(**{name: value for name, value in values.items() if name in LINK_WORDS})
        index = values.get("edge_label_index")
        if index is not None and input_nodes is not usual and input_nodes != usual:
            raise PlanError("input_nodes and edge_label_index are both given", "batches start from nodes or from links: give one of them")
        return cls(input_nodes=input_nodes, input_time=values.get("input_time"), edge_label_index=index, links=links)

    def resolve(self, sampling: Sampling, graph: GraphHandle) -> Inputs:
        """The plan's form.

        Raises:
            PlanError: A type or split is unknown or not clear, or an array is unusable.
        """
        if self.edge_label_index is not None:
            return resolve_input_links(self.edge_label_index, self.links, sampling, graph)
        return resolve_input_nodes(self.input_nodes, graph, self.input_time, sampling.time_attr)


LINK_WORDS = tuple(one.name for one in fields(LinkOptions))
# Words that every constructor takes beside ``input_nodes``.
INPUT_WORDS = ("input_time", "edge_label_index", *LINK_WORDS)
