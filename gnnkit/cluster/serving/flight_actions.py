"""What a server answers over the network: who is there, the store's outline, calls, and, once its parts are open, everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
from numpy.typing import NDArray

from gnnkit.cluster.parts.protocol import pack
from gnnkit.cluster.parts.service import Action, Answers, Get
from gnnkit.cluster.parts.visits import visit_actions
from gnnkit.cluster.serving.codec import from_bytes, to_bytes
from gnnkit.cluster.serving.membership import Member, Membership, check_version
from gnnkit.cluster.serving.remote_actions import RemoteSessionActions
from gnnkit.errors import BatchTimeout, PlanError
from gnnkit.sampling.owners import BadRequest
from gnnkit.storage.layout import MANIFEST_NAME
from gnnkit.storage.manifest import Manifest
from gnnkit.storage.outline import outline_files

# What somebody asks for may take no longer, whatever he says.
_MOST_CALL_S = 3600.0


class FlightActions:
    """The tables of a server's ``PartServer``; they grow when it learns more.

    Args:
        path: The store's folder.
        manifest: Its manifest.
        on_main: Runs something in the server's main thread, and waits.
        loop: The server: ``call``, ``details`` and ``desk`` of ``gnnkit.cluster.serving.loop.ServerLoop``.

    Attributes:
        actions: What answers actions.
        gets: What answers requests.
    """

    def __init__(self, path: Path, manifest: Manifest, on_main: Callable[[Callable[[], Any]], Any], loop: Any) -> None:
        self._path, self._on_main, self._loop = path, on_main, loop
        self._files = {MANIFEST_NAME, *outline_files(manifest)}
        self.actions: dict[str, Action] = {name: _not_yet for name in ("announce", "roster", "here", "bye", "register", "release")}
        self.actions["status"] = self._status
        self.gets: dict[str, Get] = {name: _not_yet for name in ("expand", "rows", "walk", "call")}
        self.gets["file"] = self._file

    def meet(self, roster: Membership) -> None:
        """Lets others announce themselves, and tells who is there."""
        self._roster = roster
        self.actions |= {"announce": self._announce, "roster": self._members}

    def open(self, answers: Answers, wire: RemoteSessionActions, heard: Callable[[str, str, int], None]) -> None:
        """Answers about parts, and samples, from now on.

        Args:
            answers: Who knows the parts.
            wire: Who samples.
            heard: See ``visit_actions``.
        """
        self.gets |= {**answers.gets, **wire.gets, "call": self._call}
        self.actions |= {**visit_actions(answers.check, heard), **wire.actions}

    def _announce(self, body: dict[str, Any]) -> dict[str, Any]:
        check_version(body)
        self._roster.announce(Member.of_json(body.get("server")))
        return self._roster.to_json()

    def _members(self, body: dict[str, Any]) -> dict[str, Any]:
        check_version(body)
        return self._roster.to_json()

    def _status(self, body: dict[str, Any]) -> dict[str, Any]:
        check_version(body)
        return dict(self._on_main(self._loop.details))

    def _file(self, head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> pa.RecordBatch:
        check_version(head)
        name = head.get("name")
        if name not in self._files:
            raise BadRequest(f"there is no file {name!r} for everybody")
        return pack({"name": name}, {"bytes": np.fromfile(self._path / name, np.uint8)})

    def _call(self, head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> pa.RecordBatch:
        """Has the desk answer; see ``gnnkit.cluster.serving.server_api``."""
        check_version(head)
        try:
            client, name, timeout_s = str(head["client"]), str(head["name"]), min(_MOST_CALL_S, float(head["timeout_s"]))
            args = from_bytes(arrays["args"].tobytes())
        except (KeyError, TypeError, ValueError) as error:
            raise BadRequest("the call cannot be read") from error
        done: Future[Any] = Future()

        def reply(value: Any) -> None:
            if isinstance(value, Exception):
                done.set_exception(value)
            else:
                done.set_result(value)

        def ask() -> None:
            try:
                desk = self._loop.desk
                if desk is None:
                    raise PlanError("the server is not ready to be asked", "wait until every server is there")
                desk.call(client, name, args, reply)
            except Exception as error:
                reply(error)

        self._loop.call(ask)
        try:
            value = done.result(timeout_s)
        except FutureTimeout as error:
            raise BatchTimeout(f"{name!r} was not answered within {timeout_s:g} s", "look at the server's log") from error
        return pack({}, {"value": np.frombuffer(to_bytes(value), np.uint8)})


def _not_yet(*_: Any) -> Any:
    """Whoever asks tries again."""
    raise flight.FlightUnavailableError("the server is not there yet")
