"""The contract of a trainer: what keeps a policy, wherever its weights are, and takes the steps on it.

`local.py` trains in this process. A trainer that keeps its weights on a server, and takes a step at a time, maps as
follows (the names are those of the Tinker API):

| here | there |
|---|---|
| `open`, `begin` | tokenizer from `model.path`; a training client for LoRA of rank `train.lora.rank` |
| `TrainingSample` | a datum: `tokens[:-1]`, `target_tokens = tokens[1:]`; numbers of tokens are shifted by one |
| token weights (`losses/weights.py`), importance weights | folded into the advantages: the server sums over tokens |
| `logprobs` | `forward` of the training client; with `reference` that of the base model, or of a saved path |
| `update` | for each minibatch `forward_backward` and `optim_step`, both submitted before either is awaited |
| a loss in `TrainerCapabilities.losses` | `forward_backward(loss_fn=...)` |
| any other loss, or a `clip_scale` | `forward_backward_custom`: the gradient of `Objective` by log-probability |
| `fit` | the same, one step |
| `publish` | `save_weights_for_sampler`: the name of the sampler, which the engine made for it takes in `update` |
| `save`, `load` | `save_state`; the path is the state, and a new training client is made from it |

This module does not import torch: a recipe is checked without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl.config.recipe import Recipe
from agentrl.config.train import LossSettings, TrainSettings
from agentrl.models.load import LoadedModel
from agentrl.store.tokens import TokenRecord
from agentrl.types.engine import Engine
from agentrl.types.errors import TrainError
from agentrl.types.sample import TrainingSample

if TYPE_CHECKING:
    from agentrl.curriculum import Group
    from agentrl.training.compute_thread import Compute
    from agentrl.training.parallel.ranks import Ranks

Floats = NDArray[np.float32]

Column = Literal["ref_logprob", "teacher_logprob", "ema_logprob", "entropy", "value", "progress", "prm_logprob"]
COLUMNS: dict[Column, str] = {
    "ref_logprob": "the log-probabilities of a reference policy",
    "teacher_logprob": "the log-probabilities of a teacher",
    "ema_logprob": "the log-probabilities of a moving average of the policy",
    "entropy": "the policy's entropy",
    "value": "a critic",
    "progress": "a critic",
    "prm_logprob": "an implicit process reward model",
}
"""Numbers of a trained token that only some trainers compute, in words."""

Feature = Literal[
    "all_weights",
    "adapters",
    "prefix_trees",
    "ranks",
    "images",
    "second_policies",
    "temperature",
    "any_engine",
    "token_records",
    "streaming",
]


@dataclass(frozen=True)
class TrainerCapabilities:
    """Capabilities of a trainer. A recipe that needs more is refused before the run (`agentrl/preflight/trainer.py`).

    Attributes:
        losses: losses that it computes by name.
        loss_functions: it computes every loss, as a function of log-probabilities.
        columns: what it computes of a token beyond the policy's log-probability.
        features: all_weights, adapters: what can be trained (without `train.lora`, with it); prefix_trees: shared
            prefixes are forwarded once; ranks: several processes; images; second_policies: trainers of further adapters
            (`policies.NAME.train`); temperature: log-probabilities at a sampling temperature other than 1; any_engine:
            `publish` gives weights, and `open` a model in this process, so that built-in engines can sample;
            token_records: `recorded` gives what `train.record_tokens` asks for; streaming: `accumulate`.
        unread: keys of `train` that it does not read. A recipe must leave them at their defaults.
        memory: it changes the policy's text memory, and never weights: `publish` gives a `TextMemory`. Each
            built-in engine can sample, also an API, and no loss is computed.
    """

    losses: frozenset[str] = frozenset()
    loss_functions: bool = False
    columns: frozenset[Column] = frozenset()
    features: frozenset[Feature] = frozenset()
    unread: frozenset[str] = frozenset()
    memory: bool = False


@dataclass(frozen=True)
class Start:
    """The policy that a stage starts or resumes from.

    Attributes:
        weights: checkpoint that the weights are loaded from; with `carries`, those below the adapters. None: the
            recipe's model.
        resumes: the newest checkpoint is of this stage: it continues with its optimiser.
        carries: the adapters of the newest checkpoint continue to train.
        refers: log-probabilities of the reference policy are needed.
        reference: checkpoint of the reference policy; None: the policy as it is loaded.
        texts: training texts for the tokenizer of a scratch model.
    """

    weights: Path | None = None
    resumes: bool = False
    carries: bool = False
    refers: bool = False
    reference: Path | None = None
    texts: Sequence[str] = ()


@dataclass(frozen=True)
class TrainingJob:
    """Task of a trainer: one policy in one stage.

    Attributes:
        settings: of the optimiser and the loss.
        needs: columns that credit reads.
        ranks: the processes that train; this process is rank 0.
        compute: where the computations of this process run, one at a time.
        image: returns the file of an image by its hash.
        note: reports a line to the user.
    """

    recipe: Recipe
    settings: TrainSettings
    start: Start
    needs: Collection[str]
    ranks: Ranks
    compute: Compute
    image: Callable[[str], bytes]
    note: Callable[[str], None]


class TrainerBackend(ABC):
    """Keeps a policy and trains it. Its constructor takes `job`, a `TrainingJob`, and its settings.

    The loop calls `open`, `begin` and, for a checkpoint, `load`, in this order, and awaits each call before the next.
    Rollouts may continue meanwhile: a call must not block the event loop for long unless `job.compute` does.

    Attributes:
        capabilities: what it can do; read from the class, before it is made.
    """

    capabilities: ClassVar[TrainerCapabilities] = TrainerCapabilities()

    @abstractmethod
    async def open(self) -> LoadedModel:
        """Finds the policy of `job.start`, and its tokenizer. Engines are made of the result before `begin`.

        Returns:
            The model. A trainer without the feature `any_engine` may leave `model` None.
        """

    @abstractmethod
    async def begin(self) -> None:
        """Gets ready to train: optimiser, adapters, reference policy. The policy is that of `open`.

        Raises:
            TrainError: the policy cannot be trained with these settings.
        """

    @abstractmethod
    async def logprobs(self, samples: Sequence[TrainingSample], *, reference: bool = False) -> list[Floats]:
        """Log-probabilities of the samples' trained tokens, at each sample's temperature (0 counts as 1).

        Args:
            reference: under the reference policy instead of the trained one.

        Returns:
            float32 [n] per sample; 0 for tokens that do not train.
        """

    async def column(self, name: Column, samples: Sequence[TrainingSample]) -> list[Floats]:
        """A column of `capabilities.columns`, in the form of `logprobs`; never `ref_logprob`: see `logprobs`."""
        raise TrainError(f"{type(self).__name__} declares the column {name}, and does not compute it")

    async def fit_column(
        self, name: Column, samples: Sequence[TrainingSample], targets: Sequence[Floats] | None = None
    ) -> dict[str, float]:
        """Trains the critic or the reward model that computes a column. Returns metrics.

        Args:
            samples: with the episode's reward.
            targets: of `value`, in the form of `logprobs`; NaN where a token has none.
        """
        raise TrainError(f"{type(self).__name__} declares the column {name}, and does not train it")

    @abstractmethod
    async def update(self, samples: Sequence[TrainingSample], *, seed: int, progress: float) -> dict[str, float]:
        """One iteration of policy optimisation on the loss `job.settings.loss`, which is a named one with its settings,
        or a function of log-probabilities (`load_loss`).

        Args:
            seed: of the order in which episodes are drawn.
            progress: finished share of the training, 0 to 1.

        Returns:
            Metrics (docs/metrics.md).

        Raises:
            DeadPolicy: the policy's log-probabilities are not finite.
            TrainError: nothing to train on, or a loss is not finite.
        """

    async def accumulate(self, samples: Sequence[TrainingSample], *, progress: float) -> None:
        """Adds the gradient of some groups of the next `update`, which then gets all samples. For `train.stream`; with
        the feature `streaming`.

        Args:
            progress: as for `update`.
        """
        raise TrainError(f"{type(self).__name__} declares the feature streaming, and does not implement it")

    async def learn(
        self, samples: Sequence[TrainingSample], groups: Sequence[Group], *, seed: int, progress: float
    ) -> dict[str, float]:
        """One iteration of learning. Default: `update` on the samples, or nothing without samples.

        Args:
            groups: all groups of the iteration, for a trainer that reads episodes.
            seed, progress: as for `update`.

        Returns:
            Metrics.
        """
        return await self.update(samples, seed=seed, progress=progress) if samples else {}

    def recorded(self) -> Sequence[TokenRecord]:
        """Numbers of the tokens of `train.record_tokens` groups in the last update. Default: none."""
        return ()

    @abstractmethod
    async def fit(
        self, samples: Sequence[TrainingSample], loss: LossSettings, lr: float, *, fresh: bool = False
    ) -> dict[str, float]:
        """One optimiser step on all of `samples`: supervised (`cross_entropy`, weighed by the advantage), or on
        preferences (the reward is the label).

        Args:
            fresh: with a new optimiser, which leaves the trainer's as it is.

        Returns:
            Metrics, with `loss`.

        Raises:
            TrainError: as `update`.
        """

    @abstractmethod
    async def publish(self, engine: Engine, checkpoint: Path | None = None) -> Any:
        """Gives the policy in a form that the engine's `update` takes: weights in memory, adapters, a path, the name of
        a server's sampler; or a `TextMemory`, which the engine's episodes get in their prompts.

        Args:
            checkpoint: that of an earlier version, to be published instead.
        """

    @abstractmethod
    async def save(self, folder: Path, *, resumes: bool = True) -> Mapping[str, Any]:
        """Writes the policy into a folder, in Hugging Face's format if its weights are here.

        Args:
            resumes: false: the stage has ended. The state needs no optimiser.

        Returns:
            The state for `load`: containers, numbers, text and tensors.
        """

    @abstractmethod
    async def load(self, state: Mapping[str, Any]) -> None:
        """Continues from a state that `save` returned: all of it if `job.start.resumes`, else the policy alone."""

    async def close(self) -> None:  # noqa: B027 (optional)
        """Frees its resources. May be called before `open`."""
