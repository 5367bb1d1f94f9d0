"""How a walk travels: the request for it, and the answer, whose bytes are those of a slot of the server's ring.

An answer is a stream of messages of two columns, the layout as JSON and the structure (``gnnkit.sampling.structure``). Messages without a
row come first, one a second for as long as the batch is being sampled: they show that the server is there, and that somebody still waits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gnnkit.errors import GnnkitError
from gnnkit.runtime.remote import layout_from_json
from gnnkit.sampling.owners import BadRequest
from gnnkit.sampling.structure import Structure

WALK_SCHEMA = pa.schema([("layout", pa.large_list(pa.uint8())), ("structure", pa.large_list(pa.uint8()))])
PATIENCE = pa.RecordBatch.from_arrays([pa.array([], kind.type) for kind in WALK_SCHEMA], schema=WALK_SCHEMA)


class UnknownChannel(GnnkitError):
    """The server knows nothing of the loader: it has been started again, or has not heard of the client for long. Register again."""


def walk_to_batch(layout: Mapping[str, Any], block: NDArray[np.uint8]) -> pa.RecordBatch:
    """An answer; ``block`` is not copied, and is kept until the answer has been sent."""
    text = json.dumps(layout, separators=(",", ":")).encode()
    return pa.RecordBatch.from_arrays([_as_list(memoryview(text), len(text)), _as_list(block, len(block))], schema=WALK_SCHEMA)


def walk_from_batches(batches: Iterable[pa.RecordBatch]) -> Structure:
    """Reverses ``walk_to_batch``; nothing is copied.

    Raises:
        BadRequest: It is none of its.
    """
    answers = [batch for batch in batches if batch.num_rows]
    if len(answers) != 1 or answers[0].num_rows != 1 or not answers[0].schema.equals(WALK_SCHEMA):
        raise BadRequest("this is no answer to a walk")
    try:
        answers[0].validate(full=True)
        layout, block = (column.flatten().to_numpy(zero_copy_only=True) for column in answers[0].columns)
        return Structure(layout_from_json(json.loads(layout.tobytes())), block)
    except (pa.ArrowException, KeyError, TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"the answer cannot be read: {error}") from error


def _as_list(block: Any, size: int) -> pa.LargeListArray:
    values = pa.Array.from_buffers(pa.uint8(), size, [None, pa.py_buffer(block)])
    return pa.LargeListArray.from_arrays(pa.array([0, size], pa.int64()), values)
