"""What ``sbatch`` takes in ``#SBATCH`` lines: the long options of its manual, and the form of the values of those that we write."""

from __future__ import annotations

import re

# Options of the manual of Slurm 22.05; newer ones have all of these.
_MANUAL = """
account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint container contiguous core-spec
cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error exclude exclusive export
export-file extra-node-info get-user-env gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint hold
ignore-pbs input job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network
nice no-kill no-requeue nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode output
overcommit oversubscribe parsable partition power prefer priority profile propagate qos quiet reboot requeue reservation signal
sockets-per-node spread-job switches test-only thread-spec threads-per-core time time-min tmp uid use-min-nodes verbose wait
wait-all-nodes wckey wrap
"""
OPTIONS = frozenset(_MANUAL.split())
_COUNT = r"[1-9][0-9]*"
VALUES = {
    "job-name": r"[^\s]+",
    "output": r"[^\s]+",
    "open-mode": r"append|truncate",
    "time": r"([0-9]+-)?[0-9]{1,2}:[0-9]{2}:[0-9]{2}",
    "signal": r"([RB]:)?[A-Z0-9]+(@[0-9]{1,5})?",
    "requeue": "",
    "nodes": rf"{_COUNT}(-{_COUNT})?",
    "ntasks-per-node": _COUNT,
    "cpus-per-task": _COUNT,
    "mem": rf"{_COUNT}[KMGT]?",
    "gpus-per-node": rf"([a-z0-9]+:)?{_COUNT}",
}
# What a later component of a heterogeneous job takes over from the one before (heterogeneous_jobs.html), of what we write.
PROPAGATED = ("job-name", "output", "open-mode", "time", "signal")


def components(script: str) -> list[dict[str, str]]:
    """The options of each component of a batch script.

    Raises:
        ValueError: A line is none that sbatch would read, or would be read otherwise than it looks.
    """
    found: list[dict[str, str]] = [{}]
    lines = script.splitlines()
    if not lines[0].startswith("#!"):
        raise ValueError("a batch script starts with #!")
    over = False
    for line in lines[1:]:
        if not line.startswith("#SBATCH"):
            # sbatch stops reading at the first line that is neither empty nor a comment.
            over = over or bool(line.strip() and not line.startswith("#"))
            continue
        if over:
            raise ValueError(f"sbatch does not read this line any more: {line}")
        word = line.removeprefix("#SBATCH ")
        if word == "hetjob":
            found.append({name: value for name, value in found[-1].items() if name in PROPAGATED})
            continue
        match = re.fullmatch(r"--([a-z-]+)(?:=(\S+))?", word)
        if match is None or match[1] not in OPTIONS:
            raise ValueError(f"sbatch has no such option: {line}")
        name, value = match[1], match[2] or ""
        if name not in VALUES or not re.fullmatch(VALUES[name], value):
            raise ValueError(f"the value is none that sbatch takes, or is of an option that this list does not know: {line}")
        found[-1][name] = value
    return found
