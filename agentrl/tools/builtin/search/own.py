"""The policy answers a query itself (SSRL, arXiv:2508.10874): a call asks the conversation that it is part of."""

from __future__ import annotations

import re

from agentrl.tools.asides import current_aside
from agentrl.tools.builtin.search.document import Document
from agentrl.types.errors import RecipeError

PROMPT = """Nothing but you answers this search: {query}
Write what you know about it, in a few sentences, and nothing else."""

_TAGS = re.compile(r"</?information>")


async def own(query: str, number: int, *, trained: bool) -> list[Document]:
    """What the policy that searches writes for its query; nothing if it writes nothing.

    Args:
        number: of the answer in the episode, for its id.
        trained: whether its tokens train. The authors mask them.

    Raises:
        RecipeError: no policy of an episode calls.
        LimitReached: the episode has no turn left.
        ContextOverflow: its context is full.
    """
    if (aside := current_aside()) is None:
        raise RecipeError("engine self needs a policy that calls it", place="search", remedy="agentrl rollout")
    text = _TAGS.sub("", await aside(PROMPT.format(query=query), "search", trained)).strip()
    return [Document(f"self{number}", query, text)] if text else []
