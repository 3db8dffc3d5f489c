"""Ghost in the Minecraft: a world to craft in, an agent with text knowledge, and a memory of plans over episodes."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pydantic import Field

from agentrl import Agent, Episode, Say, Task, Tool, ToolResult, tool
from agentrl.training.backend import TrainingJob
from agentrl.training.memory.trainer import MemorySettings, MemoryTrainer
from agentrl.training.memory.writers import OwnSampling, OwnWriter
from agentrl.types.memory import MemoryChange


class Item(NamedTuple):
    """How an item is obtained: by a verb, with a tool that must be there, from materials, `gives` at a time."""

    verb: str
    tool: str | None = None
    materials: dict[str, int] = {}
    gives: int = 1


ITEMS = {
    "log": Item("mine"),
    "planks": Item("craft", None, {"log": 1}, 4),
    "stick": Item("craft", None, {"planks": 2}, 4),
    "crafting_table": Item("craft", None, {"planks": 4}),
    "wooden_pickaxe": Item("craft", "crafting_table", {"stick": 2, "planks": 3}),
    "cobblestone": Item("mine", "wooden_pickaxe"),
    "stone_pickaxe": Item("craft", "crafting_table", {"cobblestone": 3, "stick": 2}),
    "furnace": Item("craft", "crafting_table", {"cobblestone": 8}),
    "iron_ore": Item("mine", "stone_pickaxe"),
    "iron_ingot": Item("craft", "furnace", {"iron_ore": 1}),
    "iron_pickaxe": Item("craft", "crafting_table", {"iron_ingot": 3, "stick": 2}),
    "diamond": Item("mine", "iron_pickaxe"),
}


def goals(items: Sequence[str] = tuple(ITEMS)) -> Iterator[Task]:
    """A task for each item."""
    for item in items:
        yield Task.of(item, f"Obtain 1 {item}.", goal=item)


class World(Tool):
    """An inventory, and the two actions that change it."""

    async def open(self, task: Task, sandbox: Any) -> None:
        """Begins with empty hands."""
        self.inventory: Counter[str] = Counter()
        self.goal = str(task.data["goal"])

    def state_key(self) -> str:
        """The inventory."""
        return self.held

    @property
    def held(self) -> str:
        """The inventory in words."""
        return ", ".join(f"{count} {item}" for item, count in sorted(self.inventory.items()) if count) or "nothing"

    @tool
    async def mine(self, item: str) -> ToolResult:
        """Mine a block.

        Args:
            item: What to mine.
        """
        return self._obtain("mine", item)

    @tool
    async def craft(self, item: str) -> ToolResult:
        """Craft or smelt an item from what you hold.

        Args:
            item: What to craft.
        """
        return self._obtain("craft", item)

    def _obtain(self, verb: str, item: str) -> ToolResult:
        how = ITEMS.get(item)
        if how is None or how.verb != verb:
            return ToolResult(f"there is no {item} to {verb}; you hold {self.held}")
        if how.tool is not None and not self.inventory[how.tool]:
            return ToolResult(f"this needs a {how.tool}; you hold {self.held}")
        if lacking := [f"{n} {name}" for name, n in how.materials.items() if self.inventory[name] < n]:
            return ToolResult(f"this needs {', '.join(lacking)}; you hold {self.held}")
        self.inventory.subtract(how.materials)
        self.inventory[item] += how.gives
        return ToolResult(f"done; you hold {self.held}", done=self.inventory[self.goal] > 0)


def obtained(task: Task, episode: Episode) -> float:
    """1 if the agent holds the goal at the end."""
    results = [call.result for turn in episode.turns for call in turn.calls if call.outcome == "ok"]
    return float(bool(results) and re.search(rf"hold.*\b{task.data['goal']}\b", results[-1]) is not None)


# --- knowledge, decomposer, planner ---------------------------------------------------------------------------------

DECOMPOSE = "{knowledge}\nWhat do {count} {item} need? One line each, tools first: a number and an item. Or: nothing"
PLAN = "Sub-goal: obtain {count} {item}.\n{knowledge}\nYou hold {held}.{references}\nAct, one call at a time."


def knowledge(item: str) -> str:
    """The text that is known about an item."""
    how = ITEMS[item]
    needs = [f"1 {how.tool} (stays)"] if how.tool else []
    needs += [f"{count} {name}" for name, count in how.materials.items()]
    return f"{item}: {how.verb} it, {how.gives} at a time. Needs: {', '.join(needs) or 'nothing'}."


class Ghost(Agent):
    """Takes the goal apart into sub-goals, and plans actions for each, with feedback and with reference plans.

    `info` holds `sub_goals`; `achieved`: the sub-goals that were reached by actions, each with these; and `recalled`:
    the number of sub-goals for which the memory had plans.

    Args:
        decompose: false: the goal is the only sub-goal, and nothing is known.
        recall: shows the planner the plans of the memory.
        tries: further replies for a sub-goal after as many that changed nothing.
    """

    def __init__(self, decompose: bool = True, recall: bool = True, tries: int = 4) -> None:
        self.decompose, self.recall, self.tries = decompose, recall, tries
        self._needs: dict[str, list[tuple[str, str]]] = {}

    async def run(self, session: Any) -> None:
        """Reaches the sub-goals one after another."""
        world = next(each for each in session.tools if isinstance(each, World))
        goal = (world.goal, 1)
        wanted = await self._parts(session, *goal) if self.decompose else [goal]
        session.info.update(sub_goals=[list(each) for each in wanted], achieved=[], recalled=0)
        for item, count in wanted:
            if session.outcome is None and not await self._reached(session, world, item, count):
                session.finish("answer", f"no {item}")
        if session.outcome is None:
            session.finish("answer", world.goal)

    async def _parts(self, session: Any, item: str, count: int, depth: int = 0) -> list[tuple[str, int]]:
        """The sub-goals of an item, in their order, and at the end itself. The decomposer is asked once for each."""
        name = f"decomposer {count} {item}"
        if name not in self._needs:
            asked = DECOMPOSE.format(knowledge=knowledge(item), count=count, item=item)
            context = session.context(name, [{"role": "user", "content": asked}], role="decomposer", tools=[])
            self._needs[name] = re.findall(r"(\d+) (\w+)", (await context.generate()).text)
        found: list[tuple[str, int]] = []
        for number, part in self._needs[name] if depth < len(ITEMS) else ():
            if part in ITEMS and part != item:
                found += await self._parts(session, part, int(number), depth + 1)
        return [*found, (item, count)]

    async def _reached(self, session: Any, world: World, item: str, count: int) -> bool:
        """Plans and acts until the item is held; False if nothing changes in `tries` replies."""
        if world.inventory[item] >= count:
            return True
        plans = references(session.memory.entries.values(), item) if self.recall and session.memory is not None else []
        session.info["recalled"] += bool(plans)
        shown = "".join(f"\nReference plan: {plan}" for plan in plans)
        known = knowledge(item) if self.decompose else ""
        session.say(PLAN.format(count=count, item=item, knowledge=known, held=world.held, references=shown))
        actions: list[str] = []
        idle = 0
        while session.outcome is None and idle < self.tries and world.inventory[item] < count:
            before = world.held
            reply = await session.generate()
            if reply.calls or reply.errors:
                await session.run_tools(reply)
            else:
                session.say("Act by a call.")
            idle = idle + 1 if world.held == before else 0
            if world.held != before:
                actions += [f"{call.name} {call.arguments.get('item')}" for call in reply.calls]
        if world.inventory[item] >= count:
            session.info["achieved"].append([item, "; ".join(actions)])
        return bool(world.inventory[item] >= count)


# --- memory ---------------------------------------------------------------------------------------------------------

SUMMARISE = """\
An agent reached the sub-goal {item} by these plans:
{plans}
Write one plan that they have in common: the actions in their order, separated by semicolons, and nothing else."""
COMMON = " (common)"


def references(entries: Any, item: str) -> list[str]:
    """The plans of an item: the common one alone, if there is one."""
    own = [text.partition(": ")[2] for text in entries if text.startswith(f"{item}: ")]
    common = [text.partition(": ")[2] for text in entries if text.startswith(f"{item}{COMMON}: ")]
    return common or own


class Plans(MemoryTrainer):
    """Keeps the actions that reached a sub-goal. When an item has `collect` plans, the policy sums them up as one."""

    class Settings(MemorySettings):
        """Settings in a recipe."""

        collect: int = Field(5, gt=1, description="Plans of an item that become one.")
        own: OwnSampling = Field(default_factory=OwnSampling, description="Sampling of the policy where it sums up.")

    def __init__(self, job: TrainingJob, settings: Settings) -> None:
        super().__init__(job, settings)
        self._own = settings

    async def write(self, groups: Sequence[Any], seed: int) -> list[MemoryChange | None]:
        """Adds the plans of the iteration; an item has at most `collect`, or the common one."""
        changes: list[MemoryChange | None] = []
        plans = {item: references(self.memory.entries.values(), item) for item in ITEMS}
        common = {text.partition(COMMON)[0] for text in self.memory.entries.values() if f"{COMMON}: " in text}
        for episode in (episode for group in groups for episode in group.episodes):
            for item, actions in episode.info.get("achieved", []):
                if item not in common and len(plans[item]) < self._own.collect:
                    plans[item].append(actions)
                    changes.append(MemoryChange("add", f"{item}: {actions}"))
        full = [item for item in ITEMS if item not in common and len(plans[item]) >= self._own.collect]
        return await self._summed_up(full, plans, changes, seed) if full else changes

    async def _summed_up(
        self, full: Sequence[str], plans: dict[str, list[str]], changes: list[MemoryChange | None], seed: int
    ) -> list[MemoryChange | None]:
        """The changes, with one common plan in place of the plans of each full item."""
        assert self.engine is not None
        writer = OwnWriter(self.engine, self.loaded, self.job.recipe, self._own.own)
        asked = [
            lambda most, item=item: SUMMARISE.format(item=item, plans="\n".join(plans[item]))[:most] for item in full
        ]
        replies = zip(full, await writer.ask(asked, seed), strict=True)
        said = {item: text for item, reply in replies if (text := " ".join((reply or "").split()))}
        kept = [each for each in changes if each is None or each.text.partition(": ")[0] not in said]
        old = [id for id, text in self.memory.entries.items() if text.partition(": ")[0] in said]
        dropped: list[MemoryChange | None] = [MemoryChange("delete", id=id) for id in old]
        added = [MemoryChange("add", f"{item}{COMMON}: {text}") for item, text in said.items()]
        return [
            *dropped,
            *kept,
            *added,
            *[None] * (len(full) - len(said)),
        ]  # the plans of an item stay without a summary


# --- script ---------------------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random, context: str) -> Iterator[Say]:
    """Names what an item needs, and does the actions that obtain the goal."""
    if context.startswith("decomposer"):
        _, count, item = context.split()
        yield Say("\n".join(_needs(item, int(count))) or "nothing")
        return
    held: Counter[str] = Counter()
    for verb, item in _actions(str(task.data["goal"]), 1, held):
        yield Say(calls=[(verb, {"item": item})])


def _needs(item: str, count: int) -> list[str]:
    """What that many items need: the tool, and the materials of as many rounds as it takes."""
    how = ITEMS[item]
    rounds = -(-count // how.gives)
    return [*([f"1 {how.tool}"] if how.tool else []), *(f"{rounds * n} {name}" for name, n in how.materials.items())]


def _actions(item: str, count: int, held: Counter[str]) -> Iterator[tuple[str, str]]:
    """The actions that obtain an item, after which it is held."""
    how = ITEMS[item]
    if held[item] >= count:
        return
    if how.tool is not None:
        yield from _actions(how.tool, 1, held)
    while held[item] < count:
        for name, needed in how.materials.items():
            yield from _actions(name, needed, held)
        held.subtract(how.materials)
        held[item] += how.gives
        yield how.verb, item
