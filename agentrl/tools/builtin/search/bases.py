"""The `bases` tool: several named searches; the policy chooses one per query (R1-Router)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from agentrl.registry.settings import checked, declared
from agentrl.tools.base import Tool, tool
from agentrl.tools.builtin.search.tool import Search, cut
from agentrl.types.errors import RecipeError, ToolError
from agentrl.types.sandbox import Sandbox
from agentrl.types.task import Task


class Bases(Tool):
    """Offers `search(query, base)` and `fetch(id)` over several bases. The reward `base_routing` scores the choice.

    Args:
        of: settings of `search` by name of the base, and `about`, a description for the policy.

    Raises:
        RecipeError: no base is given, or one has an invalid name or settings.
    """

    parallel = True

    def __init__(self, of: Mapping[str, Mapping[str, Any]]) -> None:
        if not of:
            raise RecipeError("bases: there are no bases", remedy="of: {people: {corpus: ./people.jsonl, about: ...}}")
        if wrong := next((name for name in of if not name or "/" in name), None):
            raise RecipeError(f"bases: no base can be called {wrong!r}", place=f"of.{wrong}", remedy="a name without /")
        self.bases = {name: _base(name, given) for name, given in of.items()}
        self.timeout_s = max(each.timeout_s for each in self.bases.values())
        about = "; ".join(f"{name}: {given.get('about', '')}".rstrip(": ") for name, given in of.items())
        # Overrides the class's method by a tool whose schema lists the names of the bases.
        self.search = tool.from_schema(  # type: ignore[method-assign,assignment]
            "search",
            "Search one of several bases. Shows the id, the title and the beginning of the best documents.",
            {
                "properties": {
                    "query": {"type": "string", "description": "A few words that the document should contain."},
                    "base": {"type": "string", "enum": [*self.bases], "description": f"Where to search. {about}"},
                },
                "required": ["query", "base"],
            },
            self._search,
        )

    async def open(self, task: Task, sandbox: Sandbox | None) -> None:
        """Opens all bases."""
        for base in self.bases.values():
            await base.open(task, sandbox)

    @tool
    async def search(self, query: str, base: str) -> str:
        """Search one of several bases. Shows the id, the title and the beginning of the best documents.

        Args:
            query: A few words that the document should contain.
            base: Where to search.
        """
        return await self._search({"query": query, "base": base})

    async def _search(self, arguments: dict[str, Any]) -> str:
        name = arguments["base"]
        base = self.bases[name]
        hits = await base.hits(arguments["query"])
        return "\n\n".join(f"[{name}/{hit.id}] {hit.title}\n{base.shown(hit)}" for hit in hits)

    @tool
    async def fetch(self, id: str) -> str:
        """Read one document whole.

        Args:
            id: The id that a search showed in brackets.
        """
        name, _, own = id.strip().strip("[]").partition("/")
        base = self.bases.get(name)
        document = None if base is None else await base.document(own)
        if base is None or document is None:
            raise ToolError(f"there is no document with the id {id!r}; use an id that a search showed in [brackets]")
        return f"[{name}/{document.id}] {document.title}\n{cut(document.text, base.limit)}"

    def state_key(self) -> str:
        """Hash of the documents seen so far in each base, in any order."""
        seen = [f"{name} {base.state_key()}" for name, base in self.bases.items()]
        return hashlib.sha256("\n".join(seen).encode()).hexdigest()[:16]


_SETTINGS = declared(Search)


def _base(name: str, given: Mapping[str, Any]) -> Search:
    """Makes the search of a base.

    Raises:
        RecipeError: the settings are invalid.
    """
    own = {key: value for key, value in given.items() if key != "about"}
    found = checked(_SETTINGS.model, own, "a base", f"of.{name}", beside=("about",))
    return Search(**_SETTINGS.arguments(found))
