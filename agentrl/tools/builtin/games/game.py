"""The `game` tool: an environment with `reset` and `step`, played as text."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from agentrl.tools.base import Environment, Observation, ToolResult, tool
from agentrl.tools.builtin.games.libraries import Wanted, maker
from agentrl.tools.builtin.games.play import GameFailed, MoveFailed, Step, any_move
from agentrl.tools.calling import turn_of
from agentrl.types.clocks.threads import give_way, in_thread
from agentrl.types.errors import AgentRLError, RecipeError, TaskError, ToolError
from agentrl.types.task import Task

if TYPE_CHECKING:
    from agentrl.chat.formats.parser import Reply

_ABOUT = "Makes a move. Shows what it led to."


class Game(Environment):
    """Environment with `reset(seed)` and `step(action)`. Task data `game` overrides settings of the same names.

    `info` holds `return` (the sum of rewards), `steps`, `ended` and `success`. `success` comes from the environment if
    it reports one, else from a last reward above 0; with `solved_at`, from a return of at least that.

    Args:
        library: `gymnasium`, `gem`, `textarena`, `openspiel`, `pettingzoo`, or a function of the recipe that takes `id`
            (if it is set) and `kwargs` and returns an environment.
        id: id of the game in its library.
        kwargs: arguments of the game.
        act: form of a move: `tool`, a call of `act`, or `text`, the text of the reply (or its `<answer>`).
        actions: names of the moves, in the order of a discrete action space. Shown to the model.
        state: source of the state key: `observation`, or an attribute or method of the environment: `unwrapped.hash`.
        player: seat of the policy in games of several players.
        opponent: policy of the other seats: `random`, or a function (seen, moves, rng) of the recipe.
        solved_at: minimum return of a solved game.
        turn_rewards: gives each move's reward as a turn reward named `game`.
    """

    def __init__(
        self,
        library: Any,
        id: str | None = None,
        kwargs: dict[str, Any] | None = None,
        act: Literal["tool", "text"] = "tool",
        actions: Sequence[str] | None = None,
        state: str = "observation",
        player: int = 0,
        opponent: Any = "random",
        solved_at: float | None = None,
        turn_rewards: bool = False,
    ) -> None:
        if act not in ("tool", "text"):
            raise RecipeError(f"game: act is {act!r}", place="tools", remedy="tool, or text")
        if opponent != "random" and not callable(opponent):
            raise RecipeError(f"game: opponent is {opponent!r}", place="tools", remedy="random, or ./task.py:NAME")
        self._make = maker(library)
        self.library = library if isinstance(library, str) else getattr(library, "__name__", "game")
        self.settings: dict[str, Any] = {"id": id, "kwargs": kwargs or {}, "player": player}
        self.opponent = any_move if opponent == "random" else opponent
        self.by_text, self.actions, self.state = act == "text", [*actions] if actions else None, state
        self.solved_at, self.turn_rewards = solved_at, turn_rewards
        if self.by_text:
            self.offers = ()
        elif self.actions:
            one = {"type": "string", "enum": self.actions}
            schema = {"type": "object", "properties": {"action": one}, "required": ["action"]}
            self.act = tool.from_schema("act", _ABOUT, schema, self._act_by_schema)  # type: ignore[assignment, method-assign]

    async def open(self, task: Task, sandbox: object) -> None:
        """Begins the game of the task's seed.

        Raises:
            TaskError: the game does not exist.
            GameFailed: its `reset` fails.
        """
        await in_thread(partial(self._open, task), turn_of(self))

    def _open(self, task: Task) -> None:
        wanted = {**self.settings, **task.data.get("game", {})}
        if (unknown := next((key for key in wanted if key not in self.settings), None)) is not None:
            raise TaskError(f"game has no {unknown!r}", place=f"task {task.id!r}", remedy=", ".join(self.settings))
        try:
            self.play = self._make(Wanted(**wanted, actions=self.actions, opponent=self.opponent))
        except AgentRLError:
            raise
        except Exception as error:
            what = f"{self.library} makes no {wanted['id']!r} of {wanted['kwargs']}: {type(error).__name__}: {error}"
            raise TaskError(what, place=f"task {task.id!r}", remedy="see id and kwargs of the game") from error
        self._blocks = not inspect.iscoroutinefunction(self.play.step)
        self.info |= {"return": 0.0, "steps": 0, "ended": False, "success": False}
        with _AsGameFailed(GameFailed, self.library, "reset", task.seed):
            self.seen = self.play.reset(task.seed)

    async def opening(self) -> str:
        return self.seen

    @tool
    async def act(self, action: str) -> ToolResult:
        """Makes a move. Shows what it led to.

        Args:
            action: the move.
        """
        return await self._run_move(action)

    async def respond(self, reply: Reply) -> Observation | None:
        if not self.by_text:
            return None
        said = reply.text if reply.answer is None else reply.answer
        await give_way()
        moved = await self._run_move(said)
        return Observation(moved.text, moved.done, moved.answer, moved.rewards, executed=moved.executed)

    async def _act_by_schema(self, given: dict[str, Any]) -> ToolResult:
        return await self._run_move(given["action"])

    async def _run_move(self, action: str) -> ToolResult:
        if self._blocks:
            moved: ToolResult = await in_thread(partial(self._move, action), turn_of(self))
            return moved
        self._check(action)
        with _AsGameFailed(MoveFailed, self.library, "step", action):
            step: Any = await self.play.step(action)  # type: ignore[misc]
            return self._after(step)

    def _move(self, action: str) -> ToolResult:
        self._check(action)
        with _AsGameFailed(MoveFailed, self.library, "step", action):
            step = self.play.step(action)
            if not isinstance(step, Step):
                raise TypeError(f"step returned {step!r:.80} and is not 'async def'")
            return self._after(step)

    def _check(self, action: str) -> None:
        if not action.strip():
            raise ToolError("say a move")
        if self.by_text and self.actions and action.strip() not in self.actions:
            raise ToolError(f"there is no action {action.strip()[:60]!r}; there are: {', '.join(self.actions)}")
        if self.info["ended"]:
            raise ToolError("the game has ended")

    def _after(self, step: Step) -> ToolResult:
        self.seen = step.text
        if not math.isfinite(total := self.info["return"] + step.reward):
            raise ValueError(f"the reward of the move is {step.reward}")
        self.info["return"] = total
        self.info["steps"] += 1
        self.info["ended"] = step.done
        if self.solved_at is not None:
            self.info["success"] = self.info["return"] >= self.solved_at
        else:
            self.info["success"] = step.done and step.reward > 0 if step.success is None else step.success
        rewards = {"game": step.reward} if self.turn_rewards else None
        return ToolResult(step.text, step.done, rewards=rewards, executed=step.executed)

    def state_key(self) -> Any:
        """Returns a hash of the source that `state` names."""
        key: Any = self.seen
        if self.state != "observation":
            key = self.play.env
            for part in self.state.split("."):
                key = getattr(key, part)
            key = key() if callable(key) else key
        return hashlib.sha256(str(key).encode()).hexdigest()[:16]

    async def close(self) -> None:
        if hasattr(self, "play"):
            await in_thread(self.play.close, turn_of(self))


class _AsGameFailed:
    """Converts exceptions of the environment to `GameFailed`: an infrastructure failure, not the model's error."""

    def __init__(self, failure: type[GameFailed], library: str, what: str, given: Any) -> None:
        self.failure, self.library, self.what, self.given = failure, library, what, given

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception | SystemExit) and not isinstance(error, ToolError | AgentRLError):
            raise self.failure(
                f"{self.library} failed in {self.what}({self.given!r:.100}): {type(error).__name__}: {error}"
            ) from error


def score(info: Mapping[str, Any]) -> float:
    """Returns the sum of the game's rewards."""
    return float(info.get("return", 0.0))


def success(info: Mapping[str, Any]) -> float:
    """Returns 1 if the game is won, else 0."""
    return float(bool(info.get("success", False)))
