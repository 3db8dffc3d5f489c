"""Server of recipe NAME: `python -m server.app --port 8000`."""

import argparse
import sys
from pathlib import Path
from typing import Any

import uvicorn

from agentrl import Say
from agentrl.api.from_outside import Driven, Observed
from agentrl.types.errors import AgentRLError
from agentrl.types.parts.content import text_of
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import State

sys.path.insert(0, str(Path(__file__).parents[1]))
from models import RecipeAction, RecipeObservation

RECIPE = Path(__file__).parents[1] / "recipe" / "FILE"
OVERRIDES: list[str] = []
DRIVEN = Driven(RECIPE, OVERRIDES)


class RecipeEnvironment(Environment):
    """Plays the recipe's tasks, in order or by position."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.session, self.next, self._state = DRIVEN.session(), 0, State()
        self.tools: list[dict[str, Any]] = []

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, task: int | None = None, **_: Any
    ) -> RecipeObservation:
        """Begins an episode of a task: by position (`task`), by any number (`seed`, modulo the tasks), else the next.

        Raises:
            AgentRLError: the position is out of range, or the environment does not start.
        """
        if task is not None and not 0 <= task < len(DRIVEN.parts.tasks):
            raise AgentRLError(
                f"there is no task {task}", place="reset", remedy=f"give 0 to {len(DRIVEN.parts.tasks) - 1}"
            )
        position = next((each for each in (task, seed) if each is not None), self.next)
        self.next = position + 1
        self.tools, seen = [], self.session.reset(position)
        self._state = State(episode_id=episode_id, step_count=0, task=position)
        return self._shown(seen)

    def step(self, action: RecipeAction, timeout_s: float | None = None, **_: Any) -> RecipeObservation:
        """Plays a turn. A broken environment is a server error, never a reward of 0."""
        seen = self.session.step(Say(action.text, [(call.name, call.arguments) for call in action.calls]))
        self._state.step_count += 1
        return self._shown(seen)

    @property
    def state(self) -> State:
        """Id of the episode, position of the task, and number of turns."""
        return self._state

    def close(self) -> None:
        """Abandons the episode."""
        self.session.close()

    def _shown(self, seen: Observed) -> RecipeObservation:
        before, self.tools = self.tools, seen.tools
        told = RecipeObservation(text="\n\n".join(text_of(message["content"]) for message in seen.messages))
        if any(not isinstance(message["content"], str) for message in seen.messages):
            told.messages = seen.messages
        if seen.tools and seen.tools != before:
            told.tools = seen.tools
        if seen.episode is not None:
            told.status, told.components = seen.episode.status, dict(seen.episode.components)
            told.done, told.reward = True, seen.reward
        return told


app = create_fastapi_app(RecipeEnvironment, RecipeAction, RecipeObservation, max_concurrent_envs=64)


def main(host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serves until interrupted."""
    try:
        uvicorn.run(app, host=host, port=port)
    finally:
        DRIVEN.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0: reachable from outside, as a container needs it")
    parser.add_argument("--port", type=int, default=8000)
    main(**vars(parser.parse_args()))
