"""The options of ``gnnkit.tables`` as type checkers see them; written by ``tools/write_options.py``, not by hand."""

from collections.abc import Mapping
from typing import Any, TypedDict

from gnnkit.datasets.table_options import ByType, Columns, Dangling, Decimal, Mean, TimeUnit

class TableKeywords(TypedDict, total=False):
    """The keywords about tables."""

    keys: Columns | None
    """The column that names a node, or several. Without it, nodes of a table are named by their row numbers, from 0. In files of text,
    columns of keys, ends, classes and categories with 007 or 0x7 among their first rows are texts, unless ``types`` says otherwise; in
    a later row, such a number is an error."""
    src: Columns | None
    """The column of edges that names the source, as many as keys have. None is the one whose name says so ("src", "from_id",
    ":START_ID", ...), wherever it stands, else the first that can be one; where names contradict this, it is an error."""
    dst: Columns | None
    """The same of the target ("dst", "target", "to_id", ":END_ID", ...), else the second column."""
    features: Columns | None
    """Columns of numbers, booleans, times or lists of one length that become ``x``, for edges ``edge_attr``, as float32. Timestamps and
    dates are days since 1970, spans of time and times of day are days, with fractions."""
    one_hot: Columns | None
    """Columns whose values become columns of zeros and ones after the features."""
    standardize: Columns | bool
    """Columns of ``features`` that get the mean 0 and the deviation 1 in the rows of the split "train", or in all rows of a table
    without splits; True means all features."""
    categories: Columns | None
    """Columns that become arrays of their own names: int64 codes, positions in the ascending list of values."""
    label: Columns | None
    """The column that becomes ``y``: classes if it is text, else as it is; or several columns of numbers, or one of lists. Rows with a
    null have no label: -1 among whole numbers and classes, NaN among fractions."""
    unlabelled: Any
    """Values of ``label`` that mean none as well, such as ``["unknown"]``. Training nodes without a label are left out of the split
    "train", with a warning."""
    split: Columns | None
    """The column that says "train", "valid" or "test" (in any case, and also as "training", "val", "validation", "dev", "holdout" and
    the like), or null. Loaders start from "train" where nothing else is said."""
    time: Columns | None
    """The column that becomes ``time``, int64: timestamps and dates in ``time_unit`` since 1970, whole numbers as they are;
    ``time_attr="time"`` of a loader samples by it."""
    edge_weight: Columns | None
    """The column of edges that becomes ``edge_weight``; ``weight="edge_weight"`` of a loader draws by it."""
    edge_type: Columns | None
    """The column of edges whose values are edge types: each value takes the place of the relation in (source type, relation, target
    type). ``categories`` keeps them in one edge type, as whole numbers."""
    types: Mapping[str, Any] | None
    """``{column: Arrow type, or its name such as "string"}``: what columns are read as."""
    fill: Mapping[str, Any] | Mean | None
    """``{column: value}``: what takes the place of nulls and NaN; -1 is no class and no category. Of a column of features, "mean" is
    that of the rows of the split "train", or of all rows of a table without splits; "mean" alone says it of all features. Elsewhere
    nulls are an error, but for splits and labels."""
    undirected: bool
    """Adds the reverse of each edge as PyG's ``ToUndirected`` does: edges between two nodes of one type become one in each direction,
    whose features and weights are added up, and those between two types get a reverse type."""
    dangling: Dangling
    """"error" refuses edges that name no node of a table, "drop" leaves them out and counts them in the metadata."""
    presorted: bool
    """Promises that edges come in the order of their targets' numbers. They may also come in files, each with a range of targets that
    follows that of the file before, as Spark's ``repartitionByRange(dst)`` writes them. It is checked, and a store is then built in one
    pass, without sorting edges on disk; it is the same store. See ``docs/how-to/spark-and-dask.md``."""
    time_unit: TimeUnit
    """The unit of times."""
    header: bool | ByType | None
    """Whether row 1 of a text, such as CSV, names the columns. For this option and the next five, ``{type: value}`` is for one type's
    tables, and a value for all; None is what the first rows of a text show, which ``repr`` of the source tells."""
    sep: str | ByType | None
    """What separates the fields of a text: one to four characters. " " stands for any number of blanks where some rows have several."""
    comment: str | ByType | None
    """What lines begin with that are left out wherever they are; None leaves those before row 1 out that begin with # or %."""
    decimal: Decimal | ByType
    """The decimal point of a text, "." or ","."""
    null: Columns | None
    """What fields of a text are missing, such as "NA" or ``["NA", "NULL"]``, beside empty ones, quoted or not."""
    encoding: str | ByType | None
    """The encoding of a text, as Python names it; None is UTF-8, or UTF-16 where a text begins with its mark."""
    name: str
    """What the graph is called."""
