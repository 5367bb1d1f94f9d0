"""Who is the bottleneck: named from made-up measurements, with what to change."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gnnkit import OnDevice
from gnnkit.loader.advice import LoopMeasurement, Work, advise, in_words
from tests.loader.advice.measurements import COLOCATED, GLT, IN_PROCESS, SERVERS, measured, shares

NO_ROOM: dict[str, Any] = {"idle_cpus": 0.1, "cpus": 2, "loop_cpus": 0.9}
# The ring takes one batch at a time, and two workers could sample four.
TINY_RING: dict[str, Any] = {"backend": {**COLOCATED, "channel_size": "100MB"}, "workers": 2, "threads": 2, "slots": 1, "busy": 0.5}
BURSTS: dict[str, Any] = {
    "threads": 2,
    "workers": 2,
    "slots": 2,
    "prefetch": 0,
    "work": tuple(Work(0.1 * (1 + 9 * (i % 8 == 0)), 0.1) for i in range(160)),
}
COLD: dict[str, Any] = {"blocked": 0.7, "read_bytes_per_s": 40e6, "faults_per_s": 900.0}
NAMED = {**COLD, "free_bytes": 2_000_000_000, "threads": 4, "disk": "vda", "disk_busy": 0.97}
JOINED = {**SERVERS, "address": "unix:/servers"}
ON_DEVICE = {"kind": "OnDevice", "device": "cuda"}
FAR = {**SERVERS, "address": "10.0.0.1:7000"}


@pytest.mark.parametrize(
    ("facts", "bottleneck", "change", "words"),
    [
        pytest.param({"starting": "compile"}, "start", {}, "'compile'", id="starting"),
        pytest.param({"batches": 0}, "none", {}, "no batch was taken", id="nothing-yet"),
        pytest.param({"shares": shares(wait=0.12, consumer=0.88), "starved": 0.5}, "consumer", {}, "88 %", id="a-little-waiting"),
        # The four that are made on purpose.
        pytest.param({"shares": shares(wait=0.02, consumer=0.98)}, "consumer", {}, "takes 98 % of the time", id="slow-loop-body"),
        pytest.param({}, "workers", {"num_threads": 4}, "use backend=InProcess(num_threads=4)", id="one-thread"),
        pytest.param(
            {"backend": {**COLOCATED, "num_workers": 1}, "slots": 4},
            "workers",
            {"num_workers": 4},
            "while 1 worker cannot sample faster; use backend=Colocated(num_workers=4)",
            id="one-worker",
        ),
        pytest.param(TINY_RING, "slots", {"channel_size": None, "prefetch": 2}, "room for 1 batch is too little", id="tiny-ring"),
        pytest.param(COLD, "disk", {"memory_budget": 1_500_000_000}, "memory_budget=1_500_000_000", id="dropped-cache"),
        # Other parts of the loop.
        pytest.param({"shares": shares(wait=0.05, collate=0.7, consumer=0.25)}, "collate", {}, "larger batch_size", id="collate"),
        pytest.param({"shares": shares(transform=0.6, consumer=0.4)}, "transform", {}, "do its work once", id="transform"),
        pytest.param({"shares": shares(transfer=0.6, consumer=0.4)}, "transfer", {}, "float16", id="transfer"),
        # Workers where there is no room, or somebody else's.
        pytest.param(NO_ROOM, "processors", {}, "no processor is left", id="no-processor"),
        pytest.param({"idle_cpus": math.nan, "cpus": 1}, "processors", {}, "no processor is left", id="no-processor-unknown"),
        pytest.param({**NO_ROOM, "loop_cpus": 0.1}, "workers", {"num_threads": 2}, "num_threads=2", id="others-have-what-is-ours"),
        pytest.param({**NO_ROOM, "cpus": 1, "idle_cpus": 2.0}, "workers", {"num_threads": 3}, "num_threads=3", id="others-leave-theirs"),
        pytest.param({**NO_ROOM, "blocked": 0.8}, "workers", {"num_threads": 2}, "num_threads=2", id="waiting-threads-need-none"),
        pytest.param({"backend": SERVERS}, "workers", {"workers_per_server": 2}, "workers_per_server=2", id="own-servers"),
        pytest.param({"backend": JOINED}, "workers", {}, "gnnkit serve --workers-per-server", id="joined-servers"),
        # A device that batches are copied to, and that has room for the graph.
        pytest.param({"device": "cuda:1"}, "workers", {"backend": OnDevice("cuda:1")}, "backend=OnDevice(device='cuda:1')", id="device"),
        pytest.param(
            {"device": "cuda:1", "shares": shares(transfer=0.6, consumer=0.4)},
            "transfer",
            {"backend": OnDevice("cuda:1")},
            "takes 60 % of the time; the graph fits cuda:1: use backend=OnDevice(",
            id="device-copies",
        ),
        pytest.param({"backend": ON_DEVICE}, "workers", {}, "the device cannot sample faster: a larger batch_size", id="on-device"),
        # Slots of threads: what samples in bursts needs more batches ahead.
        pytest.param(BURSTS, "slots", {"prefetch": 14}, "prefetch=14", id="bursts"),
        pytest.param({**BURSTS, "backend": GLT}, "slots", {"prefetch": 14}, "prefetch=14", id="bursts-glt"),
        # The disk, where a copy cannot be had, is there, or comes by itself.
        pytest.param(
            {**COLD, "blocked": 0.1, "read_bytes_per_s": 600e6}, "disk", {"memory_budget": 1_500_000_000}, "600 MB/s", id="fast-disk"
        ),
        pytest.param({**COLD, "free_bytes": 2_000_000_000}, "disk", {"num_threads": 4}, "InProcess(num_threads=4)", id="few-threads-wait"),
        pytest.param({**COLD, "free_bytes": 2_000_000_000, "threads": 4}, "disk", {}, "a faster disk, more memory", id="no-memory"),
        pytest.param({**NAMED, "copied_bytes": 400_000_000}, "disk", {}, "vda, which is busy 97 % of the time: the graph is", id="named"),
        pytest.param({**NAMED, "copied_bytes": 400_000_000}, "disk", {}, "a store with order='hotness'", id="part-copied"),
        pytest.param({**COLD, "backend": JOINED}, "disk", {}, "servers copy the graph (1.50 GB)", id="servers-disk"),
        pytest.param({**COLD, "copied_bytes": 1_500_000_000}, "disk", {}, "this is over", id="just-copied"),
        pytest.param({**COLD, "will_copy": True}, "disk", {}, "is being copied into memory", id="being-copied"),
        # Other hosts.
        pytest.param(
            {"backend": FAR, "blocked": 0.7, "is_remote": True}, "network", {"worker_concurrency": 4}, "other hosts", id="network"
        ),
        pytest.param(
            {"backend": {**FAR, "worker_concurrency": 32}, "blocked": 0.7, "is_remote": True}, "network", {}, "replicate", id="network-full"
        ),
        # What no option of the loader helps against.
        pytest.param({"start_share": 0.6}, "start", {}, "epochs are short", id="short-epochs"),
        pytest.param({"busy": 0.2, "work": (Work(0.002, 0.01),) * 100}, "handover", {}, "raise batch_size", id="small-batches"),
        # More threads would sample these in half the time, of which most is not spent sampling.
        pytest.param({"busy": 0.1, "work": (Work(0.01, 0.001),) * 100}, "handover", {}, "1 thread samples only 10 %", id="idle-threads"),
        pytest.param(
            {"busy": 0.1, "work": (Work(0.01, 0.001),) * 100, "starved": 0.8, **NO_ROOM},
            "processors",
            {},
            "1 thread waits for a processor",
            id="starved",
        ),
        pytest.param(
            {"shares": shares(wait=0.2, consumer=0.8), "work": (Work(0.085, 0.08),) * 100, "slots": 16, **NO_ROOM},
            "none",
            {},
            "about as long as each other",
            id="balanced",
        ),
    ],
)
def test_who_is_the_bottleneck(facts: dict[str, Any], bottleneck: str, change: dict[str, Any], words: str) -> None:
    advice = advise(measured(**facts))
    assert (advice.bottleneck, dict(advice.change)) == (bottleneck, change), advice.sentence
    assert words in advice.sentence
    assert advice.sentence.endswith(".") and "nan" not in advice.sentence and "  " not in advice.sentence


def test_advice_without_figures_of_the_system_does_without() -> None:
    """Where nobody counts for a process: macOS, or workers on another host."""
    unknown = {"blocked": math.nan, "starved": math.nan, "read_bytes_per_s": math.nan, "faults_per_s": math.nan, "idle_cpus": math.nan}
    assert advise(measured(**unknown)).change == {"num_threads": 4}
    assert advise(measured(busy=math.nan, work=(), **unknown)).change == {"num_threads": 2}
    assert advise(measured(batch_bytes=math.nan, **unknown)).bottleneck == "workers"
    assert advise(LoopMeasurement()).bottleneck == "none"


def test_workers_are_advised_as_far_as_they_help() -> None:
    # A loop body of a tenth of the sampling time keeps ten threads busy, a longer one fewer.
    many = {"cpus": 64, "idle_cpus": 63.0, "slots": 3}
    assert 10 <= advise(measured(**many)).change["num_threads"] <= 12
    assert advise(measured(**many, work=(Work(0.1, 0.05),) * 100, shares=shares(wait=0.5, consumer=0.5))).change == {"num_threads": 2}
    assert advise(measured(**many, work=(Work(0.1, 0.0),) * 160)).change == {"num_threads": 16}, "more than 16 are never advised"
    servers = {"backend": SERVERS, "workers": 2, "threads": 2, "slots": 6}
    assert advise(measured(**{**many, **servers})).change == {"workers_per_server": 5}, "ten workers of two servers"


def test_options_are_written_as_arguments() -> None:
    assert in_words(IN_PROCESS, {"num_threads": 2, "prefetch": 4}) == "backend=InProcess(num_threads=2), prefetch=4"
    assert in_words(COLOCATED, {"channel_size": None}) == "backend=Colocated(channel_size=None)"
    assert in_words(IN_PROCESS, {"memory_budget": 1500000}) == "memory_budget=1_500_000"
    assert in_words(IN_PROCESS, {}) == ""
