"""One row of ``gnnkit doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["ok", "no", "warning", "error"]


@dataclass(frozen=True)
class Check:
    """A row of the doctor's report: what was checked, what was found and the verdict.

    Attributes:
        name: The subject ("memory").
        value: The finding ("21.3 GB free of 24.0 GB").
        verdict: "ok"; "no" (not here, and nothing is wrong with that); "warning" (it works, with the drawback that ``fix`` is for);
            "error" (gnnkit does not work).
        fix: What to do about it; empty where there is nothing to do.
    """

    name: str
    value: str
    verdict: Verdict = "ok"
    fix: str = ""

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        return {"name": self.name, "value": self.value, "verdict": self.verdict, "fix": self.fix}
