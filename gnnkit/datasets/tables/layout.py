"""The layout of tables: which of them belong to which type, and what each of their columns is; a NetworkX graph as two tables."""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from gnnkit.datasets.table_options import Mean, TableOptions
from gnnkit.datasets.tables.columns import is_text, plain_type
from gnnkit.datasets.tables.keys import key_kind
from gnnkit.datasets.tables.reading import SourceTable, open_table
from gnnkit.datasets.tables.texts import AS_TOLD, TEXT_OPTIONS, TextOptions
from gnnkit.errors import PlanError, near_matches
from gnnkit.events import EventSink
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, HOMOGENEOUS_NODE_TYPE, EdgeType, NodeType, edge_type_name
from gnnkit.storage.keys import INTEGER
from gnnkit.storage.layout import FEATURE_NAME, LABEL_NAME
from gnnkit.storage.store import Store


def is_networkx(form: Any) -> bool:
    """Whether this is a NetworkX graph; NetworkX is not imported."""
    return hasattr(form, "is_directed") and hasattr(form, "adj") and hasattr(form, "nodes")


def tables_of_networkx(graph: Any) -> tuple[dict[str, list[Any]], dict[str, list[Any]], str, tuple[str, str]]:
    """The tables of a NetworkX graph, nodes and edges in its own order; an undirected graph has each edge in both directions.

    Args:
        graph: The graph; its nodes are whole numbers or texts.

    Returns:
        The table of nodes, with their attributes; that of edges, with theirs; the name of the column of nodes; and those of the ends of
        edges. These are "node", "src" and "dst", with an underscore before them where attributes have these names.
    """
    of_nodes = _attributes(data for _, data in graph.nodes(data=True))
    key = _free("node", of_nodes)
    if {*map(type, graph.nodes)} - {str} and not all(isinstance(node, (int, np.integer)) for node in graph.nodes):
        raise PlanError(
            "nodes of the NetworkX graph are not all whole numbers, and not all texts", "networkx.relabel_nodes(edges, str) is one"
        )
    nodes = {key: list(graph.nodes), **of_nodes}
    listed = list(graph.edges(data=True))
    if not graph.is_directed():
        # As PyG's from_networkx: edges of the directed graph that has both directions, each a loop once.
        listed = list(graph.to_directed(as_view=True).edges(data=True))
    of_edges = _attributes(edge[2] for edge in listed)
    src, dst = _free("src", of_edges), _free("dst", of_edges)
    edges = {src: [edge[0] for edge in listed], dst: [edge[1] for edge in listed], **of_edges}
    return nodes, edges, key, (src, dst)


def _free(name: str, taken: Mapping[str, Any]) -> str:
    while name in taken:
        name = f"_{name}"
    return name


def _attributes(found: Iterable[dict[str, Any]]) -> dict[str, list[Any]]:
    rows = list(found)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {str(name): [row.get(name) for row in rows] for name in names}


EDGE_FEATURES = "edge_attr"


@dataclass
class NodeTable:
    """A node type: its table or number of nodes, the columns of its keys, and the columns of each use.

    Its form is "table", "count", or "edges" where the nodes are those that edges name. Without keys, ``ids`` is the column that may name
    nodes all the same, if there is one.
    """

    name: NodeType
    form: str
    table: SourceTable | None = None
    count: int = 0
    keys: tuple[str, ...] = ()
    uses: dict[str, tuple[str, ...]] = field(default_factory=dict)
    ids: str | None = None

    @property
    def by_row(self) -> bool:
        """Whether nodes are named by their numbers."""
        return not self.keys and self.form != "edges"


@dataclass
class EdgeTable:
    """An edge type: its table, None where nothing is appended to it, the columns of both ends, and the columns of each use."""

    name: EdgeType
    table: SourceTable | None
    ends: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    named: tuple[bool, bool] = (False, False)
    uses: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def node_types(self) -> tuple[NodeType, NodeType]:
        """The types of sources and of targets."""
        return self.name[0], self.name[2]

    @property
    def relation(self) -> str | None:
        """The column whose values name edge types, which then take the place of this one; None where there is none."""
        return next(iter(self.uses.get("edge_type", ())), None)


_NODE_USES = ("features", "one_hot", "categories", "label", "split", "time")
_EDGE_USES = ("features", "one_hot", "categories", "label", "time", "edge_weight", "edge_type")


