"""One number for all that a loader gives: equal digests are equal batches, bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

_DIGEST_BYTES = 16


def batches_digest(batches: Iterable[Any]) -> str:
    """The digest of batches in their order: names, dtypes, shapes and bytes of every tensor, and every other attribute's ``repr``.

    Args:
        batches: ``Data`` or ``HeteroData``, for example a loader, whose next epoch is iterated then.

    Returns:
        32 hexadecimal digits (BLAKE2b).
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for batch in batches:
        digest.update(f"{type(batch).__name__}\n".encode())
        for store in batch.stores:
            for name, value in store.items():
                _add(digest, f"{store._key!r} {name}", value)
    return digest.hexdigest()


def _add(digest: Any, name: str, value: Any) -> None:
    import torch

    if not isinstance(value, torch.Tensor):
        digest.update(f"{name} {type(value).__name__} {value!r}\n".encode())
        return
    digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
    # As plain bytes, because NumPy has no bfloat16; one dimension, because a tensor without any cannot change its dtype.
    digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
