"""Runs an example as it is and writes down which seeds each batch had: ``recorded.py FOLDER EXAMPLE ARGUMENTS...``."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

from gnnkit import GraphLoader


def main() -> None:
    folder, example = Path(sys.argv[1]), sys.argv[2]
    loaders: list[GraphLoader] = []
    seen: dict[int, list[list[int]]] = {}

    def note(batch: Any) -> Any:
        seen.setdefault(loaders[0].epoch, []).append(batch.n_id[: batch.batch_size].tolist())
        return batch

    def noting(make: Any) -> Any:
        def noted(*args: Any, **options: Any) -> GraphLoader:
            loaders.append(make(*args, transform=note, **options))
            return loaders[0]

        return noted

    # The example runs as it is, and prints no seeds.
    for name in ("from_ogb", "from_store"):
        setattr(GraphLoader, name, noting(getattr(GraphLoader, name)))
    sys.argv = sys.argv[2:]
    runpy.run_path(example, run_name="__main__")
    facts = {"plan": loaders[0].plan.to_json(), "seeds": [seen[epoch] for epoch in sorted(seen)]}
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
