"""Roles of messages: roles that a chat template ignores are replaced, so that no message is lost."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.chat.samples import PROBE, REPLY, STAND_IN, USER
from agentrl.chat.tokenizer import Tokenizer
from agentrl.types.errors import RenderError
from agentrl.types.parts.content import joined
from agentrl.types.task import Message

_KNOWN = {"user", "assistant", "tool"}


class Roles:
    """Roles that a template shows, and at which positions. Determined once.

    `developer` is OpenAI's later word for `system`: it becomes `system` if the template does not know it. A later
    system message that the template ignores becomes part of the first one at the beginning, and of the user's
    elsewhere. Custom roles that it ignores are refused.

    Args:
        closes: texts that the template may write behind a reply. Before some roles it writes a text that does not end a
            reply (GLM's).
    """

    def __init__(self, tokenizer: Tokenizer, closes: Sequence[str]) -> None:
        self._tokenizer, self._closes = tokenizer, closes
        self._shown: dict[tuple[str, ...], bool] = {}

    def fitting(self, messages: Sequence[Message]) -> list[Message]:
        """Returns the messages in roles that the template shows.

        Raises:
            RenderError: it ignores a role.
        """
        if all(m["role"] in _KNOWN or (m["role"] == "system" and not k) for k, m in enumerate(messages)):
            return list(messages)
        made: list[Message] = []
        for index, message in enumerate(messages):
            role = message["role"]
            before = made[-1]["role"] if made else ""
            opening = all(m["role"] in ("system", "developer") for m in made)
            if role == "developer" and not self._shows(role, before if opening else "assistant"):
                role = "system"
            if role == "system" and made and not self._shows(role, before if opening else "assistant"):
                if opening:
                    made[-1] = {**made[-1], "content": joined(made[-1]["content"], "\n\n", message["content"])}
                    continue
                role = "user"
            if role not in (*_KNOWN, "system", "developer") and not self._shows(role, before and "assistant"):
                raise RenderError(
                    f"the chat template passes over message {index}, whose role is {role!r}",
                    place=self._tokenizer.name,
                    remedy="give it one of the roles system, user, assistant, tool; or name a template that shows it",
                )
            made.append({**message, "role": role})
        return made

    def _shows(self, role: str, before: str) -> bool:
        """Returns True if the template shows a message of this role at the beginning, or behind one of another role."""
        if (role, before) not in self._shown:
            first: list[Message] = {
                "": [],
                "assistant": [USER, REPLY],
            }.get(before, [{"role": before, "content": STAND_IN}])
            asked = [*first, {"role": role, "content": PROBE}, *([] if before == "assistant" else [USER])]
            try:
                text = self._tokenizer.render(asked, None, True)
            except RenderError:
                text = ""
            # Text that the template writes at another position could not be separated from other messages.
            tail = text.partition(STAND_IN)[2] if first else text
            ended = before != "assistant" or any(map(tail.startswith, self._closes))
            self._shown[role, before] = ended and PROBE in tail
        return self._shown[role, before]
