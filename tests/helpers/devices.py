"""A device that copies while the loop works, where there is none."""

from __future__ import annotations

import pytest

from gnnkit.loader.epoch import DeviceTransfer


def pretend_copies_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has copies to any device count as such that overlap with the loop's work, so that the next batch is taken ahead of its time.

    The device "meta" copies nothing, and is everywhere. What would be left to change on a machine without a GPU is torch: its streams, its
    events, page-locked memory and the copies themselves, of which much more would have to be pretended than one answer.
    """
    monkeypatch.setattr(DeviceTransfer, "looks_ahead", True)
