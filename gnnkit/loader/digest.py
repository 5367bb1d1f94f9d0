"""One number for all that a loader gives, or for each tensor of a batch: equal digests are equal batches, bit for bit.

XXH3 (128 bits, https://xxhash.com) finds what differs by chance or mistake as surely as a cryptographic digest does, 20 times as fast;
nobody is kept from making batches with the same one on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import xxhash

from gnnkit.loader.padding import unpad
from gnnkit.schema import edge_type_name


class ValueDigest(NamedTuple):
    """The kind and the digest of one attribute of a batch.

    Attributes:
        kind: A tensor's dtype and shape, as in ``"torch.float32 [12, 5]"``; the type's name of anything else.
        digest: 32 hexadecimal digits (XXH3) of the tensor's bytes, or of the ``repr``.
    """

    kind: str
    digest: str


def batches_digest(batches: Iterable[Any]) -> str:
    """The digest of batches in their order: names, dtypes, shapes and bytes of every tensor, and every other attribute's ``repr``.

    Args:
        batches: ``Data`` or ``HeteroData``, for example a loader, whose next epoch is iterated then.

    Returns:
        32 hexadecimal digits (XXH3).
    """
    digest = xxhash.xxh3_128()
    for batch in batches:
        digest.update(f"{type(batch).__name__}\n".encode())
        for key, name, value in _attributes(batch):
            kind, content = _content(value)
            digest.update(f"{key!r} {name} {kind} ".encode())
            digest.update(content)
    return digest.hexdigest()


def value_digests(batch: Any) -> dict[str, ValueDigest]:
    """A digest of each attribute of a batch.

    Args:
        batch: ``Data`` or ``HeteroData``.

    Returns:
        ``{"x": ...}``, or ``{"paper.x": ..., "paper__cites__paper.edge_index": ...}`` for typed graphs.
    """
    found = {}
    for key, name, value in _attributes(batch):
        kind, content = _content(value)
        owner = "" if key is None else (edge_type_name(key) if isinstance(key, tuple) else str(key)) + "."
        found[owner + name] = ValueDigest(kind, xxhash.xxh3_128_hexdigest(content))
    return found


def _attributes(batch: Any) -> Iterator[tuple[Any, str, Any]]:
    """Node type, edge type or None; name; and value of every attribute, padding left out."""
    for store in unpad(batch).stores:
        for name, value in store.items():
            yield store._key, name, value


def _content(value: Any) -> tuple[str, Any]:
    """Returns the kind of a value, and its bytes."""
    import torch

    if not isinstance(value, torch.Tensor):
        return type(value).__name__, f"{value!r}\n".encode()
    # As plain bytes, because NumPy has no bfloat16; one dimension, because a tensor without any cannot change its dtype.
    return f"{value.dtype} {list(value.shape)}", value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
