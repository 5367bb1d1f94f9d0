"""The small typed graph with labels that servers and remote datasets are tried on."""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.data import HeteroData

from gnnkit.distributed import message_passing_to_negative_label, message_passing_to_positive_label, reverse_edge_type

TO_STORY, TO_USER = ("user", "to", "story"), ("story", "rev_to", "user")
NUM_USERS = 5


def social(*, reversed_labels: bool = False, with_negatives: bool = True) -> HeteroData:
    """Five users, five stories, an edge each way; users are labelled with stories u and u + 1, and not with story u + 2.

    Args:
        reversed_labels: Whether label edges lead from stories to users, under the reverse type's names.
        with_negatives: Whether there are negative labels.
    """
    data, u = HeteroData(), torch.arange(NUM_USERS)
    data["user"].x, data["story"].x = u.float()[:, None], 10 + u.float()[:, None].repeat(1, 2)
    data["user"].y = u.clone()
    for name, ids in (("train_mask", [0, 1, 2]), ("val_mask", [3]), ("test_mask", [4])):
        data["user"][name] = torch.zeros(NUM_USERS, dtype=torch.bool)
        data["user"][name][ids] = True
    data[TO_STORY].edge_index = data[TO_USER].edge_index = torch.stack([u, u])
    supervised = reverse_edge_type(TO_STORY) if reversed_labels else TO_STORY
    labels: list[tuple[Any, list[int]]] = [(message_passing_to_positive_label(supervised), [1, 0])]
    labels += [(message_passing_to_negative_label(supervised), [2])] if with_negatives else []
    for edge_type, steps in labels:
        edges = torch.stack([u.repeat(len(steps)), torch.cat([(u + step) % NUM_USERS for step in steps])])
        data[edge_type].edge_index = edges.flip(0) if reversed_labels else edges
    return data
