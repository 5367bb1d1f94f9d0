"""``python -m tests.fuzz``: many cases of every target, each target in a process of its own, in a memory group where there may be one."""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

from tests.fuzz.running import Target, run
from tests.helpers.machine import ROOT
from tools.bench.memory_groups import memory_group, missing_memory_group

# A process with torch and compiled kernels, samples, and what one case may take.
MOST_BYTES = 2 << 30
# Where there are no memory groups: what a process may map beyond what it maps once everything is imported.
MOST_MAPPED_BYTES = 3 << 30
# Beyond what hundreds of failures of one kind would say.
_SHOWN = 12


def main() -> int:
    """Runs what the command line says; 1 if anything came out that may not."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="of each target")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", help="one target; all of them if it is left out")
    parser.add_argument("--here", action="store_true", help="in this process, as it is")
    words = parser.parse_args()
    from tests.fuzz import answers, served, targets  # heavy: this process only starts others

    wanted = [target for target in (*targets.TARGETS, *answers.TARGETS, *served.TARGETS) if words.target in (None, target.name)]
    cases = {target.name: range(words.first, words.first + max(1, int(words.cases * target.share))) for target in wanted}
    if words.here:
        limit_mappings()
        return int(any([show(target, cases[target.name], words.seed) for target in wanted]))
    reason = missing_memory_group()
    say(f"in memory groups of {MOST_BYTES >> 20} MB" if reason is None else f"{reason}; with a limit of what is mapped")
    failed = []
    for target in wanted:
        arguments = ["-m", "tests.fuzz", "--here", "--target", target.name, "--seed", str(words.seed)]
        arguments += ["--first", str(words.first), "--cases", str(words.cases)]
        with nullcontext() if reason is not None else memory_group(MOST_BYTES) as group:
            enter = [] if group is None else group.enter
            env = {**os.environ, "PYTHONPATH": str(ROOT)}
            code = subprocess.run([*enter, sys.executable, *arguments], cwd=ROOT, env=env, check=False).returncode
            if code not in (0, 1):
                killed = group is not None and group.was_killed
                say(f"{target.name}: the process ended with {code}{': memory ran out' if killed else ''}")
        failed += [target.name] if code else []
    say(f"failed: {', '.join(failed)}" if failed else "nothing came out but errors of gnnkit")
    return int(bool(failed))


def limit_mappings() -> None:
    """Has what this process maps bounded."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MOST_MAPPED_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def show(target: Target, cases: range, seed: int) -> bool:
    """Runs cases and says what came of them; whether anything may not have come out."""
    began = time.monotonic()
    failures = run(target, cases, seed, watched=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    say(f"{target.name}: {len(cases)} cases in {time.monotonic() - began:.0f} s, {peak} MB at most, {len(failures)} failures")
    kinds = {re.sub(r"\d+", "0", "\n".join(failure.what.strip().splitlines()[-3:])): failure for failure in failures}
    for failure in list(kinds.values())[:_SHOWN]:
        say(f"--- {target.name}, case {failure.case} of seed {seed}:\n{failure.what[-3000:]}")
    return bool(failures)


def say(text: str) -> None:
    """Writes a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
