"""vLLM servers for a recipe: what it needs of them, and what is checked before they start."""

from __future__ import annotations

import json
import os
from urllib.parse import urlsplit

from agentrl.config.recipe import Recipe
from agentrl.engines.opening import EngineOpening, named_model
from agentrl.engines.vllm.images import FAMILIES
from agentrl.engines.vllm.launch import ServerGroup, Servers, Serving, prepare, start_servers
from agentrl.engines.vllm.settings import VLLMSettings
from agentrl.engines.vllm.transfer import TRANSFERS, backend_of
from agentrl.models.load import model_folder, on_cuda, sees
from agentrl.types.engine import Engine
from agentrl.types.errors import RecipeError

_FIRST_PORT = 8000


class RecipeServers(Engine):
    """The part of the vLLM engine that knows the recipe."""

    @classmethod
    def starts_servers(cls, settings: VLLMSettings) -> bool:
        """Returns True if the recipe names no running servers."""
        return not settings.urls

    @classmethod
    def sees_images(cls, recipe: Recipe) -> bool:
        """Returns True if the recipe's model takes images, of a family whose images vLLM takes from us."""
        return sees(recipe.required_model, FAMILIES)

    @classmethod
    def check(cls, settings: VLLMSettings, recipe: Recipe) -> None:
        """Raises RecipeError if the weight transfer does not exist, or GPUs are named where Ray places servers."""
        TRANSFERS.chosen(settings.transfer, recipe.base)
        if recipe.launches_servers and settings.gpus is not None:
            raise RecipeError(
                "'engine.gpus' selects GPUs of one machine, but Ray places servers",
                place="engine.gpus",
                remedy="set scale.server_gpus",
            )

    @classmethod
    def check_training(cls, settings: VLLMSettings, recipe: Recipe) -> None:
        """Raises RecipeError if servers have no model to load, or cannot take turns with the trainer.

        Trainer and servers can take turns on a GPU only if one waits for the other, with one trainer process.
        """
        if recipe.launches_servers and recipe.required_model.scratch is not None:
            raise RecipeError(
                "vLLM servers on a cluster read the model from a folder, but model.scratch builds it during training",
                place="model.scratch",
                remedy="train it elsewhere first and set model.path to its folder; or name servers in engine.urls",
            )
        if settings.colocate is None:
            return
        apart = {
            "train.max_staleness": recipe.train is not None and recipe.train.max_staleness > 0,
            "scale.trainer_ranks": recipe.scale.trainer_ranks > 1 or int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1,
            "scale.use": recipe.launches_servers,
            "engine.transfer": settings.transfer.use != "file",
        }
        if bad := [name for name, is_so in apart.items() if is_so]:
            raise RecipeError(
                "with engine.colocate, trainer and servers of one machine take turns: this needs one trainer process, "
                "max_staleness 0, and weights through a file",
                place=bad[0],
                remedy=f"remove {bad[0]} or engine.colocate",
            )

    @classmethod
    def check_machine(cls, settings: VLLMSettings, recipe: Recipe) -> None:
        """Raises EngineError if servers will start here and the interpreter has no vLLM, or GPUs are missing."""
        if cls.starts_servers(settings) and not recipe.launches_servers:
            prepare(settings, Serving(recipe.required_model.dtype, trainer_gpus=_trainer_gpus(recipe)))

    @classmethod
    def serve(cls, opening: EngineOpening) -> Servers:
        """Starts a server for each port of `urls`; without urls, `replicas` servers, from port 8000 on.

        Raises:
            RecipeError: the recipe's model does not exist yet.
            EngineError: see `start_servers`.
        """
        settings: VLLMSettings = opening.settings
        ports = [urlsplit(url).port or _FIRST_PORT for url in settings.urls]
        ports = ports or [_FIRST_PORT + index for index in range(settings.replicas)]
        settings = settings.model_copy(update={"replicas": len(ports)})
        return start_servers(settings, model_folder(named_model(opening.recipe)), serving(opening), ports=ports)


def started(opening: EngineOpening) -> ServerGroup:
    """Starts the servers of the recipe's engine, on this machine or on the recipe's cluster.

    Raises:
        RecipeError: the recipe's model does not exist yet, or this command has no cluster.
        EngineError: see `start_servers`.
    """
    settings: VLLMSettings = opening.settings
    recipe, what = opening.recipe, serving(opening)
    if not recipe.launches_servers:
        return start_servers(settings, opening.loaded or model_folder(named_model(recipe)), what)
    if opening.launch_servers is None:
        raise RecipeError(
            "this command cannot launch servers on a cluster",
            place="scale",
            remedy="start the servers and name them in engine.urls",
        )
    launched: ServerGroup = opening.launch_servers(recipe, settings, model_folder(named_model(recipe)), what)
    return launched


def serving(opening: EngineOpening) -> Serving:
    """Returns the settings of servers that follow from the rest of the recipe."""
    recipe, model = opening.recipe, opening.recipe.required_model
    lora = recipe.train.lora if recipe.train is not None else None
    needed, allowed = opening.needed_context(), _allowed_context(recipe)
    return Serving(
        model.dtype,
        max_context=needed if needed is not None and allowed is not None and needed < allowed else None,
        lora_rank=None if lora is None else lora.rank,
        trainer_gpus=_trainer_gpus(recipe) if opening.loaded is not None else 0,
        transfer=backend_of(opening.settings, recipe.base),
        sees=sees(model, FAMILIES),
    )


def _allowed_context(recipe: Recipe) -> int | None:
    """Returns the maximum context of the model; None if its configuration has no such value."""
    model = recipe.required_model
    if model.scratch is not None:
        return model.scratch.max_context
    config = json.loads((model_folder(model) / "config.json").read_bytes())
    found = config.get("text_config", config).get("max_position_embeddings")
    return None if found is None else int(found)


def _trainer_gpus(recipe: Recipe) -> int:
    """Returns the number of this machine's GPUs that the trainer uses: the first ones, one per rank."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(ranks, recipe.scale.trainer_ranks) if on_cuda(recipe.required_model) else 0
