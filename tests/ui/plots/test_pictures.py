"""Pictures of every kind: drawn without a window, readable on white and on dark pages, with axes and units; and what cannot be drawn."""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import _pylab_helpers
from PIL import Image

import gnnkit
from gnnkit import BuildOptions, GraphLoader, Store
from gnnkit.errors import LoaderClosed, PlanError, StoreError
from gnnkit.ui import plots
from gnnkit.units import format_short
from tests.helpers.graphs import random_source, stored
from tests.loader.graphs import make, plain, typed
from tests.loader.test_anchors import OPTIONS, anchors_of, labelled_shop
from tests.loader.test_timeline import record
from tests.storage.checks import fast_folder

PAGES = {"paper": "#ffffff", "JupyterLab's dark page": "#111111", "VS Code's dark page": "#1f1f1f"}


@pytest.fixture(autouse=True)
def no_windows() -> Iterator[None]:
    """No picture is pyplot's: it would be shown twice, and kept for ever."""
    yield
    assert not _pylab_helpers.Gcf.get_all_fig_managers()


def drawn(figure: Any) -> Image.Image:
    """The image that a notebook shows."""
    bundle, sizes = figure._repr_mimebundle_()
    assert bundle.keys() == {"image/png", "text/plain"} and bundle["text/plain"] == repr(figure)
    assert "\n" not in repr(figure) and len(bundle["image/png"]) < 200_000
    image = Image.open(io.BytesIO(base64.b64decode(bundle["image/png"])))
    shown = sizes["image/png"]
    assert shown["alt"] == figure.text_form and shown["alt"]
    assert (image.width // 2, image.height // 2) == (shown["width"], shown["height"]) and shown["width"] <= 940
    return image.convert("RGBA")


def words(figure: Any) -> str:
    """All words of a picture."""
    from matplotlib.text import Text

    return "\n".join(text.get_text() for text in figure.findobj(Text) if text.get_text())


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES.keys())
def test_tones_stand_out_on_every_page(page: str) -> None:
    """Contrasts as WCAG 2 counts them: 3 for graphics and for large letters; the grey of letters has 3.8 on each page."""
    for color, least in [(color, 2.9) for color in plots.PALETTE] + [(plots.INK, 3.8)]:
        brighter, darker = sorted([luminance(color), luminance(page)], reverse=True)
        assert (brighter + 0.05) / (darker + 0.05) >= least, color
    assert len({(plots.color_of(i), plots.marker_of(i)) for i in range(56)}) == 56


def test_numbers_beside_axes() -> None:
    shown = [plots.tick_words(value) for value in (0.1, 1, 100, 1000, 10_000, 12_500, 1e6, 2.5e6, 1e9)]
    assert shown == ["", "1", "100", "1,000", "10k", "12.5k", "1M", "2.5M", "1G"]


# Every picture -------------------------------------------------------------------------------------------------------------


def test_the_pictures_of_a_loader() -> None:
    with make() as loader:
        list(loader)
        batch, times, touches = loader.plot_batch(), loader.plot_timeline(), loader.plot_footprint()
    assert [type(figure.data).__name__ for figure in (batch, times, touches)] == ["Neighborhood", "Timeline", "Footprint"]
    for figure in batch, times, touches:
        image = np.asarray(drawn(figure))
        assert (image[..., 3] == 0).mean() > 0.4 and (image[..., 3] == 255).any()  # what is not drawn is the page
        framed = [axes for axes in figure.axes if axes.axison]
        assert all(axes.get_title(loc="left") for axes in framed) and framed[-1].get_xlabel()
    seed = int(batch.data.n_id[0])
    assert f"around node {seed}" in words(batch) and {"hop 1", "hop 2"} <= set(words(batch).split("\n"))
    assert "time since the epoch began (ms)" in words(times) or "time since the epoch began (s)" in words(times)
    assert {"thread 0", "loop: your code", "loop: waits", "batches"} <= set(words(times).split("\n"))
    assert "times in 15 batches (k)" in words(touches) and "size of the cache (% of 3.20 kB)" in words(touches)
    assert "640 B save" in words(touches) and "15 of 15 batches" in words(touches)
    # A closed loader still shows what it did, and what it gave.
    assert drawn(loader.plot_timeline(0)) and drawn(loader.plot_batch(batch=make_batch()))
    for draw in loader.plot_batch, loader.plot_footprint:
        with pytest.raises(LoaderClosed):
            draw()


def make_batch() -> Any:
    with make() as loader:
        return loader.peek()


@pytest.mark.parametrize("kind", ["typed", "link", "anchors", "pagerank", "far and wide"])
def test_batches_of_every_kind(kind: str) -> None:
    with ExitStack() as stack:
        if kind == "anchors":
            nodes = GraphLoader.from_pyg(labelled_shop(), input_nodes=("user", []), backend="inprocess", **OPTIONS)
            loader = stack.enter_context(anchors_of(stack.enter_context(nodes), input_nodes=[5, 8]))
        else:
            data = typed() if kind == "typed" else plain(4000, 60_000) if kind == "far and wide" else plain()
            options: dict[str, Any] = {
                "typed": {"input_nodes": "paper"},
                "link": {"edge_label_index": plain().edge_index[:, :20], "neg_sampling": "binary"},
                "pagerank": {"num_neighbors": None, "sampler": gnnkit.PPR(max_ppr_nodes=5)},
                "far and wide": {"num_neighbors": [-1, -1, -1]},
            }
            loader = stack.enter_context(make(data, **options[kind]))
        figure: Any = loader.plot_batch(2000 if kind == "far and wide" else None)  # a hub
        drawn(figure)
        text = words(figure)
        if kind == "typed":
            assert "around paper 0" in text and {"tag", "paper", "tag on paper"} <= set(text.split("\n"))
        elif kind == "link":
            source, target = figure.data.n_id[:2]
            assert f"around the link {source} → {target}" in text
        elif kind == "anchors":
            assert "around user 5 and its labels" in text and "positive labels" in text
        elif kind == "pagerank":
            assert "lines lead to the nodes that are kept" in text
        else:
            found = figure.data
            assert "nodes are drawn" in text and len(found.n_id) > 1500 and format_short(int((found.hop == 2).sum())) in text
        assert (kind == "pagerank") != ("lines lead inwards" in text)


