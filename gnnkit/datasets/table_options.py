"""The options of tables, which ``gnnkit.tables`` and ``GraphLoader.from_tables`` take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from gnnkit.arguments import check_fields
from gnnkit.bounds import check_choice

# One value for all types, or ``{node type or edge type: value}``.
ByType: TypeAlias = Mapping[Any, Any]
# Columns by their names.
Columns: TypeAlias = str | Sequence[str] | ByType
TimeUnit: TypeAlias = Literal["s", "ms", "us", "ns"]
Dangling: TypeAlias = Literal["error", "drop"]
Decimal: TypeAlias = Literal[".", ","]
Mean: TypeAlias = Literal["mean"]


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The options of tables.

    Attributes:
        keys: The column that names a node, or several. Without it, nodes of a table are named by their row numbers, from 0. In
            files of text, columns of keys, ends, classes and categories with 007 or 0x7 among their first rows are texts, unless
            ``types`` says otherwise; in a later row, such a number is an error.
        src: The column of edges that names the source, as many as keys have. None is the one whose name says so ("src", "from_id",
            ":START_ID", ...), wherever it stands, else the first that can be one; where names contradict this, it is an error.
        dst: The same of the target ("dst", "target", "to_id", ":END_ID", ...), else the second column.
        features: Columns of numbers, booleans, times or lists of one length that become ``x``, for edges ``edge_attr``, as float32.
            Timestamps and dates are days since 1970, spans of time and times of day are days, with fractions.
        one_hot: Columns whose values become columns of zeros and ones after the features.
        standardize: Columns of ``features`` that get the mean 0 and the deviation 1 in the rows of the split "train", or in all rows of a
            table without splits; True means all features.
        categories: Columns that become arrays of their own names: int64 codes, positions in the ascending list of values.
        label: The column that becomes ``y``: classes if it is text, else as it is; or several columns of numbers, or one of lists. Rows
            with a null have no label: -1 among whole numbers and classes, NaN among fractions.
        unlabelled: Values of ``label`` that mean none as well, such as ``["unknown"]``. Training nodes without a label are left out of the
            split "train", with a warning.
        split: The column that says "train", "valid" or "test" (in any case, and also as "training", "val", "validation", "dev", "holdout"
            and the like), or null. Loaders start from "train" where nothing else is said.
        time: The column that becomes ``time``, int64: timestamps and dates in ``time_unit`` since 1970, whole numbers as they are;
            ``time_attr="time"`` of a loader samples by it.
        edge_weight: The column of edges that becomes ``edge_weight``; ``weight="edge_weight"`` of a loader draws by it.
        edge_type: The column of edges whose values are edge types: each value takes the place of the relation in (source type, relation,
            target type). ``categories`` keeps them in one edge type, as whole numbers.
        types: ``{column: Arrow type, or its name such as "string"}``: what columns are read as.
        fill: ``{column: value}``: what takes the place of nulls and NaN; -1 is no class and no category. Of a column of features, "mean" is
            that of the rows of the split "train", or of all rows of a table without splits; "mean" alone says it of all features.
            Elsewhere nulls are an error, but for splits and labels.
        undirected: Adds the reverse of each edge as PyG's ``ToUndirected`` does: edges between two nodes of one type become one in each
            direction, whose features and weights are added up, and those between two types get a reverse type.
        dangling: "error" refuses edges that name no node of a table, "drop" leaves them out and counts them in the metadata.
        presorted: Promises that edges come in the order of their targets' numbers. They may also come in files, each with a range of
            targets that follows that of the file before, as Spark's ``repartitionByRange(dst)`` writes them. It is checked, and a store
            is then built in one pass, without sorting edges on disk; it is the same store. See ``docs/how-to/spark-and-dask.md``.
        time_unit: The unit of times.
        header: Whether row 1 of a text, such as CSV, names the columns. For this option and the next five, ``{type: value}`` is for one
            type's tables, and a value for all; None is what the first rows of a text show, which ``repr`` of the source tells.
        sep: What separates the fields of a text: one to four characters. " " stands for any number of blanks where some rows have several.
        comment: What lines begin with that are left out wherever they are; None leaves those before row 1 out that begin with # or %.
        decimal: The decimal point of a text, "." or ",".
        null: What fields of a text are missing, such as "NA" or ``["NA", "NULL"]``, beside empty ones, quoted or not.
        encoding: The encoding of a text, as Python names it; None is UTF-8, or UTF-16 where a text begins with its mark.
        name: What the graph is called.
    """

    keys: Columns | None = None
    src: Columns | None = None
    dst: Columns | None = None
    features: Columns | None = None
    one_hot: Columns | None = None
    standardize: Columns | bool = False
    categories: Columns | None = None
    label: Columns | None = None
    unlabelled: Any = None
    split: Columns | None = None
    time: Columns | None = None
    edge_weight: Columns | None = None
    edge_type: Columns | None = None
    types: Mapping[str, Any] | None = None
    fill: Mapping[str, Any] | Mean | None = None
    undirected: bool = False
    dangling: Dangling = "error"
    presorted: bool = False
    time_unit: TimeUnit = "us"
    header: bool | ByType | None = None
    sep: str | ByType | None = None
    comment: str | ByType | None = None
    decimal: Decimal | ByType = "."
    null: Columns | None = None
    encoding: str | ByType | None = None
    name: str = "tables"

    def __post_init__(self) -> None:
        check_fields(self)
        check_choice("dangling", self.dangling, Dangling)
        check_choice("time_unit", self.time_unit, TimeUnit)


_WORDS = {
    "keys": ("id", "ids", "key_column", "index", "index_col", "node_id", "node_ids"),
    "src": ("source", "sources", "source_col", "src_col", "source_column", "from_", "head", "edge_src"),
    "dst": ("target", "targets", "target_col", "dst_col", "target_column", "to", "tail", "destination", "edge_dst"),
    "features": ("x", "feature_columns", "node_features", "columns", "edge_attr"),
    "one_hot": ("dummies", "onehot"),
    "standardize": ("standardise", "normalize", "normalise", "scale", "zscore"),
    "categories": ("categorical",),
    "label": ("y", "target_label", "classes"),
    "split": ("fold", "masks", "train_mask"),
    "time": ("timestamp", "timestamps", "t"),
    "edge_weight": ("weights", "edge_weights", "weight_col", "weight_column"),
    "edge_type": ("relation", "relations", "rel", "predicate", "edge_types", "etype", "relation_column"),
    "types": ("dtype", "dtypes", "schema"),
    "fill": ("fillna", "fill_value", "impute", "missing"),
    "undirected": ("directed", "symmetric", "bidirectional", "to_undirected", "add_reverse", "reverse_edges"),
    "sep": ("separator", "seperator", "delimiter", "delim"),
    "null": ("na", "na_values", "null_values", "nulls"),
}
# What other libraries call these options, and what to say instead.
ELSEWHERE = {word: f"it is {name}= here" for name, words in _WORDS.items() for word in words}
