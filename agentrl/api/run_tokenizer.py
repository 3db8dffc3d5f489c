"""The tokenizer of a stored run."""

from __future__ import annotations

from agentrl.api.run_dirs import kept_checkpoint
from agentrl.chat.tokenizer import Tokenizer
from agentrl.config.recipe import recipe_from_run
from agentrl.store.reader import RunReader
from agentrl.store.run_dir import RunDir


def tokenizer_of(run: RunReader) -> Tokenizer:
    """The tokenizer of a stored run's prompts: that of the run which it replays, if it does."""
    from agentrl.chat.tokenizer import ByteTokenizer
    from agentrl.models.load import chat_tokenizer

    while (source := run.info.get("replay")) is not None:
        run = RunDir.read(source)
    if run.info.get("script") is not None:
        return ByteTokenizer()
    model = recipe_from_run(run.info).required_model
    if run.info["command"] == "train":
        model = model.at(kept_checkpoint(run.path))
    return chat_tokenizer(model)