@dataclass(frozen=True)
class Layout:
    """The tables of a graph, by type.

    Attributes:
        nodes: ``{node type: its table}``.
        edges: ``{edge type: its table}``.
        types: ``{column: the type that it is to have}``.
        is_homogeneous: Whether there is one type of each.
    """

    nodes: dict[NodeType, NodeTable]
    edges: dict[EdgeType, EdgeTable]
    types: dict[str, pa.DataType]
    is_homogeneous: bool

    @classmethod
    def of(cls, edges: Any, nodes: Any, options: TableOptions, events: EventSink) -> Layout:
        """Sorts the options by types, and opens the tables.

        Raises:
            PlanError: An option is unusable.
            DatasetError: A table cannot be opened.
        """
        keys, src, dst, types = options.keys, options.src, options.dst, _types_of(options.types)
        given = {name: getattr(options, name) for name in dict.fromkeys((*_NODE_USES, *_EDGE_USES, *TEXT_OPTIONS))}
        if is_networkx(edges):
            if any(value is not None for value in (nodes, keys, src, dst)):
                raise PlanError("edges is a NetworkX graph, which has its own nodes and ends", "leave nodes, keys, src and dst away")
            nodes, edges, keys, (src, dst) = tables_of_networkx(edges)
        typed = isinstance(edges, Mapping) and all(isinstance(key, tuple) for key in edges)
        if not typed:
            if isinstance(nodes, Mapping) and any(isinstance(form, (str, Path)) for form in nodes.values()):
                hint = "give edges={(source type, relation, target type): table}, or one table of nodes"
                raise PlanError(f"nodes are by type, {list(nodes)}, and edges is one table", hint)
            edges = {HOMOGENEOUS_EDGE_TYPE: edges}
            nodes = {} if nodes is None else {HOMOGENEOUS_NODE_TYPE: nodes}
        _check_forms(edges=edges, nodes=nodes)
        if not edges:
            raise PlanError("there are no tables of edges", "give edges={(source type, relation, target type): table}")
        if nodes is not None and not isinstance(nodes, Mapping):
            raise PlanError(f"nodes is one table, and edges are {len(edges)} by type", "give nodes={node type: table}")
        wrong = [name for name in edges if len(name) != 3 or not all(isinstance(word, str) for word in name)]
        if wrong:
            raise PlanError(f"{wrong[0]!r} is no edge type", "an edge type is (source type, relation, target type)")
        ends = [end for name in edges for end in (name[0], name[2])]
        node_types, edge_types = sorted({*ends, *(nodes or {})}), sorted(edges)
        by_type = _ByType(node_types, edge_types, typed)
        for option, value in {"keys": keys, "src": src, "dst": dst, "standardize": options.standardize, **given}.items():
            by_type.check(option, value)
        named = {t: by_type.one("keys", keys, t) for t in node_types}
        made = {t: _node_table(t, (nodes or {}).get(t), own, types, events, _text_of(given, t)) for t, own in named.items()}
        rows = {t: EdgeTable(t, open_table(edges[t], _what("edges", t, typed), types, events, _text_of(given, t))) for t in edge_types}
        layout = cls(made, rows, types, not typed)
        for option, value in given.items():
            layout._use(option, value, by_type)
        layout._take_ends(src, dst, by_type)
        layout._standardize(options.standardize, by_type)
        layout._check()
        layout.need_columns("types", types)
        return layout

    @property
    def owners(self) -> list[NodeTable | EdgeTable]:
        """Node types, then edge types."""
        return [*self.nodes.values(), *self.edges.values()]

    def fills(self, fill: Mapping[str, Any] | str | None) -> dict[str, Any]:
        """The values that take the place of nulls, by column.

        Raises:
            PlanError: It names a column that there is not, or is another word than "mean".
        """
        if isinstance(fill, str):
            if fill not in get_args(Mean):
                raise PlanError(f"fill={fill!r}", "it is {column: value}, or 'mean' for all features")
            fill = {column: fill for owner in self.owners for column in owner.uses.get("features", ())}
        self.need_columns("fill", fill or {})
        # As a store's manifest can hold them.
        return {column: str(value) if isinstance(value, (date, np.datetime64)) else value for column, value in (fill or {}).items()}

    def unlabelled(self, values: Any) -> tuple[Any, ...]:
        """Returns the values of labels that mean none: of one, of several in any form, or none at all.

        Raises:
            PlanError: There are no labels, or values are by type.
        """
        if values is None:
            return ()
        if isinstance(values, Mapping) or not any("label" in owner.uses for owner in self.owners):
            hint = "give values of label=, such as ['unknown'], which hold for the labels of all types"
            raise PlanError(f"unlabelled={values!r}" + ("" if isinstance(values, Mapping) else ", and no label= is given"), hint)
        return (values,) if isinstance(values, str) or not isinstance(values, Iterable) else tuple(values)

    def check_undirected(self) -> None:
        """Refuses arrays of edges that cannot be added up, where the edges between the same two nodes become one.

        Raises:
            PlanError: There is one.
        """
        for edge in self.edges.values():
            for option in ("time", "label", "categories"):
                if edge.name[0] == edge.name[2] and option in edge.uses:
                    swapped = dict(zip(sum(edge.ends, ()), sum(edge.ends[::-1], ()), strict=True))
                    raise PlanError(
                        f"undirected=True adds up what edges between the same nodes have, and {option}={list(edge.uses[option])} of edges "
                        "cannot be added up",
                        f"give each edge twice: pandas.concat([edges, edges.rename(columns={swapped})])",
                    )

    def need_columns(self, option: str, columns: Iterable[str]) -> None:
        """Refuses names that are columns of no table.

        Raises:
            PlanError: There is one.
        """
        tables = [owner.table for owner in self.owners if owner.table is not None]
        known = list(dict.fromkeys(name for table in tables for name in table.schema.names))
        for column in columns:
            if column not in known:
                raise PlanError(f"{option} names {column!r}, which is no column{near_matches(str(column), known)}", f"columns: {known}")

    @classmethod
    def after(cls, store: Store, state: Mapping[str, Any], edges: Any, nodes: Any, events: EventSink) -> Layout:
        """Sorts tables that come after those of a store, whose columns are used in the same way.

        Args:
            store: The store.
            state: What it knows of its tables, see ``TableSource.append_state``.
            edges: Tables of edges, as ``tables`` takes them; None for none.
            nodes: Tables of nodes, or numbers of nodes, likewise.
            events: Receives progress.

        Raises:
            PlanError: There is no such type, or a column is missing.
            DatasetError: A table cannot be opened.
        """
        schema = store.schema
        given_as = _edges_of(store, state)
        edges, nodes = _given_after(store, list(given_as), edges, nodes)
        fields = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(state["types"])))
        types = {name: fields.field(name).type for name in fields.names}
        made = {name: _node_after(store, name, own, nodes.get(name), types, events) for name, own in state["nodes"].items()}
        rows = {}
        for edge_type, own in given_as.items():
            table = None
            if (form := edges.get(edge_type)) is not None:
                texts = _texts(own)
                for columns, name in zip(own["ends"], (edge_type[0], edge_type[2]), strict=True):
                    texts += [] if made[name].by_row else _text_keys(store, name, columns)
                what = _what("edges", edge_type, edge_type != HOMOGENEOUS_EDGE_TYPE)
                table = open_table(form, what, types, events, *_text_after(own, [*own["ends"][0], *own["ends"][1]])).with_texts(texts)
            rows[edge_type] = _edge_after(edge_type, own, table, made)
        layout = cls(made, rows, types, schema.is_homogeneous)
        layout._check()
        for node in made.values():
            if node.table is not None and node.keys:
                _check_kinds(store, node.name, node.table, node.keys)
        for edge in rows.values():
            for columns, name in zip(edge.ends, (edge.name[0], edge.name[2]), strict=True):
                if edge.table is not None and not made[name].by_row:
                    _check_kinds(store, name, edge.table, columns)
        return layout

    def _use(self, option: str, value: Any, by_type: _ByType) -> None:
        """Enters the columns of one use; those of a graph of one type belong to its nodes, unless only its edges have them."""
        shared = self.is_homogeneous and not isinstance(value, Mapping)
        if shared and option in _NODE_USES and option in _EDGE_USES:
            (node,), (edge,) = self.nodes.values(), self.edges.values()
            columns = by_type.one(option, value, node.name)
            of_nodes, of_edges = ([c for c in columns if own.table and c in own.table.schema.names] for own in (node, edge))
            if option == "time" and (both := [column for column in of_nodes if column in of_edges]):
                hint = f"time={{{node.name!r}: {both[0]!r}}} takes the one of nodes, time={{{edge.name}: {both[0]!r}}} that of edges"
                raise PlanError(f"time={both[0]!r} is a column of nodes and one of edges", hint)
            if of_nodes and {*of_nodes} < {*columns} == {*of_nodes, *of_edges}:
                alone = [column for column in of_edges if column not in of_nodes]
                hint = f"{option}={ {node.name: of_nodes, edge.name: alone} } takes each where it is"
                raise PlanError(f"{option}={list(columns)}: {of_nodes} are columns of nodes, and {alone} of edges", hint)
        for node_type, node in self.nodes.items():
            columns = by_type.one(option, value, node_type) if option in _NODE_USES else ()
            edges = next(iter(self.edges.values())).table
            if columns and not (shared and edges is not None and _only_edges_have(columns, node.table, edges)):
                node.uses[option] = columns
        for edge_type, edge in self.edges.items():
            columns = by_type.one(option, value, edge_type) if option in _EDGE_USES else ()
            if columns and not (shared and any(option in node.uses for node in self.nodes.values())):
                edge.uses[option] = columns

    def _take_ends(self, src: Any, dst: Any, by_type: _ByType) -> None:
        """Finds the columns of the ends of edges; those of options are none."""
        for edge_type, edge in self.edges.items():
            found = [by_type.one(option, value, edge_type, shared=True) for option, value in (("src", src), ("dst", dst))]
            used = {column for columns in edge.uses.values() for column in columns}
            assert edge.table is not None, "it was opened"
            nodes = self.nodes[edge_type[0]], self.nodes[edge_type[2]]
            edge.ends = _ends(edge.table, found, *nodes, used, edge_type if by_type.typed else None)
            edge.named = bool(found[0]), bool(found[1])

    def _standardize(self, value: Any, by_type: _ByType) -> None:
        """Enters the features that are standardized.

        Raises:
            PlanError: A column is none of the features.
        """
        shared = self.is_homogeneous and not isinstance(value, Mapping)
        every = {column for owner in self.owners for column in owner.uses.get("features", ())}
        if value is True and not every:
            raise PlanError("standardize=True, and there are no features", "features=[...] names columns of numbers")
        for owner in self.owners if value is not False else ():
            features = owner.uses.get("features", ())
            asked = features if value is True else by_type.one("standardize", value, owner.name)
            if wrong := [column for column in asked if column not in (every if shared else features)]:
                raise PlanError(f"standardize names {wrong[0]!r}, which is none of the features", f"features: {sorted(every)}")
            if columns := tuple(column for column in asked if column in features):
                owner.uses["standardize"] = columns

    def _check(self) -> None:
        for node in self.nodes.values():
            for option, columns in node.uses.items():
                if node.table is None and node.form != "table":
                    having = [edge.name for edge in self.edges.values() if edge.table and {*columns} <= {*edge.table.schema.names}]
                    hint = "".join(f"; {option}={{{name}: {list(columns)}}} takes those of edges" for name in having[:1])
                    raise PlanError(f"{option}={list(columns)}: there is no table of nodes {node.name!r}", f"nodes=... gives it{hint}")
            if node.table is not None:
                node.table.with_names(node.keys)
                for column in node.keys:
                    key_kind(node.table, column, "keys")
                _need_all(node.table, node.uses)
                node.ids = None if node.keys else self._ids_of(node.table, node)
        for edge in self.edges.values():
            if edge.table is None:
                continue
            _need_all(edge.table, edge.uses)
            for columns, node in zip(edge.ends, (self.nodes[edge.name[0]], self.nodes[edge.name[2]]), strict=True):
                self._check_end(edge.table, columns, node)
        for owner in self.owners:
            for option in ("split", "time", "edge_weight", "edge_type"):
                if len(owner.uses.get(option, ())) > 1:
                    raise PlanError(f"{option}={list(owner.uses[option])} of {owner.name!r}: it is one column")

    def _ids_of(self, table: SourceTable, node: NodeTable) -> str | None:
        """The column of whole numbers that is called as ids are, as an end of edges is, or is the index of a data frame; None for none."""
        ends = {end for edge in self.edges.values() for end, name in zip(edge.ends, edge.node_types, strict=True) if name == node.name}
        used = {column for columns in node.uses.values() for column in columns}
        free = [name for name in table.schema.names if name not in used and pa.types.is_integer(table.kind(name))]
        index = getattr(getattr(table.form, "index", None), "name", None)
        words = {*_ID_WORDS, *_words(node.name)}
        by_rank = [
            [name for name in free if (name,) in ends],
            [name for name in free if ":ID" in name or ({"id", "ids"} & {*_words(name)} and {*_words(name)} <= words)],
            [name for name in free if name == index or _INDEX.fullmatch(name)],
        ]
        return next((name for names in by_rank for name in names), None)

    def _check_end(self, table: SourceTable, columns: tuple[str, ...], node: NodeTable) -> None:
        kinds = [key_kind(table, column, "src or dst") for column in columns]
        if node.keys and node.table is not None:
            wanted = [key_kind(node.table, column, "keys") for column in node.keys]
            if kinds != wanted:
                other = {name: kind for name, own, kind in zip(columns, kinds, wanted, strict=True) if own != kind}
                raise PlanError(
                    f"{list(columns)} of {table.what} are {kinds}, and the keys {list(node.keys)} of {node.name!r} are {wanted}",
                    f"types={other} reads columns as another type",
                )
        elif node.by_row and kinds != [INTEGER]:
            raise PlanError(
                f"{list(columns)} of {table.what} are {kinds}, and nodes {node.name!r} have no keys: they are named by row numbers",
                f"keys={{{node.name!r}: column}} names the column of the table of {node.name!r} that holds such values"
                if node.form == "table"
                else "without a number of nodes, they are those that edges name",
            )
        elif node.form == "edges" and len(columns) > 1:
            raise PlanError(f"{list(columns)} of {table.what}: keys of several columns need a table of nodes", "nodes=... gives it")


