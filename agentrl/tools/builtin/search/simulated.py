"""Search engine simulated by a model, useful or noisy (ZeroSearch, arXiv:2505.04588)."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from agentrl.tools.builtin.search.document import Document
from agentrl.tools.builtin.search.requests import ask, key_of
from agentrl.types.errors import InfraError

PROMPT = """You are the Google search engine.
Given a query, you need to generate {k} {kind} documents for the query.
The user is trying to answer the question: {question} whose answer is {answer}.
Each document should contain about 30 words, and these documents should contain {what} information.

Query: {query}
{kind_title} Output:
"""
"""The authors' prompt for models without fine-tuning; `kind` is useful or noisy."""

_HEAD = re.compile(r"(?m)^[^\w\n]{0,20}(?:Doc(?:ument)?[^\S\n]{0,9})?\d{1,9}[^\w\n]{0,20}[:.)]")
"""Start of a document in an answer: `1.`, `**Doc 2**:`. Repetitions are bounded, so that matching is linear."""


async def simulated(
    query: str,
    k: int,
    url: str,
    model: str,
    api_key_env: str | None,
    timeout_s: float,
    *,
    question: str,
    answer: str,
    noisy: bool,
    seed: int,
) -> list[Document]:
    """Returns the documents that a model of an OpenAI-compatible API writes for a query.

    Raises:
        InfraError: the server does not answer, or not with a chat completion.
    """
    kind = "noisy" if noisy else "useful"
    title = kind.capitalize()

    def asking(text: str) -> dict[str, Any]:
        about = {"question": question, "answer": answer, "query": text}
        prompt = PROMPT.format(k=k, kind=kind, kind_title=title, what=kind, **about)
        return {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": 80 * k,
            "seed": seed,
        }

    key = key_of(api_key_env)
    told = await ask(
        "POST",
        f"{url.rstrip('/')}/chat/completions",
        said=query,
        body=asking,
        headers={"Authorization": f"Bearer {key}"} if key else None,
        timeout_s=timeout_s,
    )
    try:
        text = str(told["choices"][0]["message"]["content"] or "")
    except (KeyError, IndexError, TypeError):
        raise InfraError(f"not a chat completion: {str(told)[:200]}", place=url) from None
    parts = [" ".join(part.split()) for part in _HEAD.split(text)[1:] or text.split("\n\n")]
    return [
        Document(hashlib.sha256(f"{query}\n{part}".encode()).hexdigest()[:8], query, part) for part in parts if part
    ][:k]
