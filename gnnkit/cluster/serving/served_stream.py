"""A stream of whole batches that clients fetch one by one: its epochs, its order, and how far it is sampled ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from gnnkit.errors import GnnkitError, MemoryLimitError
from gnnkit.plan import InputLinks, LoaderPlan, num_batches
from gnnkit.runtime.remote import error_from_json, fresh
from gnnkit.runtime.shared_block import mapped
from gnnkit.runtime.wire import Message

# Called once with a value or an error.
Reply: TypeAlias = Callable[[Any], None]
# What a fetch is answered with once there is nothing more to come.
OVER = (None, True)


@dataclass(frozen=True)
class Waiting:
    """Somebody who waits for a batch.

    Attributes:
        client: Who.
        reply: Takes the answer.
    """

    client: str
    reply: Reply


@dataclass(frozen=True)
class Order:
    """A batch for a worker to sample.

    Attributes:
        rank: The worker.
        number: The request's number.
        epoch: The epoch.
        batch: Index in its list of batches.
    """

    rank: int
    number: int
    epoch: int
    batch: int


class ServedStream:
    """One registered input. Only the server's main thread uses it.

    Batches come in the order of the epoch's list; several clients that fetch from one channel divide them among themselves, each batch
    going to whoever asks next. Not more than ``capacity`` batches are sampled ahead, however long nobody fetches.

    Args:
        number: What workers know it by.
        digest: What was registered, to compare with.
        plan: Its plan, whose seeds are ids.
        capacity: Batches under way or waiting to be fetched, at most.
        frame: What goes with every batch.

    Attributes:
        number: See above.
        digest: See above.
        plan: See above.
        holders: Clients that have registered it and not destroyed it.
        epoch: The epoch that is under way or ran last; -1 before the first.
    """

    def __init__(self, number: int, digest: str, plan: LoaderPlan, capacity: int, frame: Mapping[str, Any]) -> None:
        self.number, self.digest, self.plan = number, digest, plan
        self.holders: set[str] = set()
        self.epoch = -1
        self._capacity, self._frame = capacity, frame
        self._total = self._next_out = 0
        self._undealt: deque[int] = deque()
        self._sampled: dict[int, Any] = {}
        self._orders: dict[int, Order] = {}
        self._waiting: deque[Waiting] = deque()
        self._requests = 0
        self._failure: GnnkitError | None = None

    def begin(self, epoch: int) -> None:
        """Starts an epoch, unless it or a newer one has been started. Whoever waits for the one before hears that it is over."""
        if epoch <= self.epoch:
            return
        self._drop()
        self._answer_all(OVER)
        self.epoch, self._failure = epoch, None
        inputs, batching = self.plan.inputs, self.plan.batching
        assert not isinstance(inputs, InputLinks) and inputs.ids is not None, "an input is registered with its ids"
        self._total, self._next_out = num_batches(len(inputs.ids), batching.batch_size, batching.drop_last), 0
        self._undealt = deque(range(self._total))

    def fetch(self, waiting: Waiting, epoch: int | None) -> None:
        """Answers with the next batch, now or later; with ``OVER`` where there is none, or the epoch that is meant has gone by."""
        if epoch is not None and epoch != self.epoch:
            waiting.reply(OVER)
            return
        self._waiting.append(waiting)
        self._serve()

    def deal(self, ready: Collection[int]) -> Iterator[Order]:
        """What is to be sampled now, dealt to the workers with least to do."""
        if ready:  # there is somebody again
            self._failure = None
        while ready and self._undealt and len(self._orders) + len(self._sampled) < self._capacity:
            rank = min(sorted(ready), key=lambda rank: sum(order.rank == rank for order in self._orders.values()))
            self._requests += 1
            order = Order(rank, self._requests, self.epoch, self._undealt.popleft())
            self._orders[order.number] = order
            yield order

    def take(self, message: Message) -> None:
        """Handles what a worker says to this channel."""
        order = self._orders.pop(message.body.get("number", 0), None)
        if order is None:  # of an epoch that has gone by
            message.close()
            return
        failed = "error" in message.body
        # It is mapped at once: what waits to be fetched takes no descriptor.
        found = error_from_json(message.body["error"], f"sampling batch {order.batch}") if failed else self._batch(message)
        self._sampled[order.batch] = found
        self._serve()

    def lost(self, rank: int) -> None:
        """A worker has gone; what it was sampling is dealt again."""
        gone = [order for order in self._orders.values() if order.rank == rank]
        for order in gone:
            del self._orders[order.number]
        self._undealt.extendleft(sorted((order.batch for order in gone), reverse=True))

    def fail(self, error: GnnkitError) -> None:
        """Nobody samples any more: the epoch cannot go on."""
        self._failure = error
        self._serve()

    def leave(self, client: str) -> None:
        """Forgets a client; if it waits, it hears that there is nothing more to come."""
        self.holders.discard(client)
        gone = [waiting for waiting in self._waiting if waiting.client == client]
        self._waiting = deque(waiting for waiting in self._waiting if waiting.client != client)
        for waiting in gone:
            waiting.reply(OVER)

    def close(self) -> None:
        """Gives everything up; whoever waits hears that there is nothing more to come."""
        self._drop()
        self._total = self._next_out = 0
        self._answer_all(OVER)

    def _serve(self) -> None:
        while self._waiting:
            if self._next_out >= self._total:
                self._answer_all(OVER)
            elif self._next_out in self._sampled:
                found = self._sampled.pop(self._next_out)
                self._next_out += 1
                self._waiting.popleft().reply(found)
            elif self._failure is not None:
                self._answer_all(self._failure)
            else:
                return

    def _batch(self, message: Message) -> Any:
        layout = message.body["layout"]
        try:
            block = mapped(message.fds.pop(0))[: layout["nbytes"]]
        except OSError as error:
            return MemoryLimitError(f"a batch of {layout['nbytes'] / 1e6:.0f} MB cannot be mapped: {error}", "lower batch_size")
        return {"frame": dict(self._frame), "epoch": self.epoch, "layout": layout, "block": block}, False

    def _answer_all(self, answer: Any) -> None:
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            one.reply(fresh(answer) if isinstance(answer, GnnkitError) else answer)

    def _drop(self) -> None:
        self._undealt.clear()
        self._orders.clear()
        self._sampled.clear()