@dataclass(frozen=True)
class _ByType:
    """Options as users write them, by type."""

    nodes: list[NodeType]
    edges: list[EdgeType]
    typed: bool

    def one(self, option: str, value: Any, name: NodeType | EdgeType, *, shared: bool = False) -> tuple[str, ...]:
        """The columns that an option names for one type; none where it says nothing of it."""
        if isinstance(value, Mapping):
            value = value.get(name)
        elif self.typed and value is not None and not shared:
            raise PlanError(
                f"{option}={value!r}: a graph of several types needs {{type: columns}}",
                f"for example {option}={{{name!r}: {value!r}}}; types: {[*self.nodes, *self.edges]}",
            )
        if value is None:
            return ()
        columns = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        if not all(isinstance(column, str) for column in columns) or len(set(columns)) < len(columns):
            raise PlanError(f"{option}={value!r} names no columns", "give a column's name, or a list of different names")
        return columns

    def check(self, option: str, value: Any) -> None:
        """Refuses names that are no types, and types that the option has no use for."""
        if not isinstance(value, Mapping):
            return
        known: list[Any] = self.nodes if option in (*_NODE_USES, *TEXT_OPTIONS, "keys", "standardize") else []
        known = [*known, *(self.edges if option in (*_EDGE_USES, *TEXT_OPTIONS, "src", "dst", "standardize") else [])]
        for name in value:
            if name not in known:
                raise PlanError(
                    f"{option} names {name!r}, which is no type of this graph{near_matches(str(name), list(map(str, known)))}",
                    f"types: {known}",
                )


