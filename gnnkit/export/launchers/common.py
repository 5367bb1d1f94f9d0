"""The common parts of launchers: resources of a node, templates of their files, and of what the README says of them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from gnnkit.errors import PlanError
from gnnkit.export.job import ExportJob, Instructions, InstructionStep, Port
from gnnkit.runtime.ring import HEADROOM, LEASED

if TYPE_CHECKING:
    import jinja2

# What may stand in a line of a script, or in YAML, as it is.
OPTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:@&|*,()=\[\]+-]*")
_SPAN = re.compile("(?=[0-9])(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m(?:in)?)?")
# The most cores of a rank that samples with as many threads as there are cores for.
_AUTO_THREADS = 4
_GIB = 2**30
# Of a rank: Python, torch and PyG, a model of some million parameters with its optimizer; and what CUDA takes of the host's memory.
_RANK_BYTES, _CUDA_BYTES = _GIB, 3 * _GIB
# Of a storage server, and of each process that samples: the interpreter, NumPy, Arrow and the compiled kernels.
_SERVER_BYTES, _SAMPLER_BYTES = _GIB // 2, 200 << 20
# Scratch of a sampling thread for each node of the graph: an int32 and an int64.
_THREAD_BYTES = 12
# Batches of a rank beside one for each sampling thread: those ahead and held, with room for larger ones; and what a step makes of one.
_AHEAD_AND_HELD, _OF_A_STEP = 2 + LEASED, 4


def time_limit(name: str, value: str, taken: re.Pattern[str], by: str) -> str:
    """Returns a time limit as a scheduler reads it, from one or from what people write: 4h, 90min, 1d12h.

    Args:
        name: The option.
        value: What the user says.
        taken: How the scheduler writes times.
        by: The command that reads them.

    Raises:
        PlanError: It is neither.
    """
    if taken.fullmatch(value):
        return value
    if not (span := _SPAN.fullmatch(value)):
        raise PlanError(f"{name}={value!r} is no time limit that {by} takes", f"{name}='4h', '1d12h' or '90m'; or '4:00:00', hours first")
    days, hours, minutes = (int(part or 0) for part in span.groups())
    hours, minutes = 24 * days + hours + minutes // 60, minutes % 60
    return f"{hours}:{minutes:02}:00"


def checked(option: str, given: Mapping[str, Any], names: re.Pattern[str], values: re.Pattern[str], what: str) -> dict[str, str | int]:
    """Returns what a mapping among a launcher's options says, whose names and values stand in a line of a script.

    Args:
        option: The mapping's name.
        given: The mapping.
        names: What a name of it looks like.
        values: What a value looks like that is not empty.
        what: What one of them is: "option of sbatch".

    Raises:
        PlanError: A name or a value is none.
    """
    for name, value in given.items():
        if not (names.fullmatch(name) and isinstance(value, (str, int)) and (value == "" or values.fullmatch(str(value)))):
            raise PlanError(f"{option}={{{name!r}: {value!r}}} is no {what}", "its name without dashes, and a text without blanks")
    return dict(given)


def in_gib(nbytes: int) -> int:
    """Whole GiB that hold so many bytes, at least 1."""
    return max(1, -(-nbytes // _GIB))


def rank_cores(job: ExportJob) -> int:
    """Cores of a rank: its own, and those of its sampling threads."""
    return 1 + _rank_threads(job)


def _rank_threads(job: ExportJob) -> int:
    """Sampling threads of a rank; where there are as many as there are cores for, no more than it has batches."""
    return min(_AUTO_THREADS, job.num_steps) if job.sampling_threads is None else job.sampling_threads


def _under_way(job: ExportJob, threads: int) -> int:
    """Bytes of batches that are sampled, ahead and held."""
    return int((threads + min(_AHEAD_AND_HELD, job.num_steps)) * job.batch_bytes * (1 + HEADROOM))


def _samplers(job: ExportJob, threads: int) -> int:
    """Bytes of sampling processes themselves."""
    return threads * (_SAMPLER_BYTES + job.num_nodes * _THREAD_BYTES)


def _shared(job: ExportJob) -> int:
    """Bytes of the batches of all ranks of a node, which may lie in shared memory."""
    return job.procs_per_node * _under_way(job, _rank_threads(job))


def trainer_shm_gib(job: ExportJob) -> int:
    """GiB of shared memory of a node with trainers."""
    return in_gib(_shared(job))


def storage_shm_gib(job: ExportJob) -> int:
    """GiB of shared memory of a storage node."""
    return in_gib(job.servers_per_node * _under_way(job, job.workers_per_server * job.threads_per_worker))


def storage_cores(job: ExportJob) -> int:
    """Cores of a storage node: one for each sampling thread, and one for what serves rows."""
    return job.servers_per_node * (job.workers_per_server * job.threads_per_worker + 1)


def trainer_gib(job: ExportJob) -> int:
    """GiB of memory of a node with trainers: its part of the graph, unless servers hold that, and its ranks."""
    graph = 0 if job.num_servers else job.store_bytes_per_node
    rank = _RANK_BYTES + (_CUDA_BYTES if job.gpus_per_node else _OF_A_STEP * job.batch_bytes) + _samplers(job, _rank_threads(job))
    return in_gib(graph + job.procs_per_node * rank + _shared(job))


def storage_gib(job: ExportJob) -> int:
    """GiB of memory of a storage node: its part of the graph, and its servers."""
    threads = job.workers_per_server * job.threads_per_worker
    server = _SERVER_BYTES + _samplers(job, threads) + _under_way(job, threads)
    return in_gib(job.store_bytes_per_node + job.servers_per_node * server)


LAUNCH, SERVE = "launch.sh", "serve.sh"
ABOUT = {LAUNCH: "starts the ranks of one node", SERVE: "starts the storage servers of one node"}


def render(template: str, job: ExportJob, **values: Any) -> str:
    """Renders a template of ``gnnkit/export/templates``.

    Args:
        template: File name, without ``.j2``.
        job: The job.
        **values: What else the template asks for; a missing one is an error.
    """
    storage_addrs = ",".join(f"10.0.0.{100 + node}" for node in range(job.storage_nodes))
    storage_example = f" STORAGE_ADDRS={storage_addrs}" if job.num_servers else ""
    return filled(template, job=job, storage_addrs=storage_addrs, storage_example=storage_example, **values)


def scripts(job: ExportJob, where: str) -> dict[str, str]:
    """``launch.sh``, and ``serve.sh`` where there are storage nodes.

    Args:
        job: The job.
        where: "machines" that a person logs in to, or "pods".
    """
    return {name: render(name, job, where=where) for name in (LAUNCH, *([SERVE] if job.num_servers else []))}


def filled(template: str, **values: Any) -> str:
    """Fills a template in which no job is spoken of; see ``render``."""
    return _environment().get_template(f"{template}.j2").render(**values)


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gnnkit.export", "templates"),
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        # Bash writes the length of an array as jinja2 would begin a comment.
        comment_start_string="<#",
        comment_end_string="#>",
    )
    environment.filters |= {"quoted": _quoted, "unwrapped": unwrapped, "literal": _literal}
    sizes = (in_gib, rank_cores, trainer_gib, trainer_shm_gib, storage_cores, storage_gib, storage_shm_gib)
    environment.globals |= {size.__name__: size for size in sizes} | {
        # torchrun's own, and where the documentation of servers puts them.
        "master_port": 29500,
        "storage_port": 7000,
        "max_restarts": 3,
        # That nodes wait for each other, and that kernels and checks of the store may take.
        "join_timeout_s": 600,
        "prepare_timeout_s": 1800,
    }
    return environment


def _quoted(word: str) -> str:
    """A word of a command; in double quotes where it needs some, which read better and please shellcheck."""
    if shlex.quote(word) == word:
        return word
    return '"' + re.sub(r'([$`"\\])', r"\\\1", word) + '"'


def _literal(value: object) -> str:
    """A text, a number or None as Python writes it, texts in double quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def unwrapped(text: str) -> str:
    """Markdown whose paragraphs and items have a line each."""
    return re.sub(r"(?<=\S)\n(?!\n|\* ) *", " ", text.strip())


