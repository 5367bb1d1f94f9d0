"""The digest of batches tells everything apart that users could: names, order, dtypes, shapes and every bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gnnkit.loader.inspection import batches_digest


def homogeneous() -> Data:
    return Data(
        x=torch.arange(6.0).view(3, 2), y=torch.tensor(3, dtype=torch.bfloat16), mask=torch.tensor([], dtype=torch.bool), batch_size=2
    )


def typed() -> HeteroData:
    data = HeteroData()
    data["a"].x = torch.zeros(2, 1)
    data["b"].x = torch.zeros(2, 1)
    data["a", "to", "b"].edge_index = torch.zeros(2, 0, dtype=torch.int64)
    return data


@pytest.mark.parametrize("make", [homogeneous, typed])
def test_equal_batches_have_equal_digests(make: Callable[[], Any]) -> None:
    assert batches_digest([make(), make()]) == batches_digest(iter([make(), make()]))
    assert batches_digest([make(), make()]) != batches_digest([make()])
    strided = make()
    for store in strided.node_stores:
        store.x = torch.stack([store.x, store.x], -1)[..., 0]
    assert not strided.node_stores[0].x.is_contiguous()
    assert batches_digest([strided]) == batches_digest([make()]), "where the bytes lie says nothing about what they are"


@pytest.mark.parametrize(
    "change",
    [
        lambda d: setattr(d, "x", d.x.view(2, 3)),
        lambda d: setattr(d, "x", d.x.view(torch.int32)),
        lambda d: d.x.__setitem__((0, 0), -0.0),
        lambda d: setattr(d, "y", torch.tensor([3], dtype=torch.bfloat16)),
        lambda d: setattr(d, "mask", torch.tensor([], dtype=torch.uint8)),
        lambda d: setattr(d, "batch_size", 3),
        lambda d: setattr(d, "extra", "said"),
        lambda d: setattr(d, "z", d._store.pop("x")),
        lambda d: setattr(d, "x", d._store.pop("x")),
    ],
    ids=["shape", "dtype", "sign of zero", "no dimension", "dtype of nothing", "number", "another", "name", "order"],
)
def test_any_difference_shows(change: Callable[[Data], Any]) -> None:
    changed = homogeneous()
    change(changed)
    assert batches_digest([changed]) != batches_digest([homogeneous()])


def test_types_and_order_show() -> None:
    swapped = typed()
    swapped["a"].x, swapped["b"].x = swapped["b"].x, torch.ones(2, 1)
    other = typed()
    other["a"].x, other["b"].x = torch.ones(2, 1), other["a"].x
    assert len({batches_digest([batch]) for batch in (typed(), swapped, other)}) == 3
    assert batches_digest([swapped, other]) != batches_digest([other, swapped])
