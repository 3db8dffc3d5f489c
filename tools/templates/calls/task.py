"""Function-calling tasks: orders of a shop, a customer with two requests, and a check of the final database."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from typing import Any

from agentrl import Environment, Message, Reply, Say, Task, ToolError, tool

STATES = ("packed", "sent")


def orders(n: int = 64, split: str = "train") -> Iterator[Task]:
    """Yields tasks; the orders of `test` differ from those of `train`."""
    for k in range(n):
        rng = random.Random(f"{split} {k}")
        number, other = rng.sample(range(1000, 10_000), 2)
        state = rng.choice(STATES)
        yield Task.of(
            f"{split}{k}",
            f"Where is my order {number}? If it is not sent yet, cancel it.",
            state={str(number): state, str(other): "packed"},
            goal={str(number): "cancelled" if state == "packed" else state, str(other): "packed"},
            wish=f"Then note this about order {number}: ring twice.",
            number=str(number),
        )


class Shop(Environment):
    """Database of the shop, and a customer with a second request."""

    def open(self, task: Task, sandbox: object) -> None:
        self.state: dict[str, str] = dict(task.data["state"])
        self.notes: dict[str, str] = {}
        self.wishes: list[str] = [task.data["wish"]]

    def respond(self, reply: Reply) -> str | None:
        """Returns the customer's next message; None ends the episode."""
        return self.wishes.pop(0) if self.wishes else None

    def state_key(self) -> dict[str, Any]:
        return {"state": self.state, "notes": self.notes, "wishes": len(self.wishes)}

    @tool
    def find_order(self, order: str) -> str:
        """The state of an order: packed, sent or cancelled.

        Args:
            order: its number.
        """
        if order not in self.state:
            raise ToolError(f"there is no order {order}")
        return self.state[order]

    @tool
    def cancel(self, order: str) -> str:
        """Cancel an order that is packed.

        Args:
            order: its number.
        """
        if self.find_order(order) != "packed":
            raise ToolError("only packed orders can be cancelled")
        self.state[order] = "cancelled"
        return "cancelled"

    @tool
    def note(self, order: str, text: str) -> str:
        """Write a note on an order.

        Args:
            order: its number.
            text: the note.
        """
        self.find_order(order)
        self.notes[order] = text
        return "noted"


def settled(task: Task, env: Shop) -> float:
    """Returns 1 if the database and the notes match the customer's requests."""
    noted = "ring twice" in env.notes.get(task.data["number"], "") and len(env.notes) == 1
    return float(env.state == task.data["goal"] and noted)


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Solves every task."""
    number = task.data["number"]
    said = yield Say(calls=[("find_order", {"order": number})])
    if "packed" in said[-1]["content"]:
        yield Say(calls=[("cancel", {"order": number})])
    yield Say("Done.")
    yield Say(calls=[("note", {"order": number, "text": "ring twice"})])
    yield Say("Done.")
