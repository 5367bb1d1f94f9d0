"""Tries the tests that the last run of pytest has failed once more, alone, and lists both outcomes of each.

    .venv/bin/python -m pytest -n 4 || .venv/bin/python tools/retry_failed.py

Ends with 0 where all of them pass. More than a few failures are no flakiness: nothing is tried then, and it ends with 1.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAILURES = ROOT / ".pytest_cache/v/gnnkit/failures"
MOST = 8


def main() -> int:
    """Tries the tests again; the exit code."""
    first: dict[str, str] = json.loads(FAILURES.read_text()) if FAILURES.exists() else {}
    if not 0 < len(first) <= MOST:
        print(f"{len(first)} tests have failed: at least 1 and at most {MOST} are tried again")
        return 1
    print(f"trying {len(first)} failed tests once more, alone", flush=True)
    code = subprocess.run([sys.executable, "-m", "pytest", "-q", *first], cwd=ROOT).returncode
    again: dict[str, str] = json.loads(FAILURES.read_text())
    for name, reason in first.items():
        passed = "passed: flaky" if code in (0, 1) else f"no outcome: pytest has ended with {code}"
        outcome = f"failed: {again[name]}" if name in again else passed
        print(f"{name}\n    first:  failed: {reason}\n    second: {outcome}")
    return code


if __name__ == "__main__":
    sys.exit(main())