@pytest.mark.slow
def test_epochs_of_every_kind() -> None:
    """Workers that nobody knows, more of them than there is room for, pauses, and a loop that is all there is."""
    with make() as loader:
        loader.records.add(record(0, epoch=3, asked_s=100.0))
        loader.records.add(record(0, epoch=4, asked_s=100.0, wait_s=2.0, paused_s=3.0, transform_s=1.0, transfer_s=1.0))
        for number in range(200):
            times = {"began_s": 10.0 + number, "sample_s": 0.4, "gather_s": 0.4, "wait_s": 1.0, "ready": number % 3}
            loader.records.add(record(number, f"server {number % 60}, process 0", asked_s=10.5 + number, epoch=5, **times))
        for epoch, wanted in (3, "epoch 3: 1 batch in 0 ms, 0 workers"), (4, "of them is not known"), (5, "server 59, process 0"):
            figure = loader.plot_timeline(epoch)
            drawn(figure)
            assert wanted in words(figure)
        assert {"loop: paused", "loop: transforms", "loop: copies"} <= set(words(loader.plot_timeline(4)).split("\n"))
        assert figure.get_figheight() == 12.0


def test_names_that_matplotlib_reads_otherwise() -> None:
    """Underscores leave lines out of legends, and dollars are formulas."""
    data = typed()
    renamed = type(data)()
    for name, store in (("_N", data["paper"]), ("a$b$^", data["tag"])):
        renamed[name].update(store.to_dict())
    edge_type = ("a$b$^", "$_very_long_indeed_" + 40 * "r", "_N")
    renamed[edge_type].edge_index = data["tag", "on", "paper"].edge_index
    with make(renamed, input_nodes="_N") as loader:
        figures = [loader.plot_batch(), loader.plot_footprint()]
        for figure in figures:
            drawn(figure)
        assert " _N" in words(figures[0]).split("\n") and "_N: " in words(figures[1])


@pytest.mark.slow
def test_stores_of_every_shape() -> None:
    """Typed and untyped, of one part and of several, with types that have no edge or no node; the numbers are the source's."""
    for number, num_parts in enumerate((1, 2, 3, 1, 12)):
        source = random_source(np.random.default_rng(number + 5), max_nodes=60)
        num_parts = min(num_parts, max(t.num_nodes for t in source.schema.node_types.values()))
        edge_dir: Any = "out" if number % 2 else "in"
        with fast_folder() as folder:
            store = stored(source, Path(folder) / "store", BuildOptions(num_parts, "random", edge_dir))
            figure: Any = store.plot()
        numbers: Any = figure.data
        part_of = {}
        for node_type, bounds in store.node_bounds.items():
            part_of[node_type] = np.searchsorted(bounds, store.to_store_ids(node_type, np.arange(bounds[-1])), side="right") - 1
        wanted = np.zeros((num_parts, num_parts), np.int64)
        for (source_type, _, target_type), ends in source.edges.items():
            np.add.at(wanted, (part_of[source_type][ends[0]], part_of[target_type][ends[1]]), 1)
        np.testing.assert_array_equal(numbers.cut, wanted)
        assert numbers.degrees.keys() == source.edges.keys() and len(figure.axes) == (2 if num_parts == 1 else 4)
        if number in (0, 1, 4):  # drawing takes longer than all the rest
            drawn(figure)
        text = words(figure)
        total = wanted.sum()
        assert num_parts == 1 or f"edges between parts, {(total - np.trace(wanted)) / max(total, 1):.1%} cut" in text
        assert num_parts > 1 or "one part: no edge is cut" in text
        assert {"edges of a node (k)", "nodes with at least k edges", "share of the whole (%)"} <= set(text.split("\n"))


def test_a_notice_goes_with_the_picture() -> None:
    store = gnnkit.datasets.products_like(0.001)
    with GraphLoader.from_source(store, num_neighbors=[2], batch_size=8, progress=False, backend="inprocess") as loader:
        assert store.notice and store.notice in words(loader.plot_batch()).replace("\n", " ")
        assert store.notice in words(loader.store.plot()).replace("\n", " ")


# What cannot be drawn ------------------------------------------------------------------------------------------------------


def test_parts_that_are_not_here(tmp_path: Path) -> None:
    gnnkit.partition(plain(), 3, "random", out=tmp_path / "store")
    with pytest.raises(StoreError, match="part 1 of the store"):
        Store.open(tmp_path / "store", parts=[0]).plot()


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is said before anything is sampled or counted."""
    store = gnnkit.partition(plain(), 2, "random", out=tmp_path / "store")
    with make() as loader:
        next(iter(loader))
        for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        monkeypatch.delitem(sys.modules, "gnnkit.ui.picture", raising=False)
        for draw in loader.plot_batch, loader.plot_timeline, loader.plot_footprint, store.plot:
            with pytest.raises(PlanError, match=r"(?s)drawn by matplotlib.*pip install 'gnnkit\[plots\]'"):
                draw()
