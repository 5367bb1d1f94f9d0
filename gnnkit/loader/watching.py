"""Watching a loader and holding it: its state, its records, its pictures, pause and restart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gnnkit.backends.base import BatchStream, StreamStatus
from gnnkit.loader.control import Control
from gnnkit.loader.history import History
from gnnkit.loader.records import Records
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.ui.shown import Shown

if TYPE_CHECKING:
    from gnnkit.loader.advice.autotune import AutotuneResult
    from gnnkit.loader.advice.profile import Profile
    from gnnkit.loader.facade import GraphLoader
    from gnnkit.loader.stats import EpochStats
    from gnnkit.ui.cards import Card
    from gnnkit.ui.dashboard import Dashboard
    from gnnkit.ui.plots.picture import Picture


class LoaderWatching(Shown):
    """The methods of ``GraphLoader`` that show what it does, and those that hold it back. All may be called from any thread.

    Attributes:
        plan: The loader's plan.
    """

    plan: LoaderPlan
    stats: Callable[[], EpochStats]
    _graph: GraphHandle
    _stream: BatchStream
    _control: Control
    _check_open: Callable[[], None]

    # Its state -------------------------------------------------------------------------------------------------------

    def status(self) -> StreamStatus:
        """What the loader is doing: "ready", "sampling", "paused", "idle" or "closed", with its processes and its memory."""
        status = self._stream.status()
        return replace(status, state="paused") if self.is_paused and status.state != "closed" else status

    @property
    def records(self) -> Records:
        """What became of each of the last batches."""
        return self._control.records

    @property
    def history(self) -> History:
        """Stages, messages and the last error since the loader was made."""
        return self._control.history

    # Holding it ------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Holds the next batch back until ``unpause``; workers fill their slots meanwhile, and then idle.

        ``batch_timeout_s`` does not run; ``close()``, a newer iteration and an interrupt end the wait. With several ranks, all wait for
        the one that is paused as soon as they meet it, for as long as their process group allows.

        Raises:
            LoaderClosed: The loader is closed.
        """
        self._check_open()
        self._control.gate.shut()

    def unpause(self) -> None:
        """Lets a paused loader go on."""
        self._control.gate.open()

    @property
    def is_paused(self) -> bool:
        """Whether ``pause`` holds the next batch back."""
        return self._control.gate.is_shut

    def restart_workers(self) -> None:
        """Ends the threads or processes that sample and starts others; returns once they are there. Loaders that share them get them too.

        The running epoch goes on with the same batches.

        Raises:
            LoaderClosed: The loader is closed.
            PlanError: They are somebody else's: servers that were joined, or graphlearn-torch's.
            StartTimeout: The new ones are not there in time.
        """
        self._check_open()
        with self.history.noting():
            self._stream.restart(self.plan.runtime.start_timeout_s)

    # How it shows itself ---------------------------------------------------------------------------------------------

    def dashboard(self, interval_s: float = 0.5) -> Dashboard:
        """A view of the loader that goes on while it runs; see ``gnnkit.ui.dashboard``.

        Args:
            interval_s: Seconds between two looks, 0.1 to 60.

        Raises:
            PlanError: ``interval_s`` is something else.
        """
        from gnnkit.ui.dashboard import Dashboard

        return Dashboard(self._whole, interval_s)

    def profile(self, seconds: float = 10.0) -> Profile:
        """Where the time goes, and what limits the loader; see ``gnnkit.loader.advice``.

        Args:
            seconds: How long it is looked at.
        """
        from gnnkit.loader.advice.profile import profile

        return profile(self._whole, seconds)

    def autotune(self, seconds: float = 60.0, train_step: Callable[[Any], Any] | None = None) -> AutotuneResult:
        """Tries numbers of workers, threads, slots and batches ahead, and says which are best; see ``gnnkit.loader.advice``.

        Args:
            seconds: How long it may take, about.
            train_step: What the loop does with a batch; None: nothing.
        """
        from gnnkit.loader.advice.autotune import autotune

        return autotune(self._whole, seconds, train_step)

    def plot_batch(self, seed: Any = None, batch: Any = None) -> Picture:
        """One seed's sampled neighbourhood, hop by hop; see ``gnnkit.ui.plots.batch``.

        Args:
            seed: An id of the input type, for links the ids of both ends; None takes the first one of the batch.
            batch: A batch of this loader; None samples around ``seed``, or takes the next batch, without advancing the epoch.
        """
        from gnnkit.ui.plots.batch import plot_batch

        return plot_batch(self._whole, seed, batch)

    def plot_timeline(self, epoch: int | None = None) -> Picture:
        """What each worker did when, and what the consumer did; see ``gnnkit.ui.plots.timeline``.

        Args:
            epoch: Which epoch; None takes the last one.
        """
        from gnnkit.ui.plots.timeline import plot_timeline

        return plot_timeline(self._whole, epoch)

    def plot_footprint(self, num_batches: int | None = None) -> Picture:
        """How often nodes are touched, and what a cache of the features touched most would save; see ``gnnkit.ui.plots.footprint``.

        Args:
            num_batches: Batches to sample, of each of the next two epochs; None takes 32, or all where there are fewer.
        """
        from gnnkit.ui.plots.footprint import plot_footprint

        return plot_footprint(self._whole, num_batches)

    @property
    def _whole(self) -> GraphLoader:
        """This object as what it is part of."""
        return self  # type: ignore[return-value]

    def _card(self) -> Card:
        from gnnkit.loader.card import loader_card

        return loader_card(self.plan, self._graph, self.status(), self.stats(), len(self._whole), self.history.last_error)
