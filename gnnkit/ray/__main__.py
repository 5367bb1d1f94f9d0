"""The entry point of Ray's driver: ``python -m gnnkit.ray``; started by ``gnnkit.runtime.supervisor`` only."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gnnkit.runtime.entry import run

if TYPE_CHECKING:
    from gnnkit.ray.driver import RayDriver


def load() -> type[RayDriver]:
    """Imports the work; see ``gnnkit.runtime.entry``."""
    # Ray imports jsonschema, which builds a parser of internationalised addresses, for a second, where Jupyter has brought one along.
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    from gnnkit.ray.driver import RayDriver  # what it imports may fail, which is reported

    return RayDriver


if __name__ == "__main__":
    run(load)
