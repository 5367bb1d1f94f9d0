"""The entry point of Ray's driver: ``python -m gnnkit.ray``; started by ``gnnkit.runtime.supervisor`` only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnnkit.runtime.entry import run

if TYPE_CHECKING:
    from gnnkit.ray.driver import RayDriver


def _load() -> type[RayDriver]:
    from gnnkit.ray.driver import RayDriver  # what it imports may fail, which is reported

    return RayDriver


if __name__ == "__main__":
    run(_load)
