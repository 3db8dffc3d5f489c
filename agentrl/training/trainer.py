"""The trainer: updates a policy on samples. It is independent of the algorithm: advantages are part of the samples."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.core_model_loading import revert_weight_conversion

from agentrl.config.train import LossSettings, TrainSettings
from agentrl.store.tokens import TokenRecord
from agentrl.training.accumulated import Accumulated
from agentrl.training.auxiliary.models import AuxiliarySettings, auxiliary_model, make_backbone
from agentrl.training.checkpoint import cast
from agentrl.training.inputs import check_anchors, check_samples, lacks, not_finite, teaches
from agentrl.training.losses.batch import TokenBatch
from agentrl.training.losses.loss import ANCHORS, COLUMN_OF, PreferenceLoss
from agentrl.training.losses.objective import Objective
from agentrl.training.losses.registry import load_loss
from agentrl.training.losses.weights import step_divisor, token_weights, weights_within
from agentrl.training.model.columns import Columns, token_columns
from agentrl.training.model.frozen import cast_frozen
from agentrl.training.model.learning_rate import learning_rate
from agentrl.training.model.lora import add_adapters, merged, without_adapters
from agentrl.training.model.packing import Floats, Pack
from agentrl.training.model.policy import Policy, choose_layout, train_top_layers
from agentrl.training.model.routers import router_coefficient
from agentrl.training.model.scores import Entropy
from agentrl.training.model.vision_inputs import VisionInputs, freeze_vision_tower
from agentrl.training.parallel.ranks import Ranks, collective
from agentrl.training.parallel.shards import (
    full_optimizer_state_dict,
    full_state_dict,
    full_tensor,
    load_full_optimizer_state_dict,
    load_full_state_dict,
    shard,
)
from agentrl.training.stats import Stats, mismatch
from agentrl.training.supervised.minibatches import minibatches
from agentrl.training.supervised.preferences import preference_metrics, with_baseline
from agentrl.training.token_record import StepColumns, TokenRecorder
from agentrl.types.errors import DeadPolicy, TrainError
from agentrl.types.sample import TrainingSample


class Trainer:
    """Trains a causal language model on samples, on the model's device.

    The model stays in eval mode: with dropout the recomputed log-probabilities would be those of another policy.
    On a CPU, equal samples, seed and state give bit-identical weights.

    Args:
        model: a model of transformers; trained in place.
        settings: settings of the optimiser and the loss.
        reference, teacher: the frozen policies that `settings.kl` and the loss read. A moving average of the policy
            (`settings.ema_reference`) is made here.
        base: folder that references to user code in the settings are relative to.
        ranks: the processes that train together; each has its shards of the weights and its packs (FSDP2).
        auxiliary: the auxiliary models, as `required_models` returns them; they start as copies of the model.
        eyes: for a model that sees, and samples with images.

    Attributes:
        unpacked: the reason why `packing: auto` trains one row per branch; None if it packs prefix trees.
        recorded: numbers of the tokens of `record_tokens` groups in the last update.

    Raises:
        TrainError: the loss is unknown, the layout of `packing` does not fit the model, or a policy that KL or the loss
            needs is missing.
    """

    def __init__(
        self,
        model: Any,
        settings: TrainSettings,
        *,
        reference: Any | None = None,
        teacher: Any | None = None,
        base: Path = Path(),
        ranks: Ranks | None = None,
        auxiliary: Mapping[str, AuxiliarySettings] | None = None,
        eyes: VisionInputs | None = None,
    ) -> None:
        self._eyes = eyes
        self.settings, self.base, self.ranks, self.role = settings, base, ranks or Ranks(), "trainer"
        self.objective = Objective.of(settings, base)
        if settings.lora is not None:
            add_adapters(model, settings.lora)
        if settings.trainable is not None:
            train_top_layers(model, settings.trainable.top_layers)
        if settings.freeze_vision_tower:
            freeze_vision_tower(model)
        given = {"reference": reference, "teacher": teacher}
        if settings.ema_reference is not None:
            given["ema_reference"] = copy.deepcopy(model)
        check_anchors(self.objective.needs | ({settings.kl.to} if settings.kl is not None else set()), given)
        auxiliary = auxiliary or {}
        bodies = {name: make_backbone(each, model) for name, each in auxiliary.items()}
        self.policy = self._policy(model, settings.activation_checkpointing)
        self.unpacked = choose_layout(self.policy, settings.packing)
        self._router_weight = router_coefficient(model.config.get_text_config(), settings.router_loss)
        self.anchors = {
            name: self._policy(each.requires_grad_(False)) for name, each in given.items() if each is not None
        }
        own = {
            name: self._policy(body, settings.activation_checkpointing)
            for name, body in bodies.items()
            if body is not None
        }
        for policy in (*self.anchors.values(), *own.values()):
            policy.layout = self.policy.layout
        if teacher is not None:
            choose_layout(self.anchors["teacher"], settings.packing)  # it may be of another family
        if self.ranks.size > 1:
            for policy in (self.policy, *self.anchors.values(), *own.values()):
                shard(policy, self.ranks)
        self.optimizer = self._adamw(settings.lr)
        self.auxiliary = {
            name: auxiliary_model(name, each, own.get(name, self.policy), settings.token_budget, self.ranks)
            for name, each in auxiliary.items()
        }
        self.steps = 0
        self.recorded: list[TokenRecord] = []
        self._accumulated: Accumulated | None = None

    @property
    def model(self) -> Any:
        """The trained model of transformers; with several ranks its weights are shards."""
        return self.policy.model

    @collective
    def logprobs(self, samples: Sequence[TrainingSample], *, under: str = "policy") -> list[Floats]:
        """Log-probabilities of the samples' trained tokens, at each sample's temperature (0 counts as 1).

        Args:
            under: the trained `policy`, or another: `reference`, `teacher`, `ema_reference`.

        Returns:
            float32 [n] per sample; 0 for tokens that do not train.
        """
        policy = self.policy if under == "policy" else self.anchors.get(under)
        if policy is None:
            raise lacks(under)
        return self._measure(samples, policy, lambda packed: policy(packed)[0])

    @collective
    def entropies(self, samples: Sequence[TrainingSample]) -> list[Floats]:
        """Entropy (nats) of the policy at the samples' trained tokens; 0 at other tokens."""
        return self._measure(samples, self.policy, lambda packed: self.policy(packed, "value")[1])

    @collective
    def weights(
        self,
        dtype: str | None = None,
        device: str | None = None,
        *,
        checkpoint_names: bool = False,
        adapters: bool = True,
        frozen: bool = True,
    ) -> dict[str, Tensor]:
        """Returns the policy's state dict as of a plain model: shards gathered (on rank 0 only), adapters merged.

        Without shards and adapters these are the weights themselves, which change with the next step.

        Args:
            dtype: "float32" or "bfloat16"; default: unchanged.
            device: target of each gathered tensor: "cpu" for a file, since a GPU may not have room for all of them.
            checkpoint_names: use the names of the family's checkpoints, which other programs load. transformers may
                use other names in memory (it fuses experts).
            adapters: false: the base weights without LoRA's part.
            frozen: false: without weights that never change because no gradient reaches them. Not with LoRA, whose
                merge changes them, and not with `checkpoint_names`.
        """
        state = full_state_dict(self.model, device=device)
        if self.ranks.rank:
            return {}
        if not frozen:
            parameters = self.model.named_parameters(remove_duplicate=False)
            fixed = {name for name, parameter in parameters if not parameter.requires_grad}
            state = {name: tensor for name, tensor in state.items() if name not in fixed}
        state = self._plain(state) if adapters else without_adapters(state)
        if checkpoint_names:
            state = dict(revert_weight_conversion(self.model, state))
        return state if dtype is None else cast(state, getattr(torch, dtype))

    @collective
    def update(self, samples: Sequence[TrainingSample], seed: int, progress: float = 0.0) -> dict[str, float]:
        """One iteration of policy optimisation: `epochs` passes over minibatches of whole episodes.

        Args:
            seed: seed of the order in which episodes are drawn.
            progress: finished share of the training, 0 to 1: for `lr_schedule`, and the weight of KL.

        Returns:
            Means over steps: loss (entropy bonus included), grad_norm (before clipping). Means over trained tokens:
            ratio_mean, clip_fraction, entropy (nats), kl_old (k3 estimate of KL(old policy || policy)).
            With KL in the loss also kl_ref (its value), with importance weights importance_mean and
            importance_cut, the share of tokens at or beyond a bound; of a mixture of experts with a router loss also
            router_loss (not part of loss).
            mismatch_mean, mismatch_max: |engine's - trainer's log-probability| before the first step; with
            old_logprobs "engine", over the first step's tokens only. tokens: trained. forwarded: with gradient;
            packing_ratio: the samples' tokens for each of them. lr, steps: of the optimiser, so far.

        Raises:
            DeadPolicy: the policy's log-probabilities are not finite.
            TrainError: nothing to train on, or a loss or gradient is not finite. The failed step changes no weight.
        """
        check_samples(samples)
        if self._accumulated is not None:
            return self._finish(samples, progress)
        settings, stats, objective = self.settings, Stats(), self.objective.at(progress)
        rng, recorder = np.random.default_rng(seed), TokenRecorder(samples, settings.record_tokens)
        bonus = settings.entropy_bonus if teaches(samples) else 0.0  # alone it would make the policy uniform
        whole_groups = objective.scope == "group"
        batches = [
            batch
            for _ in range(settings.epochs)
            for batch in minibatches(samples, settings.minibatch, rng, whole_groups)
        ]
        further = self._further(samples, objective)
        before = {}  # sample index -> log-probabilities before the first step
        if settings.old_logprobs == "recompute":
            # The first step needs no recomputation: its own forward pass is the old policy's.
            later = sorted({index for batch in batches[1:] for index in batch} - set(batches[0]))
            before = dict(zip(later, self.logprobs([samples[index] for index in later]), strict=True))
        for number, batch in enumerate(batches):
            chosen = [samples[index] for index in batch]
            old = [sample.behaviour_logprob for sample in chosen] if settings.old_logprobs == "engine" else None
            if number and old is None:
                old = [before[index] for index in batch]
            weights = token_weights(chosen, objective.aggregation, settings.token_norm)
            own = {name: [column[index] for index in batch] for name, column in further.items()}
            kept = recorder.columns(batch)
            seen = self._backward(chosen, weights, old, objective, bonus, stats, own, kept)
            recorder.keep(batch, seen, kept, self.ranks)
            lr = self._step(chosen, stats, progress)
            if not number:
                before |= dict(zip(batch, seen, strict=True))
        self.recorded = recorder.records()
        gaps = mismatch((samples[index], values) for index, values in before.items())
        return {**stats.summary(self.ranks), **gaps, "lr": lr, "steps": float(self.steps)}

    @collective
    def accumulate(self, samples: Sequence[TrainingSample], progress: float = 0.0) -> None:
        """Adds the gradient of some groups of the next `update`, before its other groups are there.

        `update` then gets all samples, divides the gradient by their number (`step_divisor`) and takes the step. The
        gradient is the sum over calls: equal calls in the same order give bit-identical weights on a CPU.

        Args:
            samples: whole groups, which earlier calls had none of.
            progress: as for `update`.

        Raises:
            DeadPolicy: the policy's log-probabilities are not finite.
            TrainError: a loss is not finite: what was added before is dropped, too. Or the model has a router loss.
        """
        if not any(sample.loss_mask.any() for sample in samples):
            return
        check_samples(samples)
        if self._router_weight:
            raise TrainError(
                "the loss of routers is a mean over all tokens of a step, which are not there yet",
                place="train.stream",
                remedy="train.stream=false, or train.router_loss=0",
            )
        parts, bonus = self._accumulated or Accumulated(), self.settings.entropy_bonus
        self._accumulated = parts
        if bonus and not parts.samples and not teaches(samples):
            parts.waiting.append(samples)
            return
        for each in (*parts.waiting, samples):
            self._add(each, parts, bonus, progress)
        parts.waiting.clear()

    def _add(self, samples: Sequence[TrainingSample], parts: Accumulated, bonus: float, progress: float) -> None:
        """Adds the gradient of a group to that of the next step."""
        settings, objective = self.settings, self.objective.at(progress)
        weights = weights_within(samples, objective.aggregation, settings.token_norm)
        old = [sample.behaviour_logprob for sample in samples] if settings.old_logprobs == "engine" else None
        further = self._further(samples, objective)
        try:
            seen = self._backward(samples, weights, old, objective, bonus, parts.stats, further)
        except TrainError:
            self._accumulated = None
            raise
        parts.add(samples, seen)

    def _finish(self, samples: Sequence[TrainingSample], progress: float) -> dict[str, float]:
        """Takes the step on the gradient that `accumulate` has added up.

        Raises:
            TrainError: the samples are not those of `accumulate`.
        """
        parts, self._accumulated = self._accumulated, None
        assert parts is not None
        for each in parts.waiting:
            self._add(each, parts, 0.0, progress)
        if (why := parts.differ_from(samples)) is not None:
            self.model.zero_grad()
            raise TrainError(
                f"{why}: its credit depends on other groups, which were not there when it was streamed",
                place="train.stream",
                remedy="train.stream=false, or an estimator that compares the episodes of a group only",
            )
        divisor = step_divisor(samples, self.objective.aggregation)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(divisor)
        parts.stats.losses = [sum(parts.stats.losses) / divisor]
        lr = self._step(samples, parts.stats, progress)
        gaps = mismatch(zip(parts.samples, parts.seen, strict=True))
        return {**parts.stats.summary(self.ranks), **gaps, "lr": lr, "steps": float(self.steps)}

    @collective
    def fit(
        self, samples: Sequence[TrainingSample], loss: LossSettings, lr: float, *, fresh: bool = False
    ) -> dict[str, float]:
        """One optimiser step of supervised or preference training on all of `samples`.

        Args:
            loss: `cross_entropy`, which weighs each token by its advantage (1 in demonstrations), or a preference loss,
                which reads each episode's reward as its label.
            fresh: use a new optimiser without earlier steps.

        Returns:
            As `update`, without metrics that need an old policy; for a preference loss also `preference_metrics`.

        Raises:
            TrainError: as `update`; or the loss needs a reference policy, and the trainer has none.
        """
        check_samples(samples)
        stats, objective, about = Stats(), Objective.alone(loss, self.base), load_loss(loss, self.base)[0]
        labelled = about if isinstance(about, PreferenceLoss) else None
        further = self._further(samples, objective)
        if labelled is not None and labelled.baseline:
            samples = with_baseline(samples, self.logprobs)
        weights = token_weights(samples, objective.aggregation)
        seen = self._backward(samples, weights, None, objective, None, stats, further)
        self._apply(self._adamw(lr) if fresh else self.optimizer, lr, samples, stats)
        self.steps += not fresh
        found = {} if labelled is None else preference_metrics(samples, seen, further.get("ref_logprob"))
        return {**stats.summary(self.ranks), **found, "lr": lr}

    @collective
    def restart(self) -> None:
        """Starts with a new optimiser and a step count of 0."""
        self.optimizer, self.steps = self._adamw(self.settings.lr), 0

    @collective
    def state_dict(self) -> dict[str, Any]:
        """Returns the state for an exact resume together with the weights: optimiser, number of steps, and the moving
        average of the policy.

        With LoRA also the adapters, which cannot be recovered from merged weights; they belong to the base model.
        """
        state: dict[str, Any] = {"optimizer": full_optimizer_state_dict(self.optimizer), "steps": self.steps}
        if (ema := self.anchors.get("ema_reference")) is not None:
            state["ema_reference"] = {name: full_tensor(each.detach()) for name, each, _ in self._pairs(ema)}
        return state if self.settings.lora is None else {**state, "adapters": self.adapters()}

    @collective
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the result of `state_dict`. The trainer keeps its settings: a changed learning rate takes effect."""
        load_full_optimizer_state_dict(self.optimizer, state["optimizer"], self.ranks)
        load_full_state_dict(self.model, state.get("adapters", {}), self.ranks)
        if (ema := self.anchors.get("ema_reference")) is not None:
            load_full_state_dict(ema.model, state.get("ema_reference", {}), self.ranks)
        fresh = self._adamw(self.settings.lr)
        for group, now in zip(self.optimizer.param_groups, fresh.param_groups, strict=True):
            group.update({name: value for name, value in now.items() if name != "params"})
        self.steps = int(state["steps"])

    @collective
    def load_adapters(self, adapters: dict[str, Tensor]) -> None:
        """Restores the result of `adapters`."""
        load_full_state_dict(self.model, adapters, self.ranks)
        if (ema := self.anchors.get("ema_reference")) is not None:
            load_full_state_dict(ema.model, adapters, self.ranks)

    @collective
    def adapters(self) -> dict[str, Tensor]:
        """LoRA's own weights; none without LoRA."""
        own = [(name, parameter) for name, parameter in self.model.named_parameters() if ".lora_" in name]
        return {name: full_tensor(parameter.detach()) for name, parameter in own}

    def _plain(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return state if self.settings.lora is None else merged(state, self.settings.lora)

    def _policy(self, model: Any, checkpointing: bool = False) -> Policy:
        own = self.settings
        if own.precision == "bfloat16" and self.ranks.size == 1:
            cast_frozen(model)
        return Policy(
            model,
            precision=own.precision,
            exact_head=own.head_precision == "float32",
            logits_mb=own.logits_mb,
            checkpointing=checkpointing,
            eyes=self._eyes,
        )

    def _measure(self, samples: Sequence[TrainingSample], policy: Policy, of: Callable[[Pack], Tensor]) -> list[Floats]:
        """One number per trained token, in arrays as long as the samples; without gradient."""
        out = [np.zeros(len(sample.token_ids), np.float32) for sample in samples]
        with torch.no_grad():
            packs = self.ranks.packs(samples, self.settings.token_budget, policy.layout)
            for packed, own in policy.seeing(samples, packs):
                found = of(packed)
                if own:
                    packed.scatter(found.cpu().numpy(), out)
        self.ranks.all_reduce(out)
        return out

    def _further(self, samples: Sequence[TrainingSample], objective: Objective) -> dict[str, list[Floats]]:
        """The columns of other policies that an objective needs, before the first step."""
        needs = [name for name in ANCHORS if name in objective.needs]
        return {COLUMN_OF[name]: self.logprobs(samples, under=name) for name in needs}

    def _step(self, samples: Sequence[TrainingSample], stats: Stats, progress: float) -> float:
        """Takes a step of the policy on the accumulated gradient; returns its learning rate."""
        own = self.settings
        lr = learning_rate(own.lr, self.steps, own.warmup_steps, own.lr_schedule, progress)
        self._apply(self.optimizer, lr, samples, stats)
        self.steps += 1
        self._follow()
        return lr

    def _follow(self) -> None:
        """Moves the average of the policy, where one is kept and a step of it is due."""
        settings, ema = self.settings.ema_reference, self.anchors.get("ema_reference")
        if settings is None or ema is None or self.steps % settings.every:
            return
        with torch.no_grad():
            for _, average, current in self._pairs(ema):
                average.mul_(settings.decay).add_(current, alpha=1 - settings.decay)

    def _pairs(self, ema: Policy) -> list[tuple[str, nn.Parameter, nn.Parameter]]:
        """The weights that train: the name, the average, the policy's own."""
        averages = dict(ema.model.named_parameters())
        return [(name, averages[name], each) for name, each in self.model.named_parameters() if each.requires_grad]

    def _adamw(self, lr: float) -> torch.optim.AdamW:
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": self.settings.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=lr, betas=self.settings.betas, fused=True)

    def _backward(
        self,
        samples: Sequence[TrainingSample],
        weights: list[Floats],
        old: list[Floats] | None,
        objective: Objective,
        entropy_bonus: float | None,
        stats: Stats,
        further: Mapping[str, list[Floats]] | None = None,
        kept: StepColumns | None = None,
    ) -> list[Floats]:
        """Accumulates the gradient of the weighted loss of all `samples` over packs.

        Args:
            old: old log-probabilities by sample; None: the policy is still the old one.
            entropy_bonus: None: compute neither entropy nor the sums that compare policies (supervised training).
            further: the columns that the objective needs, by sample.
            kept: receives numbers of each token.

        Returns:
            The policy's log-probabilities, by sample.
        """
        seen, faulty = ([np.zeros(len(sample.token_ids), np.float32) for sample in samples] for _ in range(2))
        total, dead = 0.0, 0.0
        packs = self.ranks.packs(samples, self.settings.token_budget, self.policy.layout)
        columns = token_columns(samples, weights, old, further)
        logprob_grads = None
        if objective.scope != "token" and len(packs) * self.ranks.size > 1:
            logprob_grads = self._precompute_logprob_grads(samples, columns, objective)
        entropy: Entropy = "none" if entropy_bonus is None else "gradient" if entropy_bonus else "value"
        if "entropy" in objective.needs:
            entropy = "gradient"
        sizes = {"tokens": float(sum(len(packed.token_ids) for packed, own in packs if own))}
        self.policy.balances, tokens = self._router_weight > 0, self.ranks.all_reduce_by_name(sizes)["tokens"]
        for packed, own in self.policy.seeing(samples, packs):
            logprob, entropies = self.policy(packed, entropy)
            if not own:
                (logprob.sum() * 0.0).backward()
                continue
            batch = self._batch(packed.gather, columns, logprob, entropies if "entropy" in objective.needs else None)
            if logprob_grads is None:
                per_token, clipped = objective(batch)
                value = surrogate = (per_token * batch.weight).sum()
            else:
                per_token, clipped, *grads = (self._tensor(packed.gather(column)) for column in logprob_grads)
                value = (per_token * batch.weight).sum()
                inputs = [logprob, entropies][: len(grads)]
                surrogate = sum((each * grad).sum() for each, grad in zip(inputs, grads, strict=True))
            if (imbalance := self.policy.imbalance) is not None:
                imbalance = imbalance * (len(packed.token_ids) / tokens)
                surrogate = surrogate + self._router_weight * imbalance
                stats.router_loss += imbalance.item()
            if entropy_bonus:
                bonus = entropy_bonus * (entropies * batch.weight).sum()
                value, surrogate = value - bonus, surrogate - bonus
            if not torch.isfinite(value):
                packed.scatter((~torch.isfinite(per_token.detach())).float().cpu().numpy(), faulty)
                dead += float(not torch.isfinite(logprob).all())
            surrogate.backward()  # type: ignore[no-untyped-call]
            packed.scatter(logprob.detach().cpu().numpy(), seen)
            stats.add_pack(packed, samples)
            if entropy_bonus is not None:
                stats.add_tokens(batch, clipped, entropies, objective)
                if kept is not None:
                    kept.add(packed, batch, clipped, entropies)
            total += value.item()
        self.policy.balances = False
        summed = self.ranks.all_reduce_by_name({"loss": total, "dead": dead})
        total = summed["loss"]
        if summed["dead"]:
            self.model.zero_grad()
            raise DeadPolicy(f"the policy's log-probabilities are not finite in step {len(stats.grad_norms) + 1}")
        if not math.isfinite(total):
            self.ranks.all_reduce(faulty)
            raise self._not_finite(
                "loss", [sample for sample, bad in zip(samples, faulty, strict=True) if bad.any()], stats
            )
        self.ranks.all_reduce(seen)
        stats.losses.append(total)
        return seen

    def _apply(
        self, optimizer: torch.optim.Optimizer, lr: float, samples: Sequence[TrainingSample], stats: Stats
    ) -> None:
        """Clips the gradient and takes the optimiser step, if the gradient is finite."""
        norm = full_tensor(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm)).item()
        if not math.isfinite(norm):
            raise self._not_finite("gradient", samples, stats)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        optimizer.zero_grad()
        stats.grad_norms.append(norm)

    def _precompute_logprob_grads(
        self, samples: Sequence[TrainingSample], columns: Columns, objective: Objective
    ) -> tuple[list[np.ndarray[Any, Any]], ...]:
        """Returns each token's loss, its clipping, and the gradient of the whole sum with respect to its
        log-probability (and to its entropy, if the objective needs that), as arrays of the samples' lengths. For an
        objective that couples tokens of several packs.

        It takes one forward pass without gradient. Given these gradients, the passes with gradient may run pack by
        pack, and the result is exact.
        """

        def flat(column: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
            return np.concatenate([values[sample.loss_mask] for values, sample in zip(column, samples, strict=True)])

        inputs = [self._tensor(flat(self.logprobs(samples))).requires_grad_()]
        if "entropy" in objective.needs:
            inputs.append(self._tensor(flat(self.entropies(samples))).requires_grad_())
        batch = self._batch(flat, columns, *inputs)
        per_token, clipped = objective(batch)
        whole = (per_token * batch.weight).sum()
        grads = torch.autograd.grad(whole, inputs, allow_unused=True, materialize_grads=True)
        ends = np.cumsum([sample.loss_mask.sum() for sample in samples])[:-1]
        out = []
        for found in (per_token.detach(), clipped, *grads):
            values = found.cpu().numpy()
            column = [np.zeros(len(sample.token_ids), values.dtype) for sample in samples]
            for into, sample, part in zip(column, samples, np.split(values, ends), strict=True):
                into[sample.loss_mask] = part
            out.append(column)
        return tuple(out)

    def _batch(
        self,
        take: Callable[[list[np.ndarray[Any, Any]]], np.ndarray[Any, Any]],
        columns: Columns,
        logprob: Tensor,
        entropy: Tensor | None = None,
    ) -> TokenBatch:
        """Builds the input of a loss from the columns, with `take`. Without old log-probabilities the policy is the old
        one."""
        flat = {name: self._tensor(take(column)) for name, column in columns.items()}
        return TokenBatch(logprob=logprob, entropy=entropy, **{"old_logprob": logprob.detach(), **flat})

    def _tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(array).to(self.model.device)

    def _not_finite(self, what: str, samples: Sequence[TrainingSample], stats: Stats) -> TrainError:
        """The error to raise. Drops the gradient, so that weights and optimiser do not change."""
        self.model.zero_grad()
        return not_finite(what, samples, len(stats.grad_norms) + 1)
