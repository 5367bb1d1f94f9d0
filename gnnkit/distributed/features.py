"""Features of a part, and of a whole graph part by part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from gnnkit.distributed.dataset_schema import torch_dtype
from gnnkit.distributed.partition_book import AnyBook, look_up
from gnnkit.distributed.parts import GraphType, by_type, check_part
from gnnkit.errors import PlanError
from gnnkit.schema import ArraySpec
from gnnkit.storage.quantize import plain_rows

if TYPE_CHECKING:
    from pathlib import Path

    from gnnkit.storage.store import Store


class RowIndex(Protocol):
    """Finds the rows of a part that belong to the dataset's ids."""

    def rows(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        """Rows ``[k]``; -1 for what belongs to another part."""
        ...


class LocalFeature:
    """The features of one type in one part; ``feature[ids]`` copies rows.

    Args:
        rows: ``[num_local, *row_shape]``, mapped or in memory; bfloat16 as uint16 bit patterns, quantised ones as uint8.
        spec: What a row looks like.
        index: From the dataset's ids to rows.
    """

    def __init__(self, rows: NDArray[Any], spec: ArraySpec, index: RowIndex) -> None:
        self._rows, self._spec, self._index = rows, spec, index
        self.dtype = torch_dtype(spec)

    @property
    def shape(self) -> torch.Size:
        """Of all local rows together."""
        return torch.Size(self._rows.shape)

    def size(self, dim: int) -> int:
        """One of ``shape``."""
        return int(self.shape[dim])

    def __getitem__(self, ids: torch.Tensor) -> torch.Tensor:
        return self.cpu_get(ids)

    def cpu_get(self, ids: torch.Tensor) -> torch.Tensor:
        """Looks up features.

        Args:
            ids: The dataset's ids, integers ``[k]``, all of this part.

        Returns:
            ``[k, *row_shape]``, the caller's own; float32 of quantised ones.

        Raises:
            PlanError: An id belongs to another part, or to none.
        """
        wanted = ids.cpu().long().numpy()
        rows = self._index.rows(wanted)
        if rows.size and rows.min() < 0:
            raise PlanError(f"this part has no features of id {int(wanted[rows < 0][0])}", "look up which part has, by the partition book")
        return as_tensor(plain_rows(np.take(self._rows, rows, axis=0), self._spec), self.dtype)


class DistFeature:
    """Features of a whole graph: those of the part here, and those of parts that this process can read directly.

    Typed graphs have a dict by type wherever a homogeneous one has a single value. ``feature[ids]`` or ``feature[type, ids]``
    looks up ids of any part.

    Args:
        num_partitions: Number of parts.
        partition_idx: The part here.
        local_feature: Its features.
        feature_pb: Which part has the features of which id: partition books, or tensors with each id's part.
        local_only: Refuses ids of other parts even where they could be read.
        rpc_router: Must be None: other parts are not fetched through graphlearn-torch's RPC.
        device: Where results are put; None is the CPU.
        peers: Features of other parts that this process can read, by part.

    Raises:
        PlanError: An ``rpc_router`` is given, there is no such part, or only one of features and books is a dict.
    """

    def __init__(
        self,
        num_partitions: int,
        partition_idx: int,
        local_feature: LocalFeature | Mapping[GraphType, LocalFeature],
        feature_pb: AnyBook | Mapping[GraphType, AnyBook],
        local_only: bool = False,
        rpc_router: Any = None,
        device: torch.device | None = None,
        *,
        peers: Mapping[int, LocalFeature | Mapping[GraphType, LocalFeature]] | None = None,
    ) -> None:
        if rpc_router is not None:
            raise PlanError("gnnkit does not fetch features through graphlearn-torch's RPC, but got an rpc_router", "leave it out")
        check_part(partition_idx, num_partitions)
        if isinstance(local_feature, Mapping) != isinstance(feature_pb, Mapping):
            raise PlanError("local_feature and feature_pb must both be dicts by type, or neither")
        self.num_partitions, self.partition_idx = num_partitions, partition_idx
        self.local_feature, self.feature_pb = local_feature, feature_pb
        self.data_cls = "hetero" if isinstance(local_feature, Mapping) else "homo"
        self.device = device
        self._stores = {**({} if local_only else peers or {}), partition_idx: local_feature}

    @classmethod
    def from_store(cls, store: Store | str | Path, partition_idx: int = 0, *, of: Literal["node", "edge"] = "node") -> DistFeature:
        """The features of a store, every part of it mapped.

        Args:
            store: The store, or its folder.
            partition_idx: The part that counts as local.
            of: "node" or "edge".

        Raises:
            PlanError: The store has no such features, or no such part.
        """
        from gnnkit.distributed.store_views import StoreViews

        return StoreViews.of(store).dist_feature(partition_idx, of)

    def local_get(self, ids: torch.Tensor, input_type: GraphType | None = None) -> torch.Tensor:
        """Features ``[k, *row_shape]`` of ids ``[k]`` of the part here, on the CPU; see ``LocalFeature.cpu_get``."""
        feature: LocalFeature = by_type(self.local_feature, input_type, "features")
        return feature.cpu_get(ids)

    def async_get(self, ids: torch.Tensor, input_type: GraphType | None = None) -> torch.futures.Future[torch.Tensor]:
        """A future of ``self[ids]``; it is done, since nothing is fetched from elsewhere."""
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        try:
            future.set_result(self._get(ids, input_type))
        except PlanError as error:
            future.set_exception(error)  # type: ignore[arg-type]  # what torch annotates here is the result
        return future

    def __getitem__(self, input: torch.Tensor | tuple[GraphType, torch.Tensor]) -> torch.Tensor:
        return self._get(input, None) if isinstance(input, torch.Tensor) else self._get(input[1], input[0])

    def _get(self, ids: torch.Tensor, input_type: GraphType | None) -> torch.Tensor:
        local = by_type(self.local_feature, input_type, "features")
        parts = look_up(by_type(self.feature_pb, input_type, "a partition book"), ids)
        found = torch.empty((ids.numel(), *local.shape[1:]), dtype=local.dtype)
        for part in map(int, torch.unique(parts)):
            if part not in self._stores:
                missing = int(ids[(parts == part).to(ids.device)][0])
                raise PlanError(
                    f"part {part} has the features of id {missing}, and only those of the parts {sorted(self._stores)} can be read here",
                    "map all parts with DistFeature.from_store, or ask the host that has the part",
                )
            chosen = parts == part
            found[chosen] = by_type(self._stores[part], input_type, "features").cpu_get(ids.cpu()[chosen])
        return found if self.device is None else found.to(self.device)


def as_tensor(values: NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    """An array as a tensor over the same memory; bfloat16 is given as uint16 bit patterns."""
    return torch.from_numpy(values.view(np.int16)).view(dtype) if dtype == torch.bfloat16 else torch.from_numpy(values)
