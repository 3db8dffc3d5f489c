"""Search engine `self`: the policy answers its own query in a side reply (SSRL, arXiv:2508.10874)."""

from __future__ import annotations

import re

from agentrl.tools.asides import current_aside
from agentrl.tools.builtin.search.document import Document
from agentrl.types.errors import RecipeError

PROMPT = """Nothing but you answers this search: {query}
Write what you know about it, in a few sentences, and nothing else."""

_TAGS = re.compile(r"</?information>")


async def own(query: str, number: int, *, trained: bool) -> list[Document]:
    """Returns the policy's own answer to its query as a document; empty if the policy writes nothing.

    Args:
        number: number of the answer in the episode, for its id.
        trained: trains on the answer's tokens. The authors mask them.

    Raises:
        RecipeError: the caller is not a policy of an episode.
        LimitReached: the episode has no turns left.
        ContextOverflow: the context is full.
    """
    if (aside := current_aside()) is None:
        raise RecipeError("engine self needs a policy that calls it", place="search", remedy="agentrl rollout")
    text = _TAGS.sub("", await aside(PROMPT.format(query=query), "search", trained)).strip()
    return [Document(f"self{number}", query, text)] if text else []
