"""Fills the rows of a batch from this host's parts, from replicated features and from the other hosts, each row into its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnnkit.sampling import fill as fill_kernel
from gnnkit.sampling import merge as kernels
from gnnkit.sampling.fill import RowStep
from gnnkit.sampling.hosts import HotRows, PartMap
from gnnkit.sampling.owners import PartOwners, RowsRequest
from gnnkit.sampling.tables import GraphTables, address_of
from gnnkit.storage.layout import FEATURE_NAME

_NO_ROWS = np.zeros(1, np.int64)


@dataclass(eq=False)
class _Listed:
    """The rows of one group of arrays by the host that has them; scratch that grows."""

    lists: NDArray[np.int64]
    places: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, num_hosts: int, size: int) -> _Listed:
        return cls(np.empty((num_hosts, size), np.int64), np.empty((num_hosts, size), np.int64), np.zeros(num_hosts, np.int64))


class RowFiller:
    """Fills rows; one object per thread.

    Args:
        tables: The graph.
        where: Where the parts are.
        owners: The other hosts.
    """

    def __init__(self, tables: GraphTables, where: PartMap, owners: PartOwners) -> None:
        self._tables, self._where, self._owners = tables, where, owners
        self._scratch: list[_Listed] = []
        # Replicated features, by row of ``row_addresses``.
        self._hot: dict[int, HotRows] = {
            table.index: where.hot[node_type]
            for (node_type, name), table in tables.node_rows.items()
            if name == FEATURE_NAME and node_type in where.hot
        }

    def use(self, tables: GraphTables) -> None:
        """Switches to another copy of the same graph."""
        self._tables = tables

    def fill(self, steps: Sequence[RowStep]) -> bool:
        """Fills rows.

        Returns:
            Whether every id that was looked up is one that its type has.

        Raises:
            SamplingError: A host did not answer.
        """
        groups: dict[tuple[int, int, int, int], list[RowStep]] = {}
        for target, step in steps:
            _, ids, count, width, table, bounds = step
            if count and width:
                hot = self._hot.get(table)
                groups.setdefault((ids, count, bounds, 0 if hot is None else address_of(hot.row)), []).append((target, step))
        listed = [self._list(number, *group) for number, group in enumerate(groups)]
        requests, targets = self._requests(list(groups), list(groups.values()), listed)
        damaged = []

        def take(host: int, message: int, address: int) -> None:
            request = requests[host]
            for piece in request.messages[message]:
                _, which, width = request.sections[piece.section]
                target, group, widen, limit = targets[host][piece.section]
                places = listed[group].places[host, piece.first : piece.first + piece.num_rows]
                if not kernels.place_rows(address + piece.offset, piece.num_rows, places, width, target, widen, limit):
                    damaged.append(which)

        wait = self._owners.rows(requests, take)
        try:
            inside = all(
                [self._copy(target, step, rows) for rows, members in zip(listed, groups.values(), strict=True) for target, step in members]
            )
        finally:
            wait()
        return inside and not damaged

    def _list(self, number: int, ids: int, count: int, bounds: int, hot: int) -> _Listed:
        if number == len(self._scratch):
            self._scratch.append(_Listed.of(self._where.num_hosts, 0))
        if self._scratch[number].lists.shape[1] < count:
            self._scratch[number] = _Listed.of(self._where.num_hosts, count + count // 2)
        found = self._scratch[number]
        here, host_of_part = self._where.here, self._where.host_of_part
        kernels.list_rows(ids, count, self._tables.row_bounds[bounds], host_of_part, here, hot, found.lists, found.places, found.counts)
        return found

    def _requests(
        self, groups: list[tuple[int, int, int, int]], members: list[list[RowStep]], listed: list[_Listed]
    ) -> tuple[dict[int, RowsRequest], dict[int, list[tuple[int, int, bool, int]]]]:
        """What each host is asked, and for each section the address of its rows, its group, whether it is widened, and to below what."""
        requests, targets = {}, {}
        for host in range(self._where.num_hosts):
            lists: list[tuple[int, NDArray[np.int64]]] = []
            sections, places = [], []
            for number, (_, _, bounds, _) in enumerate(groups):
                count = int(listed[number].counts[host])
                if not count or host == self._where.here:
                    continue
                for target, (kind, _, _, width, table, _) in members[number]:
                    sections.append((table, len(lists), width))
                    places.append((target, number, kind == fill_kernel.LOOK_UP, int(self._tables.row_bounds[bounds, -1])))
                lists.append((bounds, listed[number].lists[host, :count]))
            if sections:
                requests[host], targets[host] = RowsRequest(tuple(lists), tuple(sections)), places
        return requests, targets

    def _copy(self, target: int, step: tuple[int, int, int, int, int, int], rows: _Listed) -> bool:
        kind, _, _, width, table, bounds = step
        here, tables, hot = self._where.here, self._tables, self._hot.get(table)
        count = rows.counts[here]
        return kernels.copy_local(
            rows.lists[here, :count], rows.places[here, :count], tables.row_bounds[bounds], tables.row_addresses[table], width, target,
            kind == fill_kernel.LOOK_UP, *((0, _NO_ROWS, _NO_ROWS) if hot is None else (address_of(hot.row), hot.bounds, hot.addresses)),
        )  # fmt: skip
