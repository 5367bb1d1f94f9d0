"""The entry point of Ray's driver: ``python -m gnnkit.ray``; started by ``gnnkit.runtime.supervisor`` only."""

import sys

from gnnkit.runtime.entry import run

WORK = "gnnkit.ray.driver:RayDriver"

if __name__ == "__main__":
    # Ray imports jsonschema, which builds a parser of internationalised addresses, for a second, where Jupyter has brought one along.
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    run(WORK)
