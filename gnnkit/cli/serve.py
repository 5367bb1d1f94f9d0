"""``gnnkit serve``: servers that sample a store for trainers elsewhere."""

from __future__ import annotations

from pathlib import Path

import typer

from gnnkit.cli.output import show_line
from gnnkit.cluster.serving.spec import read_token
from gnnkit.files import user_path
from gnnkit.serving import run_in_foreground
from gnnkit.serving import serve as start


def serve(
    ctx: typer.Context,
    store: str = typer.Option(..., help="The store's folder or URL."),
    num_servers: int = typer.Option(2, help="Servers of the run, those on other machines included."),
    workers_per_server: int = typer.Option(1, help="Sampling processes of each."),
    threads_per_worker: int = typer.Option(1, help="Sampling threads of each of those."),
    rank: int | None = typer.Option(None, help="The one server to start here; by default all of them."),
    address: str | None = typer.Option(None, help="Where server 0 listens, ip:port, or the addresses of all with commas; or unix:/folder."),
    interface: str | None = typer.Option(None, help="Interface to listen on; by default the one that leads to server 0."),
    placement: str = typer.Option("auto", help="auto, replicate, features or partition."),
    token_file: Path | None = typer.Option(None, help="File of mode 0600 that holds the token."),
    tls_cert: Path | None = typer.Option(None, help="File of a certificate, to encrypt connections."),
    tls_key: Path | None = typer.Option(None, help="File of its key."),
    max_restarts: int = typer.Option(0, help="How often, in all, a process that has died is started again."),
    stop_with_last_client: bool = typer.Option(False, "--stop-with-last-client", help="End once a client has come and none is left."),
    join_timeout_s: float = typer.Option(600.0, help="Seconds that servers wait for each other."),
    log_dir: Path | None = typer.Option(None, help="Folder for logs."),
) -> None:
    """Hold a store and sample it for trainers, until Ctrl-C.

    Without --token-file the token comes from $GNNKIT_TOKEN or $GNNKIT_TOKEN_FILE, or one is made and its file is named.
    """
    given = {name: value for name, value in ctx.params.items() if name != "token_file"}
    run_in_foreground(start(**given, token=None if token_file is None else read_token(user_path(token_file))), show_line)
