"""Client of the server."""

from typing import Any

from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.types import State

from .models import RecipeAction, RecipeObservation


class RecipeEnv(EnvClient[RecipeAction, RecipeObservation, State]):
    """Environment client: `reset(task=3)` begins an episode of a task, `step(RecipeAction(text=...))` plays a turn."""

    def _step_payload(self, action: RecipeAction) -> dict[str, Any]:
        payload: dict[str, Any] = action.model_dump(include={"text", "calls"})
        return payload

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[RecipeObservation]:
        reward, done = payload.get("reward"), payload.get("done", False)
        told = RecipeObservation(**payload["observation"], done=done, reward=reward)
        return StepResult(observation=told, reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(**payload)
