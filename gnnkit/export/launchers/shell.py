"""The shell scripts of a job: templates, and the numbers that are written into them."""

from __future__ import annotations

import re
import shlex
from functools import cache
from typing import TYPE_CHECKING, Any

from gnnkit.export.job import ExportJob

if TYPE_CHECKING:
    import jinja2

LAUNCH, SERVE = "launch.sh", "serve.sh"
# torchrun's own, and where the documentation of servers puts them.
MASTER_PORT, STORAGE_PORT = 29500, 7000
MAX_RESTARTS = 3
RANK_THREADS = "threads of torch in each rank; the processors divided by the ranks"
# Seconds that nodes wait for each other, and that kernels and checks of the store may take.
JOIN_TIMEOUT_S, PREPARE_TIMEOUT_S = 600, 1800


def render(template: str, job: ExportJob, **values: Any) -> str:
    """Renders a template of ``gnnkit/export/launchers/templates``.

    Args:
        template: File name, without ``.j2``.
        job: The job.
        **values: What else the template asks for; a missing one is an error.
    """
    numbers = {
        "master_port": MASTER_PORT,
        "storage_port": STORAGE_PORT,
        "max_restarts": MAX_RESTARTS,
        "join_timeout_s": JOIN_TIMEOUT_S,
        "prepare_timeout_s": PREPARE_TIMEOUT_S,
        "storage_addrs": ",".join(storage_examples(job)),
        "storage_example": f" STORAGE_ADDRS={','.join(storage_examples(job))}" if job.num_servers else "",
    }
    return _environment().get_template(f"{template}.j2").render(job=job, **numbers, **values)


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gnnkit.export.launchers", "templates"),
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        # Bash writes the length of an array as jinja2 would begin a comment.
        comment_start_string="<#",
        comment_end_string="#>",
    )
    environment.filters["quoted"] = _quoted
    return environment


def _quoted(word: str) -> str:
    """A word of a command; in double quotes where it needs some, which read better and please shellcheck."""
    if shlex.quote(word) == word:
        return word
    return '"' + re.sub(r'([$`"\\])', r"\\\1", word) + '"'


def storage_examples(job: ExportJob) -> list[str]:
    """Addresses of storage nodes for examples."""
    return [f"10.0.0.{100 + node}" for node in range(job.storage_nodes)]


def common_settings(job: ExportJob) -> dict[str, str]:
    """Variables of every launcher, with what they mean."""
    settings = {
        "MAX_RESTARTS": f"how often ranks that have failed are started again; {MAX_RESTARTS}",
        "GNNKIT_INTERFACE": f"interface that nodes talk to each other on, by name; {job.interface or 'the one that leads to node 0'}",
        "PREPARE_TIMEOUT_S": f"seconds that `gnnkit run --prepare` may take on each node; {PREPARE_TIMEOUT_S}",
    }
    if job.num_servers:
        settings["SERVERS_PER_NODE"] = f"storage servers of each storage node, the same everywhere; {job.servers_per_node}"
    return settings


TOKEN_TEXT = "Whoever knows the token may read the graph. It is in no file of this directory, and never an argument of a command."
# Makes a secret that only its owner can read.
MAKE_TOKEN = "(umask 077 && od -An -N24 -tx1 /dev/urandom | tr -d ' \\n' > token)"