def _only_edges_have(columns: tuple[str, ...], nodes: SourceTable | None, edges: SourceTable) -> bool:
    """Whether, in a graph of one type, columns are those of its edges: its nodes have no table, or not these columns."""
    return all(column in edges.schema.names for column in columns) and (
        nodes is None or not all(column in nodes.schema.names for column in columns)
    )


def _check_forms(**by_type: Any) -> None:
    """Refuses what is no table and can be made one in a line, which the error says; ``{type: table}`` by option."""
    for option, form in ((option, form) for option, forms in by_type.items() if isinstance(forms, Mapping) for form in forms.values()):
        module, kind = type(form).__module__.partition(".")[0], type(form).__name__
        hint = None
        if kind == "LazyFrame":
            hint = f"{option}.collect() is one"
        elif kind == "TemporalData":
            hint = f"dict(src={option}.src, dst={option}.dst, t={option}.t) is one, with time='t'"
        elif module == "torch_geometric":
            hint = f"GraphLoader.from_pyg({option}{'' if hasattr(form, 'stores') else '[0]'}) takes it"  # or a dataset's first graph
        elif module == "scipy":
            hint = f"{option}.nonzero() is one, sources first"
        elif module == "torch" and str(getattr(form, "layout", "")).startswith("torch.sparse"):
            hint = f"{option}.to_sparse_coo().indices() is one, sources first"
        elif isinstance(form, (list, tuple)) and form and all(isinstance(row, Mapping) for row in form):
            hint = f"pandas.DataFrame({option}) is one"
        elif _is_compressed(form):
            hint = f"(np.repeat(np.arange(len({option}[0]) - 1), np.diff({option}[0])), {option}[1]) is one, of rows and columns"
        if hint is not None:
            raise PlanError(f"{option}: {kind} is no table", hint)


