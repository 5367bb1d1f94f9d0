"""Every kind of batch, bit for bit the same wherever it is sampled and however the graph is divided."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gnnkit import Colocated, GraphLoader, GraphStore, InProcess, OnDevice, Store, serve, unpad
from gnnkit.errors import PlanError
from tests.backends.kinds import EDGE_DIRS, GRAPHS, KINDS, WHOLE_KINDS, built, kind_loader, source_of
from tests.cluster.serving.networked import two_hosts
from tests.helpers.batches import digest, same

NUM_BATCHES = 4


class Setting(NamedTuple):
    """Where batches are sampled, and from what."""

    place: str
    graph: str
    num_parts: int
    edge_dir: Any
    order: Any = "dataset"

    def __str__(self) -> str:
        return "-".join(map(str, self))


BACKENDS: dict[str, Any] = {
    "InProcess": InProcess(2),
    "OnDevice": OnDevice("cpu"),
    "Colocated": Colocated(1),
    "GraphStore": GraphStore(1),
}
SETTINGS = [
    *(Setting("InProcess", graph, parts, way) for graph in GRAPHS for parts in (1, 3) for way in EDGE_DIRS),
    *(Setting("OnDevice", graph, parts, way) for graph in GRAPHS for parts in (1, 3) for way in EDGE_DIRS),
    # How a graph is stored and how a batch comes from a process do not meet: each place has both graphs, directions and numbers of
    # parts, and the two have every graph in every direction between them.
    Setting("Colocated", "homogeneous", 1, "in"),
    Setting("Colocated", "typed", 3, "out"),
    Setting("GraphStore", "homogeneous", 3, "out"),
    Setting("GraphStore", "typed", 1, "in"),
    # The hottest nodes first in every part.
    Setting("InProcess", "homogeneous", 3, "in", "hotness"),
    Setting("InProcess", "typed", 1, "out", "hotness"),
    Setting("OnDevice", "typed", 3, "in", "hotness"),
    Setting("Colocated", "typed", 1, "in", "hotness"),
    Setting("GraphStore", "homogeneous", 3, "in", "hotness"),
    # Servers that listen, whose rows come through the wire; and two hosts with the files of their own part only, or with those of the
    # structure of both.
    Setting("wire", "typed", 3, "out"),
    Setting("hosts", "typed", 2, "in", "hotness"),
    Setting("features", "typed", 2, "in"),
]
PADDED = [s for s in SETTINGS if s.num_parts > 1 and s.graph == "typed" and s.edge_dir == "out"]
# What a device leaves to processors.
NOT_ON_DEVICES = ("ppr", "hgt", "layer_wise", "walks", *WHOLE_KINDS)
StoreOf = Callable[[str, str, int, Any, Any], Store]


@pytest.fixture(scope="module")
def store_of(tmp_path_factory: pytest.TempPathFactory) -> StoreOf:
    """The store of a kind's graph, built when it is first asked for."""
    folder = tmp_path_factory.mktemp("kinds")
    stores: dict[tuple[int, int, Any, Any], Store] = {}

    def find(kind: str, graph: str, num_parts: int, edge_dir: Any, order: Any) -> Store:
        source = source_of(graph, kind, edge_dir)
        key = id(source), num_parts, edge_dir, order
        if key not in stores:
            stores[key] = built(folder / str(len(stores)), source, num_parts, edge_dir, order)
        return stores[key]

    return find


@pytest.fixture(scope="module")
def expected(store_of: StoreOf) -> Callable[[str, str, Any], list[Any]]:
    """An epoch of a kind, sampled by one thread of this process from the whole graph."""
    found: dict[tuple[str, str, Any], list[Any]] = {}

    def find(kind: str, graph: str, edge_dir: Any) -> list[Any]:
        key = kind, graph, edge_dir
        if key not in found:
            with kind_loader(kind, graph, store_of(kind, graph, 1, edge_dir, "dataset").path, InProcess(1)) as loader:
                found[key] = list(loader)
        return found[key]

    return find


class Site(NamedTuple):
    """A place with its processes, which stay from one kind to the next."""

    setting: Setting
    open: Callable[..., GraphLoader]

    def refuses(self, kind: str) -> bool:
        """Whether a kind is none of this place's; it says where there is such a kind."""
        if kind in WHOLE_KINDS and self.setting.graph == "typed":
            message = "samples homogeneous graphs"
        elif self.setting.place == "OnDevice" and kind in NOT_ON_DEVICES:
            message = r"InProcess\(\), Colocated\(\) and GraphStore\(\) have it"
        else:
            return False
        with pytest.raises(PlanError, match=message):
            self.open(kind)
        return True


def _tried(settings: list[Setting]) -> list[Any]:
    """Settings as parameters; those with processes are no quick ones."""
    return [pytest.param(s, id=str(s), marks=[] if s.place in ("InProcess", "OnDevice") else pytest.mark.slow) for s in settings]