def instructions_of(template: str, job: ExportJob, **values: Any) -> Instructions:
    """Reads the text for the README from a template, which has a chapter for each field of ``Instructions``.

    Args:
        template: See ``render``.
        job: The job.
        **values: See ``render``.
    """
    said = chapters_of(render(template, job, **values))
    ports, settings = (
        [[cell.strip() for cell in row.strip("|").split("|")] for row in said[name].splitlines()] for name in ("ports", "settings")
    )
    return Instructions(
        start=steps_of(said["start"]),
        restart=steps_of(said["restart"])[0],
        watch=steps_of(said["watch"])[0],
        ports=tuple(Port(who, where, number, kind == "ephemeral", change) for who, where, number, kind, change in ports),
        settings={name: meaning for name, meaning in settings},
        before_copies=steps_of(said.get("before_copies", "")),
        checkpoints=said.get("checkpoints", "`run/`"),
    )


def chapters_of(text: str) -> dict[str, str]:
    """The chapters of a text by their names, which are headings of the first level and a word."""
    _, *parts = re.split(r"^# (\w+)$", text, flags=re.MULTILINE)
    return {name: chapter.strip() for name, chapter in zip(parts[::2], parts[1::2], strict=True)}


def steps_of(chapter: str) -> tuple[InstructionStep, ...]:
    """The steps of a chapter, each a heading of the second level, a text, and commands in a block."""
    steps = []
    for step in re.split(r"^## ", chapter, flags=re.MULTILINE)[1:]:
        said, _, commands = step.partition("```bash\n")
        title, _, text = said.partition("\n")
        steps.append(InstructionStep(title, unwrapped(text), tuple(commands.partition("\n```")[0].splitlines())))
    return tuple(steps)