def _is_compressed(form: Any) -> bool:
    """Whether this is ``(indptr, indices)`` of compressed rows, and not two ends of edges."""
    if not isinstance(form, (tuple, list)) or len(form) != 2 or not all(hasattr(part, "dtype") for part in form):
        return False
    first, second = (np.asarray(part) for part in form)
    if first.ndim != 1 or second.ndim != 1 or len(first) == len(second) or first.dtype.kind not in "iu" or not len(first):
        return False
    return bool(first[0] == 0 and first[-1] == len(second) and (np.diff(first) >= 0).all())


def _node_table(
    name: NodeType,
    form: Any,
    keys: tuple[str, ...],
    types: dict[str, pa.DataType],
    events: EventSink,
    text: TextOptions = AS_TOLD,
    known: Sequence[str] = (),
) -> NodeTable:
    if keys and (form is None or isinstance(form, (int, np.integer))):
        hint = "nodes=... gives it; without one, nodes are named by what edges say"
        raise PlanError(f"keys={list(keys)}: there is no table of nodes {name!r}", hint)
    if isinstance(form, (int, np.integer)) and not isinstance(form, bool):
        if form < 0:
            raise PlanError(f"nodes: {form} nodes {name!r}")
        return NodeTable(name, "count", count=int(form))
    if form is None:
        return NodeTable(name, "edges")  # its key is that of the edges
    table = open_table(form, f"nodes {name!r}", types, events, text, known)
    return NodeTable(name, "table", table, keys=keys)


def _need_all(table: SourceTable, uses: Mapping[str, tuple[str, ...]]) -> None:
    """Refuses a table without the columns that are used; those of categories and classes have names for values."""
    for option, columns in uses.items():
        kinds = [table.need(column, option) for column in columns]
        if option in ("one_hot", "categories", "split", "edge_type") or (
            option == "label" and len(kinds) == 1 and not pa.types.is_floating(kinds[0])
        ):
            table.with_names(columns)


def _edges_of(store: Store, state: Mapping[str, Any]) -> dict[EdgeType, Mapping[str, Any]]:
    """Returns the state of a store's tables of edges, by the types that they were given as."""
    found: dict[EdgeType, Mapping[str, Any]] = {}
    for edge_type in store.schema.edge_types:
        own = state["edges"][edge_type_name(edge_type)]
        source, relation, target = own.get("of", edge_type)
        found[source, relation, target] = own
    return found


def _given_after(store: Store, edge_types: list[EdgeType], edges: Any, nodes: Any) -> tuple[Mapping[EdgeType, Any], Mapping[NodeType, Any]]:
    """Sorts what is to be appended to a store by type.

    Raises:
        PlanError: There is no such type, or nothing at all.
    """
    schema = store.schema
    if is_networkx(edges):
        raise PlanError("edges is a NetworkX graph, which has all nodes and all edges", "append tables of the new ones")
    if edges is None and nodes is None:
        raise PlanError("there is nothing to append", "give edges=..., nodes=... or both")
    made: list[dict[Any, Any]] = []
    is_one = schema.is_homogeneous or (edge_types == [HOMOGENEOUS_EDGE_TYPE] and edge_types[0] not in schema.edge_types)
    for option, given, known in (("edges", edges, edge_types), ("nodes", nodes, list(schema.node_types))):
        by_type = {} if given is None else {known[0]: given} if is_one else given
        if not isinstance(by_type, Mapping) or any(name not in known for name in by_type):
            named = list(by_type) if isinstance(by_type, Mapping) else type(given).__name__
            raise PlanError(f"{option} names {named}, and the store {store.path} has the types {known}", f"{option}={{type: table}}")
        _check_forms(**{option: by_type})
        made.append(dict(by_type))
    return made[0], made[1]