@pytest.fixture(scope="module", params=_tried(SETTINGS))
def site(request: pytest.FixtureRequest, store_of: StoreOf, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Loaders of one place; those that stay open keep its processes."""
    setting: Setting = request.param
    place, graph, parts, edge_dir, order = setting
    with contextlib.ExitStack() as stack:
        if place in BACKENDS:

            def open_loader(kind: str, **changes: Any) -> GraphLoader:
                return kind_loader(kind, graph, store_of(kind, graph, parts, edge_dir, order).path, BACKENDS[place], **changes)

        else:
            backend = stack.enter_context(
                _listening(place, store_of("node", graph, parts, edge_dir, order), tmp_path_factory.mktemp(place))
            )

            def open_loader(kind: str, **changes: Any) -> GraphLoader:
                return kind_loader(kind, graph, None, backend, **changes)

        # With a seed of their own: a loader of the same plan would take their places.
        for kind in ("node", "anchor") if graph == "homogeneous" else ("node",):
            stack.enter_context(open_loader(kind, seed=99))
        yield Site(setting, open_loader)


@contextlib.contextmanager
def _listening(place: str, store: Store, folder: Path) -> Iterator[GraphStore]:
    """Servers with addresses, ready; the way to them."""
    if place in ("hosts", "features"):
        with two_hosts(store, folder, placement="partition" if place == "hosts" else place) as hosts:
            yield GraphStore(address=hosts.address, token=hosts.fleets[0].token)
        return
    with serve(store, 2, address="127.0.0.1:0", log_dir=folder, progress=False) as servers:
        servers.wait(120)
        yield GraphStore(address=servers.address, token=servers.token)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_the_same_everywhere(kind: str, site: Site, expected: Callable[[str, str, Any], list[Any]]) -> None:
    if site.refuses(kind):
        return
    wanted = expected(kind, site.setting.graph, site.setting.edge_dir)
    assert len(wanted) == NUM_BATCHES
    with site.open(kind) as loader:
        for _ in range(2):
            loader.set_epoch(0)
            for batch, other in zip(loader, wanted, strict=True):
                same(batch, other)


def _feature_bytes(batch: Any) -> int:
    return sum(store.x.nbytes for store in batch.stores if "x" in store)


@pytest.mark.parametrize(
    "site", _tried([s for s in SETTINGS if s.num_parts > 1 and s.edge_dir == "out" and s.place in BACKENDS]), indirect=True
)
@pytest.mark.parametrize("kind", KINDS)
def test_features_on_the_device_change_no_batch(kind: str, site: Site, expected: Callable[[str, str, Any], list[Any]]) -> None:
    """A few of them, so that batches have both."""
    if site.refuses(kind):
        return
    wanted = expected(kind, site.setting.graph, site.setting.edge_dir)
    with site.open(kind, device="cpu", feature_cache=150) as loader:
        for _ in range(2):
            loader.set_epoch(0)
            for batch, other in zip(loader, wanted, strict=True):
                same(batch, other)
        assert 0 < loader.stats().cached_nbytes < sum(_feature_bytes(batch) for batch in wanted)


@pytest.mark.parametrize("site", PADDED, indirect=True, ids=str)
@pytest.mark.parametrize("kind", ["node", "link_triplet", "walks"])
def test_padded_batches_are_the_same_everywhere(
    kind: str, site: Site, expected: Callable[[str, str, Any], list[Any]], store_of: StoreOf
) -> None:
    """With the same shapes, wherever the trial batches that they are found from are sampled."""
    if site.refuses(kind):
        return
    _, graph, _, edge_dir, _ = site.setting
    path = store_of(kind, graph, 1, edge_dir, "dataset").path
    with site.open(kind, pad="bucket", is_edge_index=True) as loader, kind_loader(kind, graph, path, InProcess(1), pad="bucket") as other:
        assert loader.plan.form.shapes == other.plan.form.shapes
        for batch, wanted in zip(loader, expected(kind, graph, edge_dir), strict=True):
            same(unpad(batch), wanted)


@pytest.mark.parametrize("site", _tried([s for s in SETTINGS if s.place == "wire"]), indirect=True)
def test_features_of_a_graph_elsewhere_are_not_kept(site: Site) -> None:
    with pytest.raises(PlanError, match="the whole graph is on servers of other hosts"):
        site.open("node", device="cpu", feature_cache=150)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["wire", "hosts", "features"])
def test_whole_subgraphs_come_through_the_wire(
    place: str, store_of: StoreOf, expected: Callable[[str, str, Any], list[Any]], tmp_path: Path
) -> None:
    """From servers of a homogeneous graph; where the degrees of all nodes are elsewhere, nothing is drawn by them."""
    with _listening(place, store_of("node", "homogeneous", 2, "out", "dataset"), tmp_path) as backend:
        for kind in WHOLE_KINDS:
            if kind == "saint_nodes":
                with pytest.raises(PlanError, match="draws by the degrees of all nodes"):
                    kind_loader(kind, "homogeneous", None, backend)
                continue
            with kind_loader(kind, "homogeneous", None, backend) as loader:
                for batch, other in zip(loader, expected(kind, "homogeneous", "out"), strict=True):
                    same(batch, other)


@pytest.mark.parametrize("edge_dir", EDGE_DIRS)
@pytest.mark.parametrize("graph", GRAPHS)
def test_kinds_differ(graph: str, edge_dir: Any, expected: Callable[[str, str, Any], list[Any]]) -> None:
    """What is compared above has edges, and no two kinds are the same by another name."""
    kinds = [kind for kind in KINDS if graph == "homogeneous" or kind not in WHOLE_KINDS]
    epochs = {kind: expected(kind, graph, edge_dir) for kind in kinds}
    assert all(any(batch.num_edges for batch in batches) for kind, batches in epochs.items() if kind != "walks")
    assert len({digest(batches) for batches in epochs.values()}) == len(kinds)
