"""Tables as people and engines write them: texts in any dialect, folders with logs, and columns that no option names."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
import scipy.sparse as sparse
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

import gnnkit
from gnnkit.errors import DatasetError, GnnkitError, PlanError
from tests.datasets.reading import read_edge_array, read_edges, read_node_array

EDGE = ("node", "to", "node")


def pairs(source: Any) -> list[tuple[Any, Any]]:
    """Edges as pairs of keys."""
    edges, keys = read_edges(source, EDGE), source.keys.get("node")
    return [tuple(int(i) if keys is None else keys[int(i)] for i in edge) for edge in edges.T]


def written(folder: Path, content: str | bytes, name: str = "edges.csv") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


ONE, TEXTS = [(1, 2), (3, 4)], [("ann", "bob"), ("bob", "cid"), ("cid", "ann")]
SHAPES: dict[str, tuple[str | bytes, list[tuple[Any, Any]]]] = {
    "quoted numbers": ('"1","2"\n"3","4"\n', ONE),
    "a byte order mark": (b"\xef\xbb\xbf1,2\r\n3,4\r\n", ONE),
    "an empty field": ("1,2,\n3,4,0.5\n", ONE),
    "only empty fields": ("1,2,\n3,4,\n", ONE),
    "a null first": ("1,2,NA\n3,4,5\n", ONE),
    "Postgres' null first": ("1\t2\t\\N\n3\t4\t5\n", ONE),
    "blank lines": ("\n\n1,2\n3,4\n", ONE),
    "blank lines and a header": ("\r\nsrc,dst\r\n1,2\r\n3,4\r\n", ONE),
    "one row": ("1,2\n", ONE[:1]),
    "one row and a text": ("1,2,x\n", ONE[:1]),
    "dates": ("1,2,2020-01-01\n3,4,2020-01-02\n", ONE),
    "booleans": ("1,2,true\n3,4,false\n", ONE),
    "labels": ("1,2,a\n3,4,b\n", ONE),
    "a comma in a name": ("src\tdst\tname, given\n1\t2\tSmith, John\n3\t4\tDoe, Jane\n", ONE),
    "semicolons and decimal commas": ("src;dst;w\n1;2;0,5\n3;4;1,5\n", ONE),
    "semicolons, no header": ("1;2;0,5\n3;4;1,5\n", ONE),
    "bars": ("src|dst\n1|2\n3|4\n", ONE),
    "MovieLens": ("1::2::5::978300760\n3::4::3::978302109\n", ONE),
    "SNAP": ("# Directed graph\n# FromNodeId\tToNodeId\n1\t2\n3\t4\n", ONE),
    "KONECT": ("% bip weighted\n% 3 2 2\n1 2 1 100 \n3 4 1 101 \n", ONE),
    "blanks that align": ("  1   2\n  3   4\n", ONE),
    "one blank": ("1 2\n3 4\n", ONE),
    "old line ends": ("src,dst\r1,2\r3,4\r", ONE),
    "quoted line ends": ('src,dst,note\n1,2,"a\nb"\n3,4,"c ""d"", e"\n', ONE),
    "a quoted line end in the header": ('src,dst,"a\nb"\n1,2,5\n3,4,6\n', ONE),
    "single quotes": ("src,dst,t\n1,2,'a, b'\n3,4,'c, d'\n", ONE),
    "backslashes": ('src,dst,t\n1,2,"a \\"b\\", c"\n3,4,"d"\n', ONE),
    "an inch": ('src,dst,t\n1,2,5" disk\n3,4,6" disk\n', ONE),
    "Neo4j": (":START_ID,:END_ID,:TYPE\n1,2,KNOWS\n3,4,KNOWS\n", ONE),
    "Elliptic": ("txId1,txId2\n1,2\n3,4\n", ONE),
    "blanks after commas": ("src, dst\n1, 2\n3, 4\n", ONE),
    "UTF-16": ("src,dst\n1,2\n3,4\n".encode("utf-16"), ONE),
    "texts": ("ann,bob\nbob,cid\ncid,ann\n", TEXTS),
    "texts with a header": ("who,whom\nann,bob\nbob,cid\ncid,ann\n", TEXTS),
    "texts with a weight": ("ann,bob,1\nbob,cid,2\ncid,ann,3\n", TEXTS),
    "texts in quotes": ('"who","whom"\n"ann","bob"\n"bob","cid"\n"cid","ann"\n', TEXTS),
    "texts and blanks": ("ann bob\nbob cid\ncid ann\n", TEXTS),
    "texts beyond ASCII": ("who,whom\nänn,böb\nböb,日本\n", [("änn", "böb"), ("böb", "日本")]),
}


@pytest.mark.parametrize("packed", ["", ".gz", ".XZ"])
@pytest.mark.parametrize("name", SHAPES)
def test_texts_of_many_shapes(tmp_path: Path, name: str, packed: str) -> None:
    content, wanted = SHAPES[name]
    data = content if isinstance(content, bytes) else content.encode()
    data = {"": bytes, ".gz": gzip.compress, ".XZ": lzma.compress}[packed](data)
    assert pairs(gnnkit.tables(written(tmp_path, data, f"edges.txt{packed}"))) == wanted


@pytest.mark.parametrize("name", ["quoted numbers", "a byte order mark", "an empty field", "blank lines", "MovieLens", "texts"])
def test_an_appended_text_keeps_its_first_row(tmp_path: Path, name: str) -> None:
    content, wanted = SHAPES[name]
    store = gnnkit.partition(gnnkit.tables(written(tmp_path, content)), 1, out=tmp_path / "store")
    fresh = (
        "::".join(("7", "8", "1", "1"))
        if name == "MovieLens"
        else "zoe,yan"
        if name == "texts"
        else "7,8" + (",1" if "field" in name else "")
    )
    later = store.append(edges=written(tmp_path, fresh + "\n", "more.csv"))
    ids = sorted(map(tuple, later.keys("node")[np.stack(all_edges(later)).reshape(-1)].reshape(2, -1).T.tolist()))
    assert ids == sorted([*wanted, ("zoe", "yan") if name == "texts" else (7, 8)])


def all_edges(store: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    graph = gnnkit.GraphLoader.from_store(store, num_neighbors=[-1], batch_size=1 << 20, input_nodes=None).peek()
    return graph.n_id[graph.edge_index[0]].numpy(), graph.n_id[graph.edge_index[1]].numpy()


def test_an_appended_text_that_may_have_a_header_is_refused(tmp_path: Path) -> None:
    store = gnnkit.partition(gnnkit.tables(written(tmp_path, "who,whom\nann,bob\n")), 1, out=tmp_path / "store")
    with pytest.raises(DatasetError, match="may be a header or values") as caught:
        store.append(edges=written(tmp_path, "zoe,yan\n", "more.csv"))
    assert "who" in str(caught.value)
    later = store.append(edges=written(tmp_path, "who,whom\nzoe,yan\n", "more.csv"))
    assert later.schema.num_edges == 2


@pytest.mark.parametrize(
    ("content", "options", "wanted"),
    [
        ("0,1\n5,6\n", {}, [(0, 1), (5, 6)]),
        ("0,1\n5,6\n", {"header": True}, [(5, 6)]),
        ("a,b\nc,d\n", {"header": False}, [("a", "b"), ("c", "d")]),
        ("a,b\nc,d\n", {"header": {EDGE: False}}, [("a", "b"), ("c", "d")]),
        ("a;b,c\nd;e,f\n", {"sep": ";", "header": False}, [("a", "b,c"), ("d", "e,f")]),
        ("a--b\nc--d\n", {"sep": "--", "header": False}, [("a", "b"), ("c", "d")]),
        ("src,dst\n1,2\n# note\n3,4\n", {"comment": "#"}, ONE),
        ("#1,#2\n#3,#4\n", {"comment": "", "header": False}, [("#1", "#2"), ("#3", "#4")]),
        ("1,2,x\n3,4,y\n", {"null": "x"}, ONE),
        ("a,\xe9\nb,a\n".encode("latin-1"), {"encoding": "latin-1", "header": False}, [("a", "é"), ("b", "a")]),
    ],
)
def test_options_overrule_what_a_text_shows(
    tmp_path: Path, content: str | bytes, options: dict[str, Any], wanted: list[tuple[Any, Any]]
) -> None:
    assert pairs(gnnkit.tables(written(tmp_path, content), **options)) == wanted


def test_numbers_and_missing_values_as_options_say(tmp_path: Path) -> None:
    path = written(tmp_path, "src;dst;w;y\n1;2;0,5;a\n3;4;NA;NULL\n5;6;;\n")
    source = gnnkit.tables(path, features="w", label="y", decimal=",", null=["NA", "NULL"], fill={"w": -2.5, "y": -1})
    assert read_edge_array(source, EDGE, "edge_attr").tolist() == [[0.5], [-2.5], [-2.5]]
    assert read_edge_array(source, EDGE, "edge_label").tolist() == [0, -1, -1]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"header": "yes"}, "header must be True, False, a dict or None, got 'yes'"),
        ({"sep": ""}, "sep=''"),
        ({"decimal": "x"}, "decimal='x'"),
        ({"null": 5}, "null=5"),
        ({"encoding": "klingon"}, "encoding='klingon'"),
        ({"sep": ",", "decimal": ","}, "is the decimal point"),
        ({"header": {"who": True}}, "which is no type"),
        ({"split": {"node": True}}, "names no columns"),
        ({"types": {"a": object}}, "types="),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        gnnkit.tables(written(tmp_path, "a,b\n1,2\n"), **options)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.mtx", "%%MatrixMarket matrix array real general\n2 2\n1\n2\n3\n4\n", "what is read are coordinates"),
        ("a.mtx", "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 2 1\n", "it has 1 entries, and says that it has 2"),
        ("a.mtx", "%%MatrixMarket matrix coordinate real general\n2 2 1\n1 3 1\n", "outside the 2 rows and 2 columns"),
        ("a.jsonl", '{"src": 1, "dst": 2}\n', "pandas.read_json"),
        ("a.zip", b"PK", "unpack it"),
        ("a.csv", "", "holds no row"),
        ("a.csv", "# only\n", "holds no row"),
        ("a.csv", "u,i,features\n0,0,1,2\n1,1,3,4\n", "row 1 has 3 fields, and the others have 4"),
        ("a.csv", "a,b\nb,c\nx,y\n", "may be a header or values"),
        ("a.csv", "gene,0,1,2\ng1,5,6,7\n", "may be a header or values"),
        ("a.csv", b"s,d\n\xe9,b\n", "encoding="),
        ("a.csv", "a,b\n1,2\n# x\n3,4\n", "comment"),
        ("a.csv.xz", lzma.compress(b"a,b\n" + b"1,2\n" * 9000)[:-40], "cannot be read"),
    ],
)
def test_the_error_says_who_reads_it(tmp_path: Path, name: str, content: str | bytes, says: str) -> None:
    with pytest.raises(GnnkitError, match=says):
        gnnkit.tables(written(tmp_path, content, name))


@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric"])
@pytest.mark.parametrize("field", ["real", "integer", "pattern"])
@pytest.mark.parametrize("packed", ["", ".gz"])
def test_matrix_market_is_what_scipy_reads(tmp_path: Path, symmetry: str, field: str, packed: str) -> None:
    if (symmetry, field) == ("skew-symmetric", "pattern"):
        return
    whole = np.ceil(9 * sparse.random(30, 30, 0.1, random_state=1).toarray()).astype(int)
    lower = np.tril(whole, -1)
    matrix = {"general": whole, "symmetric": lower + lower.T + np.diag(np.diag(whole)), "skew-symmetric": lower - lower.T}[symmetry]
    scipy.io.mmwrite(tmp_path / "a.mtx", sparse.coo_array(matrix), comment="two\nlines", field=field, symmetry=symmetry)
    wanted = scipy.io.mmread(tmp_path / "a.mtx")
    path = written(tmp_path, gzip.compress((tmp_path / "a.mtx").read_bytes()), "b.mtx.gz") if packed else tmp_path / "a.mtx"
    source = gnnkit.tables(path, 30, **({} if field == "pattern" else {"edge_weight": "value"}))
    assert sorted(pairs(source)) == sorted(zip(wanted.row.tolist(), wanted.col.tolist(), strict=True))
    if field != "pattern":
        found = sorted(zip(pairs(source), read_edge_array(source, EDGE, "edge_weight").tolist(), strict=True))
        assert found == sorted(zip(zip(wanted.row.tolist(), wanted.col.tolist(), strict=True), wanted.data.tolist(), strict=True))


def test_folders_of_konect_and_of_spark(tmp_path: Path) -> None:
    written(tmp_path, "% sym unweighted\n% 3 3 3\n1 2\n2 3 \n", "moreno/out.moreno_blogs")
    written(tmp_path, "about", "moreno/README.moreno")
    written(tmp_path, "", "spark/_SUCCESS")
    written(tmp_path, "1\t2\n", "spark/part-00000")
    written(tmp_path, gzip.compress(b"2\t3\n"), "spark/part-00001.gz")
    for form in ("moreno", "moreno/out.moreno_blogs", "spark"):
        assert pairs(gnnkit.tables(tmp_path / form)) == [(1, 2), (2, 3)]


def test_headers_of_neo4j(tmp_path: Path) -> None:
    people = written(tmp_path, "pid:ID(Person),name,born:int,:LABEL\n10,ann,1964,P\n11,bob,1961,Q\n", "people.csv")
    knows = written(tmp_path, ":START_ID(Person),since:int,:END_ID(Person),:TYPE\n10,2000,11,KNOWS\n", "knows.csv")
    source = gnnkit.tables(knows, people, keys="pid:ID(Person)", features={"node": "born:int"}, label=":LABEL", edge_type=":TYPE")
    assert read_edges(source, ("node", "KNOWS", "node")).tolist() == [[0], [1]]
    assert read_node_array(source, "node", "y").tolist() == [0, 1]
    with pytest.raises(DatasetError, match="such as 'pid:ID"):
        gnnkit.tables(knows, people)


@pytest.mark.parametrize("name", ["graphml", "gexf", "gml", "pkl", "npz", "pt"])
def test_what_reads_files_of_other_kinds(tmp_path: Path, name: str) -> None:
    path, graph = tmp_path / f"a.{name}", nx.DiGraph([("a", "b"), ("b", "c")])
    if name == "npz":
        sparse.save_npz(path, nx.to_scipy_sparse_array(graph).tocsr())
    elif name == "pt":
        torch.save(Data(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=3), path)
    elif name == "pkl":
        pd.DataFrame({"src": ["a", "b"], "dst": ["b", "c"]}).to_pickle(path)
    else:
        getattr(nx, f"write_{name}")(graph, path)
    with pytest.raises(PlanError, match="of no known format") as caught:
        gnnkit.tables(path)
    words = re.split(" takes | of a ", caught.value.hint or "")
    made = eval(words[1], {"networkx": nx, "scipy": scipy, "pandas": pd, "torch": torch, "path": path})
    if name == "pt":
        with gnnkit.GraphLoader.from_pyg(made, num_neighbors=[1], progress=False) as loader:
            assert loader.schema.num_edges == 2
    else:
        assert len(pairs(gnnkit.tables(made))) == 2


def test_files_of_several_kinds_and_wide_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"src": [1], "dst": [2]}), tmp_path / "0.parquet")
    written(tmp_path, "dst;src\n4;3\n", "1.csv")
    written(tmp_path, "src;dst\n", "2.csv")
    assert pairs(gnnkit.tables(tmp_path, types={"src": "int64", "dst": "int64"})) == ONE
    wide = "\n".join(",".join(map(str, [n, n + 1, *range(90_000)])) for n in (1, 3))
    assert pairs(gnnkit.tables(written(tmp_path, wide, "wide.csv"))) == ONE


def test_what_was_said_of_texts_holds_for_those_that_are_appended(tmp_path: Path) -> None:
    source = gnnkit.tables(
        written(tmp_path, "0;1;w\n5;6;0,5\n"), header=True, sep=";", decimal=",", null="NA", features="w", fill={"w": -1}
    )
    store = gnnkit.partition(source, 1, out=tmp_path / "store")
    later = store.append(edges=written(tmp_path, "0;1;w\n0;1;NA\n7;0;1,5\n", "more.csv"))
    assert sorted(later.keys("node")[np.arange(later.schema.num_nodes)].tolist()) == [0, 1, 5, 6, 7]
    assert later.schema.num_edges == 3


AML = "Time,From,Account,To,Account,Amount\n1,10,A1,20,B1,3.5\n2,30,A2,40,B2,0.5\n"


@pytest.mark.parametrize("form", ["text", "frame", "parquet"])
def test_columns_of_one_name_go_by_their_numbers(tmp_path: Path, form: str) -> None:
    path: Any = written(tmp_path, AML)
    if form != "text":
        frame = pd.read_csv(path)
        frame.columns = pd.Index(["Time", "From", "Account", "To", "Account", "Amount"])
        path = frame
    if form == "parquet":
        columns = [pa.array(frame.iloc[:, k]) for k in range(6)]
        pq.write_table(pa.Table.from_arrays(columns, names=list(frame.columns)), tmp_path / "a.parquet")
        path = tmp_path / "a.parquet"
    assert pairs(gnnkit.tables(path, src="Account.0", dst="Account.1")) == [("A1", "B1"), ("A2", "B2")]
    with pytest.raises(PlanError, match=r"(?s)several columns.*Account\.0.*rename"):
        gnnkit.tables(path, src="Account", dst="Account.1")


# Random dialects ---------------------------------------------------------------------------------------------------------------

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".ZST": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}


@st.composite
def dialects(draw: st.DrawFn) -> dict[str, Any]:
    sep = draw(st.sampled_from([",", "\t", ";", "|", " ", "::"]))
    quotes = sep != "::"
    letters = "abcXYZéß0123456789.-_" + (f"{sep} '\"\n,;" if quotes else "' ,;")
    key = st.text(letters, min_size=1, max_size=6) if draw(st.booleans()) else st.integers(-(2**63), 2**63 - 1)
    rows = draw(st.lists(st.tuples(key, key, st.none() | st.integers(-999, 999).map(lambda n: n / 8)), min_size=1, max_size=12))
    return {
        "rows": rows,
        "sep": sep,
        "quoting": draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])) if quotes else csv.QUOTE_NONE,
        "header": draw(st.booleans()),
        "order": draw(st.permutations(range(3))),
        "newline": draw(st.sampled_from(["\n", "\r\n"])),
        "null": draw(st.sampled_from(["", "NA", "\\N"])),
        "packed": draw(st.sampled_from(sorted(PACKERS))),
        "encoding": draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"])),
        "told": draw(st.booleans()),
    }


@pytest.mark.slow(seconds=60)
@settings(max_examples=500, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(dialects())
def test_a_table_in_any_dialect_comes_back_as_it_was_or_is_an_error(tmp_path: Path, told: dict[str, Any]) -> None:
    rows, sep = told["rows"], told["sep"]
    fields = [[("src", "dst", "w")[k] for k in told["order"]]] if told["header"] else []
    for row in rows:
        words = [str(row[0]), str(row[1]), told["null"] if row[2] is None else str(row[2])]
        fields.append([words[k] for k in told["order"]])
    file = io.StringIO(newline="")
    if sep == "::":
        assume(not any("::" in word or word.startswith(":") or word.endswith(":") for line in fields for word in line))
        file.write("".join(told["newline"].join(["::".join(line), ""]) for line in fields))
    else:
        csv.writer(file, delimiter=sep, quoting=told["quoting"], lineterminator=told["newline"]).writerows(fields)
    path = tmp_path / f"edges.csv{told['packed']}"
    path.write_bytes(PACKERS[told["packed"]](file.getvalue().encode(told["encoding"])))
    # What cannot be seen is said: an encoding without a mark, words for nulls, and in half of the cases the rest.
    options: dict[str, Any] = {"null": told["null"] or None, "encoding": "latin-1" if told["encoding"] == "latin-1" else None}
    options |= {"sep": sep, "header": told["header"]} if told["told"] else {}
    names = {k: ("src", "dst", "w")[k] if told["header"] else f"f{told['order'].index(k)}" for k in range(3)}
    # Texts that look like numbers are numbers unless it is said.
    kind = "string" if isinstance(rows[0][0], str) else "int64"
    try:
        source = gnnkit.tables(
            path,
            src=names[0],
            dst=names[1],
            features=names[2],
            fill={names[2]: -1000.0},
            types={names[0]: kind, names[1]: kind, names[2]: "double"},
            scratch_dir=tmp_path,
            **options,
        )
    except GnnkitError:
        return
    assert pairs(source) == [(row[0], row[1]) for row in rows]
    assert read_edge_array(source, EDGE, "edge_attr")[:, 0].tolist() == [-1000.0 if row[2] is None else row[2] for row in rows]


# Folders of engines --------------------------------------------------------------------------------------------------------------


def parquet(path: Path, src: list[int], dst: list[int], **more: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"src": src, "dst": dst, **more}), path)


def test_what_engines_leave_beside_files_is_no_row(tmp_path: Path) -> None:
    parquet(tmp_path / "_runs" / "out" / "part-0.parquet", [1], [2])
    parquet(tmp_path / "_runs" / "out" / "part-1.parquet", [3], [4])
    for name in ("_temporary/0/part-2.parquet", ".hidden.parquet", ".spark/part.parquet", "_part.parquet"):
        parquet(tmp_path / "_runs" / "out" / name, [8], [9])
    (tmp_path / "_runs" / "out" / "_SUCCESS").touch()
    (tmp_path / "_runs" / "out" / "notes.md").touch()
    folder = tmp_path / "_runs" / "out"
    for form in (folder, f"{folder}/", f"{folder}/**/*.parquet", f"{folder}/*.parquet", tmp_path / "_runs" / "*", [folder]):
        assert pairs(gnnkit.tables(form)) == ONE, form
    assert pairs(gnnkit.tables(f"{folder}/_*.parquet")) == [(8, 9)]
    assert pairs(gnnkit.tables(folder / "_part.parquet")) == [(8, 9)]


@pytest.mark.parametrize("marked", [True, False])
def test_names_of_folders_are_columns(tmp_path: Path, marked: bool) -> None:
    root = tmp_path / "out.parquet"
    parquet(root / "year=2020" / "kind=a%2Fb" / "0.parquet", [1], [2], w=[0.5])
    parquet(root / "year=2021" / f"kind={'__HIVE_DEFAULT_PARTITION__' if marked else 'c'}" / "0.parquet", [3], [4], w=[1.5])
    source = gnnkit.tables(root, features=["year", "w"], categories="kind", fill={"kind": "none"})
    assert pairs(source) == ONE
    assert read_edge_array(source, EDGE, "edge_attr").tolist() == [[2020, 0.5], [2021, 1.5]]
    assert source.metadata["tables"]["node__to__node"]["kind"]["values"] == (["a/b", "none"] if marked else ["a/b", "c"])
    assert pairs(gnnkit.tables(root, src="year", dst="src")) == [(2020, 1), (2021, 3)]


def test_texts_below_folders_and_rows_of_nothing_else(tmp_path: Path) -> None:
    written(tmp_path, "src,dst\n1,2\n", "day=1/a.csv")
    written(tmp_path, "src,dst\n3,4\n", "day=x/a.csv")
    source = gnnkit.tables(tmp_path, label="day")
    assert (pairs(source), read_edge_array(source, EDGE, "edge_label").tolist()) == (ONE, [0, 1])
    assert gnnkit.tables({"src": [0], "dst": [1]}, tmp_path, categories={"node": "day"}).schema.node_types["node"].num_nodes == 2


@pytest.mark.packages("deltalake")
def test_a_folder_of_delta_is_read_as_its_log_says(tmp_path: Path) -> None:
    import deltalake

    rows = pa.table({"src": [1, 3], "dst": [2, 4], "year": [2020, 2021]})
    deltalake.write_deltalake(str(tmp_path / "t"), pa.table({"src": [8], "dst": [9], "year": [2020]}), partition_by=["year"])
    deltalake.write_deltalake(str(tmp_path / "t"), rows, mode="overwrite")
    source = gnnkit.tables(tmp_path / "t", features="year")
    found = dict(zip(pairs(source), read_edge_array(source, EDGE, "edge_attr")[:, 0].tolist(), strict=True))
    assert found == {(1, 2): 2020, (3, 4): 2021}
    with pytest.raises(PlanError, match="table of Delta, whose log says"):
        gnnkit.tables(f"{tmp_path}/t/*/*.parquet")


@pytest.mark.parametrize(("log", "engine"), [(".hoodie/hoodie.properties", "Hudi"), ("metadata/v1.metadata.json", "Iceberg")])
@pytest.mark.parametrize("form", ["table", "table/data", "table/**/*.parquet", ""])
def test_folders_whose_log_is_not_read_are_refused(tmp_path: Path, log: str, engine: str, form: str) -> None:
    parquet(tmp_path / "table" / "data" / "0.parquet", [1], [2])
    written(tmp_path, json.dumps({}), f"table/{log}")
    with pytest.raises(PlanError, match=f"a table of {engine}, whose log says"):
        gnnkit.tables(tmp_path / form)
    assert pairs(gnnkit.tables(tmp_path / "table" / "data" / "0.parquet")) == [(1, 2)]


# Types of columns ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["a", "b", "c"]), pl.String])
@pytest.mark.parametrize("form", ["frame", "feather", "parquet"])
def test_categories_of_polars(tmp_path: Path, kind: Any, form: str) -> None:
    edges = pl.DataFrame({"src": ["a", "b", "c"], "dst": ["b", "c", "a"]}).cast(kind)
    nodes = pl.DataFrame({"id": ["a", "b", "c"], "y": ["b", "a", None], "h": ["c", "b", "c"], "s": ["train", "test", None]})
    nodes = nodes.with_columns(pl.col("id", "y", "h").cast(kind), pl.col("s").cast(pl.Categorical))
    given: list[Any] = [edges, nodes]
    if form == "feather":
        for name, frame in (("edges", edges), ("nodes", nodes)):
            frame.write_ipc(tmp_path / f"{name}.arrow")
        given = [tmp_path / "edges.arrow", tmp_path / "nodes.arrow"]
    if form == "parquet":
        for name, frame in (("edges", edges), ("nodes", nodes)):
            frame.write_parquet(tmp_path / f"{name}.parquet")
        given = [tmp_path / "edges.parquet", tmp_path / "nodes.parquet"]
    source = gnnkit.tables(*given, keys="id", label="y", one_hot="h", split="s", fill={"y": -1})
    assert pairs(source) == [("a", "b"), ("b", "c"), ("c", "a")]
    assert read_node_array(source, "node", "y").tolist() == [1, 0, -1]
    assert read_node_array(source, "node", "x").tolist() == [[0, 1], [1, 0], [0, 1]]
    assert {name: ids.tolist() for name, ids in source.splits["node"].items()} == {"test": [1], "train": [0]}
    assert pairs(gnnkit.tables(given[0], types={"src": "string", "dst": "string"})) == pairs(source)


def unlike_columns() -> dict[str, Any]:
    frame = pd.DataFrame({"src": [0, 1], "dst": [1, 0], "w": [0.5, 1.5]})
    graph = nx.DiGraph()
    graph.add_edge(0, 1, w=0.5, osmid=5, place={"a": 1})
    graph.add_edge(1, 0, w=1.5, osmid=[5, 6])
    graph.nodes[0]["shape"] = object()
    return {
        "networkx": graph,
        "objects": frame.assign(note=[object(), "x"]),
        "lists": frame.assign(note=[[1, 2], 3]),
        "complex": frame.assign(note=[1j, 2j]),
        "sparse": frame.assign(note=pd.arrays.SparseArray([0, 1])),
        "mixed": frame.assign(note=[1, "x"]),
        "objects of Polars": pl.DataFrame({**frame.to_dict("list"), "note": [object(), object()]}),
        "structures of Polars": pl.DataFrame({**frame.to_dict("list"), "note": [{"a": [1]}, {"a": [2, 3]}]}),
        "dictionary": {**frame.to_dict("series"), "note": [{"a": 1}, "x"]},
        "doubles": pd.concat([frame, frame[["w"]].rename(columns={"w": "note"}), frame[["w"]].rename(columns={"w": "note"})], axis=1),
    }


@pytest.mark.parametrize("name", unlike_columns())
def test_columns_that_no_option_names_stop_nothing(name: str) -> None:
    source = gnnkit.tables(unlike_columns()[name], edge_weight="w")
    assert pairs(source) == [(0, 1), (1, 0)]
    assert read_edge_array(source, EDGE, "edge_weight").tolist() == [0.5, 1.5]
    assert source.metadata["tables"]["node__to__node"]["unused"] in (["note"], ["osmid", "place"], ["note.0", "note.1"])


def test_cells_that_take_a_way_of_their_own() -> None:
    frame = pd.DataFrame({"src": [0, 1], "dst": [1, 0]})
    nodes = frame.assign(s=pd.arrays.SparseArray([0, 1.5]), t=[torch.ones(2), torch.zeros(2)], v=[None, [1.0, 2.0]])[["s", "t", "v"]]
    source = gnnkit.tables(frame, nodes, features=["s", "t", "v"], fill={"v": 7.0})
    assert read_node_array(source, "node", "x").tolist() == [[0, 1, 1, 7, 7], [1.5, 0, 0, 1, 2]]
    nodes["p"] = pd.period_range("2020-01", periods=2, freq="M")
    with pytest.raises(DatasetError, match="'p' of nodes 'node' has periods") as caught:
        gnnkit.tables(frame, nodes, features="p")
    exec((caught.value.hint or "").removesuffix(" makes times of them"), {"table": nodes})
    assert read_node_array(gnnkit.tables(frame, nodes, features="p"), "node", "x").tolist() == [[18262], [18293]]
    with pytest.raises(GnnkitError, match="complex numbers, of which"):
        gnnkit.tables(frame.assign(c=[1j, 2j]), features="c")
    with pytest.raises(PlanError, match=r"features=\{\('node', 'to', 'node'\): \['src'\]\}"):
        gnnkit.tables(frame, features={"node": "src"})
    with pytest.raises(PlanError, match="not all whole numbers") as grid:
        gnnkit.tables(nx.grid_2d_graph(2, 2))
    made = eval((grid.value.hint or "").removesuffix(" is one"), {"networkx": nx, "edges": nx.grid_2d_graph(2, 2)})
    assert len(pairs(gnnkit.tables(made))) == 8


@pytest.mark.parametrize("name", ["objects", "lists", "complex", "dictionary", "objects of Polars", "structures of Polars"])
def test_such_a_column_is_an_error_where_it_is_named(name: str) -> None:
    with pytest.raises(GnnkitError, match="'note'"):
        gnnkit.tables(unlike_columns()[name], features="note")


def test_embeddings_of_no_length_and_types_of_numpy() -> None:
    source = gnnkit.tables({"src": [0], "dst": [1]}, pd.DataFrame({"v": [[], []]}), features="v", types={"src": np.int64, "dst": int})
    assert read_node_array(source, "node", "x").shape == (2, 0)


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("src,dst\n01234,1234\n1234,01234\n", [("01234", "1234"), ("1234", "01234")]),
        ("src,dst\n7,0x7\n0x7,+7\n+7,007\n007,7\n", [("7", "0x7"), ("0x7", "+7"), ("+7", "007"), ("007", "7")]),
        ("src, dst\nann, bob\nbob, ann\n", [("ann", "bob"), ("bob", "ann")]),
        ("src | dst\nann | bob\nbob | ann\n", [("ann", "bob"), ("bob", "ann")]),
        ("src  | dst\nanna | bob\nbob  | anna\n", None),
        ('src, dst\n"ann", "bob"\n"bob", "ann"\n', None),
        ("  \n1 2\n2 1\n", [(1, 2), (2, 1)]),
        ("a\tlikes\tb\nb\tknows\ta\na\tknows\tb\n", None),
        (",a,b\na,0,1\nb,1,0\n", None),
    ],
)
def test_texts_whose_keys_could_be_others(tmp_path: Path, content: str, wanted: Any) -> None:
    (tmp_path / "edges.csv").write_text(content)
    if wanted is None:
        with pytest.raises(GnnkitError, match="a blank follows|is a matrix|do not say which are the ends"):
            gnnkit.tables(tmp_path / "edges.csv")
        return
    types = {"dst": "string"} if isinstance(wanted[0][0], str) else {}
    source = gnnkit.tables(tmp_path / "edges.csv", types=types)
    assert pairs(source) == wanted
    if "01234" in content:
        (tmp_path / "nodes.csv").write_text("zip,v\n01234,1\n1234,2\n")
        keyed = gnnkit.tables(tmp_path / "edges.csv", tmp_path / "nodes.csv", keys="zip", types=types)
        assert pairs(keyed) == wanted
        (tmp_path / "rows.csv").write_text("src,dst\n01,00\n00,02\n")
        assert pairs(gnnkit.tables(tmp_path / "rows.csv", 3)) == [(1, 0), (0, 2)]


def after_many(rows: int, last: str, sep: str = ",") -> str:
    """Edges with a category, a class, a number and a date; the last row is another one, beyond the first block of the reader."""
    body = "".join(f"{k},{k + 1},{k % 7},{k % 5},0.0{k % 10},2020-01-0{k % 9 + 1},0{k % 9 + 1}/02/2020\n" for k in range(rows))
    return f"src,dst,kind,y,w,at,day\n{body}{last}\n".replace(",", sep)


@pytest.mark.parametrize("sep", [",", "\t", ";", "|", "::"])
@pytest.mark.parametrize("value", ["007", '"007"', "-007", "0x7", " 007"])
@pytest.mark.parametrize("place", range(4))
def test_numbers_with_zeros_before_them_are_not_taken_for_others_in_any_row(tmp_path: Path, sep: str, value: str, place: int) -> None:
    if sep == "::" and value in (" 007", '"007"'):
        value = "007"  # in such a text, blanks and quotes are part of the field
    rows = 1000
    fields = [str(rows), str(rows), "1", "1", "0.5", "2020-01-01", "01/02/2020"]
    fields[place] = value
    path = written(tmp_path, after_many(rows, ",".join(fields), sep))
    uses = {"categories": "kind", "label": {EDGE: "y"}, "edge_weight": "w"}
    name = ("src", "dst", "kind", "y")[place]
    with pytest.raises(DatasetError, match=rf"column '{name}' has .*00?x?7'? in row {rows}") as caught:
        gnnkit.tables(path, src="src", dst="dst", **uses)
    assert f"types={{'{name}': 'string'}}" in str(caught.value)
    both = {"src": "string", "dst": "string"} if place < 2 else {name: "string"}
    text = gnnkit.tables(path, src="src", dst="dst", types=both, **uses)
    assert place > 1 or value.strip('"') in {key for pair in pairs(text)[-1:] for key in pair}
    number = gnnkit.tables(path, src="src", dst="dst", types={name: "int64"}, **uses)
    assert number.schema.edge_types[EDGE].num_edges == rows + 1


def test_zeros_before_numbers_that_are_no_names_are_read_as_ever(tmp_path: Path) -> None:
    path = written(tmp_path, after_many(100_000, "1,2,3,4,007,2020-01-01,01/02/2020"))
    source = gnnkit.tables(path, edge_weight="w", time="at")
    assert read_edge_array(source, EDGE, "edge_weight")[-1] == 7
    # Ends that are row numbers are numbers, however they are written.
    rows = gnnkit.tables(written(tmp_path, after_many(1000, "007,2,3,4,1,2020-01-01,x")), 1001)
    assert read_edges(rows, EDGE)[:, -1].tolist() == [7, 2]


def test_zeros_before_numbers_in_the_names_of_folders_and_in_other_columns(tmp_path: Path) -> None:
    for year in (2020, 2021):
        written(tmp_path, after_many(1000, "1,2,3,4,007,2020-01-01,01/02/2020"), f"year={year}/edges.csv")
    source = gnnkit.tables(tmp_path, categories="year")
    assert source.metadata["tables"]["__".join(EDGE)]["year"]["values"] == [2020, 2021]
    written(tmp_path, after_many(1000, "1,007,3,4,007,2020-01-01,01/02/2020"), "year=2021/edges.csv")
    with pytest.raises(DatasetError, match="2021/edges.csv: column 'dst' has '007' in row 1000"):
        gnnkit.tables(tmp_path, categories="year")


def test_codes_with_zeros_before_them_are_texts(tmp_path: Path) -> None:
    path = written(tmp_path, "src,dst,zip,y\na,b,01234,02\nb,c,1234,2\n")
    source = gnnkit.tables(path, categories="zip", label={EDGE: "y"})
    facts = source.metadata["tables"]["__".join(EDGE)]
    assert (facts["zip"]["values"], facts["edge_label"]["values"]) == (["01234", "1234"], ["02", "2"])
    asked = gnnkit.tables(path, categories="zip", label={EDGE: "y"}, types={"zip": "string", "y": "string"})
    assert facts == asked.metadata["tables"]["__".join(EDGE)]
    numbers = gnnkit.tables(path, categories="zip", types={"zip": "int64"})
    assert numbers.metadata["tables"]["__".join(EDGE)]["zip"]["values"] == [1234]


def test_what_is_appended_names_no_node_of_another_number(tmp_path: Path) -> None:
    store = gnnkit.partition(gnnkit.tables(written(tmp_path, "src,dst\n7,8\n8,9\n")), 1, out=tmp_path / "store")
    more = written(tmp_path, "src,dst\n" + "8,7\n" * 1000 + "007,8\n", "more.csv")
    with pytest.raises(DatasetError, match="column 'src' has '007' in row 1000"):
        store.append(more)


# The card ------------------------------------------------------------------------------------------------------------------------


def test_the_card_says_how_tables_were_read(tmp_path: Path) -> None:
    path = written(tmp_path, "# made today\nsrc;dst;at;w;<b>\n1;2;2020-01-01;0.5;x\n3;9;2020-01-02;1.5;y\n")
    nodes = pd.DataFrame({"id": [1, 2, 3], "age": [1.0, 2.0, 3.0], "z": [0, 0, 0]})
    source = gnnkit.tables(path, nodes, keys="id", features="age", time={EDGE: "at"}, edge_weight="w", dangling="drop")
    page = source._repr_mimebundle_()["text/html"]
    for text in (repr(source), str(source), page.replace("&#39;", "'")):
        assert "edges.csv (';', row 1 is a header, 1 lines of comments left out), 2 rows" in text
        assert "at (date32[day]), in us" in text
        assert "1 edges that name no node" in text
        assert "age (double)" in text
    assert "&lt;b&gt;" in page and "<b>" not in page
    assert "row 1 is values" in repr(gnnkit.tables(written(tmp_path, "0,1\n5,6\n")))


# Layouts of data sets ------------------------------------------------------------------------------------------------------------


def test_layouts_of_known_data_sets(tmp_path: Path) -> None:
    # ogbn-mag: pairs of row numbers without a header, and numbers of nodes.
    folder = "raw/relations/author___writes___paper"
    mag = written(tmp_path, gzip.compress(b"0,0\n0,1\n2,1\n"), f"{folder}/edge.csv.gz")
    writes = ("author", "writes", "paper")
    source = gnnkit.tables({writes: mag}, {"author": 3, "paper": 2})
    assert read_edges(source, writes).tolist() == [[0, 0, 2], [0, 1, 1]]
    # MAG240M: arrays that NumPy maps.
    np.save(tmp_path / "edge_index.npy", np.array([[0, 1], [1, 2]]))
    np.save(tmp_path / "node_feat.npy", np.arange(6, dtype=np.float16).reshape(3, 2))
    with pytest.raises(PlanError, match=r"numpy\.load"):
        gnnkit.tables(tmp_path / "edge_index.npy")
    ends, rows = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("edge_index", "node_feat"))
    source = gnnkit.tables(ends, {"x": rows}, features="x")
    assert (read_edges(source, EDGE).tolist(), read_node_array(source, "node", "x").tolist()) == (ends.tolist(), rows.tolist())
    # LINKX's Facebook100: a sparse matrix and columns of whole numbers.
    coo = nx.to_scipy_sparse_array(nx.path_graph(3), format="coo")
    source = gnnkit.tables(coo.coords, {"y": np.array([1, 2, 2])}, label="y")
    assert read_edges(source, EDGE).tolist() == [end.tolist() for end in coo.coords]
    # PPI: JSON of NetworkX's nodes and links.
    graph = nx.node_link_graph(json.loads(json.dumps(nx.node_link_data(nx.path_graph(3), edges="links"))), edges="links")
    assert len(pairs(gnnkit.tables(graph))) == 4
    # DGL's save_graphs.
    with pytest.raises(PlanError, match=r"dgl\.load_graphs"):
        gnnkit.tables(written(tmp_path, b"DGL", "graph.bin"))