def _text_keys(store: Store, node_type: NodeType, columns: Sequence[str]) -> list[str]:
    """Those of the columns of keys that are texts in a store."""
    return [column for column, kind in zip(columns, store.keys(node_type).columns.values(), strict=True) if kind != INTEGER]


def _texts(own: Mapping[str, Any]) -> list[str]:
    """The columns of categories, labels and splits that are texts in a store, of the state of a type."""
    uses, states = own["uses"], own["columns"]
    one_hot, features = uses.get("one_hot", []), states.get(FEATURE_NAME) or states.get(EDGE_FEATURES) or []
    codes = [(column, states.get(column)) for column in uses.get("categories", [])]
    codes += [(column, states.get(LABEL_NAME) or states.get("edge_label")) for column in uses.get("label", [])]
    codes += [(column, own.get("split")) for column in uses.get("split", [])]
    codes += list(zip(one_hot, features[len(features) - len(one_hot) :], strict=False))
    return [column for column, state in codes if state and any(isinstance(value, str) for value in state.get("known", ()))]


def _text_of(given: Mapping[str, Any], name: NodeType | EdgeType) -> TextOptions:
    """The options of the texts of a type."""
    values = {option: given[option] for option in TEXT_OPTIONS}
    return TextOptions.of({option: value.get(name) if isinstance(value, Mapping) else value for option, value in values.items()})


def _text_after(own: Mapping[str, Any], keys: Sequence[str]) -> tuple[TextOptions, list[str]]:
    """The options of the texts of a type in a store, and the columns that they are expected to have."""
    return TextOptions.of(own.get("text", {})), [*keys, *(column for columns in own["uses"].values() for column in columns)]


def _node_after(
    store: Store, name: NodeType, own: Mapping[str, Any], form: Any, types: dict[str, pa.DataType], events: EventSink
) -> NodeTable:
    """A node type of a store, with what is appended to it.

    Raises:
        PlanError: The store's nodes of this type come otherwise.
    """
    uses = {option: tuple(columns) for option, columns in own["uses"].items()}
    node = NodeTable(name, own["form"], keys=tuple(own["keys"]), uses=uses)
    if form is None:
        return node
    given = _node_table(name, form, (), types, events, *_text_after(own, node.keys))
    if given.table is not None and node.form == "table":
        given.table.with_texts(_texts(own) + (_text_keys(store, name, node.keys) if node.keys else []))
    if given.form != node.form:
        wanted = {"count": "have a number", "table": "have a table", "edges": "are those that edges name"}[node.form]
        raise PlanError(f"nodes={type(form).__name__} for {name!r}, whose nodes {wanted}", "append what the store was made of")
    node.table, node.count = given.table, given.count
    return node


def _edge_after(edge_type: EdgeType, own: Mapping[str, Any], table: SourceTable | None, nodes: Mapping[NodeType, NodeTable]) -> EdgeTable:
    """An edge type of a store, with what is appended to it.

    Raises:
        PlanError: The columns of an end are missing.
    """
    uses = {option: tuple(columns) for option, columns in own["uses"].items()}
    named, ends = (bool(own["named"][0]), bool(own["named"][1])), (tuple(own["ends"][0]), tuple(own["ends"][1]))
    if table is not None:
        # Columns that were not named, but are the first and the second, may have other names.
        found = [columns if by_name or columns[0] in table.schema.names else () for columns, by_name in zip(ends, named, strict=True)]
        used = {column for columns in uses.values() for column in columns}
        try:
            ends = _ends(table, found, nodes[edge_type[0]], nodes[edge_type[2]], used)
        except PlanError as error:  # no option of an append says which they are
            raise PlanError(error.message, f"call the columns of the ends {[*ends[0], *ends[1]]}, as in the store") from None
    return EdgeTable(edge_type, table, ends, named, uses)


def _what(option: str, name: EdgeType, typed: bool) -> str:
    return f"{option} {name}" if typed else option


def _check_kinds(store: Store, node_type: NodeType, table: SourceTable, columns: tuple[str, ...]) -> None:
    """Refuses keys of other kinds than a store has.

    Raises:
        PlanError: Says which.
    """
    kinds, wanted = [key_kind(table, column, "keys") for column in columns], list(store.keys(node_type).columns.values())
    if kinds != wanted:
        raise PlanError(f"{list(columns)} of {table.what} are {kinds}, and keys of {node_type!r} in the store {store.path} are {wanted}")


def types_to_text(types: Mapping[str, pa.DataType]) -> str:
    """Returns types of columns as JSON can hold them."""
    return base64.b64encode(pa.schema(sorted(types.items())).serialize()).decode()


