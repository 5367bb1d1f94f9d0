"""What is said where a graph turns out to be damaged."""

from __future__ import annotations

from gnnkit.errors import StoreError

VERIFY_HINT = "gnnkit info --verify names the file"
LOOSE_EDGE = "an edge leads to a node that does not exist"
STRANGE_SEED = "a seed is numbered as a node that does not exist"
STRANGE_ID = "a node or an edge has an id that the dataset does not have"


def damaged(what: str) -> StoreError:
    """The error to raise; ``what`` is one of the texts above, or says as much."""
    return StoreError(f"the graph is damaged: {what}", VERIFY_HINT)