def _ends(
    table: SourceTable,
    found: Sequence[tuple[str, ...]],
    source: NodeTable,
    target: NodeTable,
    used: Collection[str],
    edge_type: EdgeType | None = None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns of both ends: those that are named, else what the columns' own names and their order say; see ``_guessed_ends``."""
    if len(table.schema.names) < 2:
        raise PlanError(f"{table.what} have the columns {table.schema.names}, and an edge has two ends")
    src, dst = found
    for option, columns, node in (("src", src, source), ("dst", dst, target)):
        for column in columns:
            table.need(column, option)
        if len(columns or ("",)) != max(1, len(node.keys)):
            what = f"{option}={list(columns)}" if columns else f"{option} is not given"
            hint = f"name as many for {option}"
            if len(columns) > 1 and node.table is None:
                hint = f"nodes=a table with a row for each of them, and keys=[...] with {len(columns)} columns of it"
            raise PlanError(f"{what}, of {table.what}, and the keys of {node.name!r} are {list(node.keys)}", hint)
    if not src or not dst:
        guess = _guessed_ends(table, src[0] if src else None, dst[0] if dst else None, used, edge_type)
        src, dst = src or (guess[0],), dst or (guess[1],)
    table.with_names([*(() if source.by_row else src), *(() if target.by_row else dst)])
    return src, dst


# What the source and the target of an edge are called: SNAP, NetworkX, igraph, Gephi, Neo4j, triples, JODIE and PaySim.
_TARGETS = {
    "src": ("dst", "dest"),
    "source": ("target", "destination"),
    "from": ("to",),
    "head": ("tail",),
    "subject": ("object",),
    "start": ("end",),
    "u": ("v", "i"),
    "row": ("col",),
    "sender": ("receiver", "recipient"),
    "orig": ("dest",),
    "origin": ("destination", "dest"),
    "citing": ("cited",),
    "follower": ("followee",),
    "caller": ("callee",),
}
_END_WORDS = {*_TARGETS, *(word for words in _TARGETS.values() for word in words)}
# What such words may have beside them where columns say which nodes, and not their numbers, times or places.
_ID_WORDS = {"id", "ids", "idx", "key", "node", "vertex", "entity", "name", "user", "account", "address", "addr", "ip"}
# These may also be the ends of an interval, or rows of another kind, unless they stand where ends stand.
_WEAK_WORDS = {"from", "start", "row", "u", "head", "origin", "subject"}
# Words of one end alone.
_STRONG_SOURCES = _TARGETS.keys() - _WEAK_WORDS
_STRONG_TARGETS = {word for source in _STRONG_SOURCES for word in _TARGETS[source]}
_NO_END_WORDS = {"edge", "time", "timestamp", "datetime", "date", "ts", "weight", "relation", "predicate", "index"}
# What pandas calls an index that it writes without a name.
_INDEX = re.compile(r"(Unnamed: \d+|__index_level_\d+__)?")


def _words(name: str) -> tuple[str, ...]:
    """The words of a column's name: ``:START_ID(Person)``, ``startId`` and ``start id`` have the same."""
    words: list[str] = []
    for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", re.sub(r"\(.*?\)", "", name)):
        low = word.lower()
        words += next(([low[: -len(own)], own] for own in _ID_WORDS if low.endswith(own) and low[: -len(own)] in _END_WORDS), [low])
    return tuple(words)


def _may_be_key(table: SourceTable, name: str) -> bool:
    kind = table.kind(name)
    is_other = pa.types.is_temporal(kind) or pa.types.is_boolean(kind) or pa.types.is_nested(kind)
    return name not in table.unreadable and not is_other


def _may_be_ends(table: SourceTable, source: str, target: str, edge_type: EdgeType | None) -> bool:
    """Whether two of several columns are whole numbers or texts, both the same where they name nodes of one type."""
    kinds = [plain_type(table.kind(name)) for name in (source, target)]
    are_texts = [is_text(kind) for kind in kinds]
    is_one_type = edge_type is None or edge_type[0] == edge_type[2]
    return all(text or pa.types.is_integer(kind) for text, kind in zip(are_texts, kinds, strict=True)) and (
        not is_one_type or are_texts[0] == are_texts[1]
    )


def _refuse_no_edges(table: SourceTable) -> None:
    """Refuses a table whose rows are not each an edge, and says what makes such a table of it.

    Raises:
        PlanError: It is a matrix with names of nodes for rows and columns, or has rows of nodes and of edges.
    """
    frame, names = table.form, table.schema.names
    if type(frame).__module__.partition(".")[0] == "pandas" and hasattr(frame, "columns") and len(frame.columns) > 1:
        is_crosstab = frame.columns.name is not None and frame.index.name is not None
        has_names = len(frame.columns) > 2 or str(frame.index.name or type(frame.index).__name__) != "RangeIndex"
        if is_crosstab or (has_names and [*frame.columns] == [*frame.index]):
            line = "edges.rename_axis(index='src', columns='dst').where(edges != 0).stack().dropna().reset_index(name='weight')"
            raise PlanError(f"{table.what} are a matrix, with nodes for rows and columns", f"{line} is a table of edges")
    if {"_id", "_start", "_end"} <= {*names}:
        hint = "table = pandas.read_csv(path).convert_dtypes(); "
        hint += "gnnkit.tables(table[table._start.notna()], table[table._id.notna()], keys='_id', src='_start', dst='_end')"
        raise PlanError(f"{table.what} have rows of nodes and of edges, as Neo4j's apoc.export writes them", hint)


def _pairs(names: Sequence[str]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Pairs of names that differ in words for the two ends alone: those that say which nodes, and all of them."""
    by_words = {_words(name): name for name in reversed(names)}
    sure, found = [], []
    for name in names:
        words = _words(name)
        for k, word in enumerate(words):
            for other in (by_words.get((*words[:k], to, *words[k + 1 :])) for to in _TARGETS.get(word, ())):
                if other is None:
                    continue
                found.append((name, other))
                beside = {*words[:k], *words[k + 1 :]}
                if beside <= _ID_WORDS and (beside or word not in _WEAK_WORDS or {name, other} & {*names[:2]}):
                    sure.append((name, other))
    return sure, found


def _guessed_ends(
    table: SourceTable, src: str | None, dst: str | None, used: Collection[str], edge_type: EdgeType | None
) -> tuple[str, str]:
    """The columns of both ends where one of them is named or none.

    They are the two whose names say so, such as "dst" and "src" in any order. Else they are the first two that are no index of pandas, can
    be keys, and are used by no option.

    Args:
        table: The edges.
        src: The column of sources, if users name it.
        dst: That of targets.
        used: Columns that options name.
        edge_type: The type of edges of a typed graph. Where its ends differ, "dst" before "src" may mean edges that lead back.

    Raises:
        PlanError: Names contradict this, or do not tell.
    """
    if src is None and dst is None:
        _refuse_no_edges(table)
    names = [name for name in table.schema.names if name in (src, dst) or (name not in used and not _INDEX.fullmatch(name))]
    sure, pairs = _pairs(names)  # also of columns that cannot be keys, which is an error where their names are sure
    names = [name for name in names if name in (src, dst) or _may_be_key(table, name)]
    sure, pairs = ([pair for pair in found if src in (None, pair[0]) and dst in (None, pair[1])] for found in (sure, pairs))
    clear = [name for name in names if not _is_doubtful(name, names)]
    pairs = [pair for pair in pairs if {*pair} <= {*clear, src, dst}]
    first, second = names[:2] if len(names) > 1 else ["", ""]
    if len(names) == 2 and (first == dst or second == src):
        first, second = second, first
    place = src or first, dst or second
    is_clear = first != "" and place[0] != place[1] and (src or first in clear) and (dst or second in clear)
    is_clear = is_clear and (len(names) == 2 or _may_be_ends(table, *place, edge_type))
    # Of three columns of texts without names, the second may be the relation.
    is_clear = is_clear and not (len(names) == 3 and table.is_headless and all(is_text(table.need(name, "src")) for name in names))
    contradicted = (not src and first in [b for _, b in pairs]) or (not dst and second in [a for a, _ in pairs])
    contradicted |= (not src and _says(first, _STRONG_TARGETS, names)) or (not dst and _says(second, _STRONG_SOURCES, names))
    if edge_type is not None and edge_type[0] != edge_type[2]:
        of_source, of_target = ({" ".join(_words(end))} for end in (edge_type[0], edge_type[2]))
        contradicted |= (not src and _says(first, of_target, names)) or (not dst and _says(second, of_source, names))
        is_named = _says(first, of_source, names) and _says(second, of_target, names)
        pairs = [] if is_named else pairs
    contradicted |= bool(pairs) and place not in pairs  # a pair of ends stands further back
    if place in sure or (not sure and is_clear and not contradicted):
        return place
    leads_back = edge_type is not None and edge_type[0] != edge_type[2] and place[::-1] in sure
    if len(sure) == 1 and not leads_back:
        return sure[0]
    others = [(src or a, dst or b) for a, b in itertools.permutations(clear[:3], 2)]
    others = [pair for pair in others if _may_be_ends(table, *pair, edge_type)]

    def said(column: str) -> str:
        return repr(column if edge_type is None else {edge_type: column})

    calls = [f"src={said(a)}, dst={said(b)}" for a, b in dict.fromkeys([*sure, *pairs, *others]) if a != b][:2]
    given = f"src={src!r}, and " if src else f"dst={dst!r}, and " if dst else ""
    hint = " or ".join(calls) or "src=..., dst=..."
    raise PlanError(f"{given}{table.what} have the columns {table.schema.names}, whose names do not say which are the ends", hint)


def _says(name: str, known: Collection[str], names: Sequence[str]) -> bool:
    """Whether a column is called by one of some words, beside those for ids, and no other column is."""
    called = [other for other in names if " ".join(w for w in _words(other) if w in known or w not in _ID_WORDS) in known]
    return called == [name]


def _is_doubtful(name: str, names: Sequence[str]) -> bool:
    """Whether a column's name says that it is no end of an edge; "id" is that of the edge where others are ids, too."""
    words = _words(name)
    return bool(_NO_END_WORDS & {*words}) or (words == ("id",) and sum("id" in _words(other) for other in names) > 2)


def _types_of(types: Mapping[str, Any] | None) -> dict[str, pa.DataType]:
    """Returns types of columns as users name them.

    Raises:
        PlanError: There is no such type.
    """
    made = {}
    for column, kind in (types or {}).items():
        try:
            is_arrow = isinstance(kind, pa.DataType)
            made[column] = kind if is_arrow else pa.type_for_alias(kind) if isinstance(kind, str) else pa.from_numpy_dtype(np.dtype(kind))
        except (ValueError, TypeError, pa.ArrowException) as error:
            raise PlanError(
                f"types={{{column!r}: {kind!r}}}: {error}", "for example 'string', 'int64', 'double' or 'timestamp[us]'"
            ) from error
    return made
