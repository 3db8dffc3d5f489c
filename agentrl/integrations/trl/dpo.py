"""DPO on episodes: TRL's trainer without tokenisation, with loss only on tokens sampled by the policy."""

from __future__ import annotations

from typing import Any

import torch

from agentrl.types.errors import needs

with needs("trl"):
    from trl import DPOTrainer
    from trl.trainer.dpo_trainer import DataCollatorForPreference

COLUMNS = ["prompt_ids", "chosen_ids", "rejected_ids", "chosen_mask", "rejected_mask"]


class EpisodeCollator(DataCollatorForPreference):  # type: ignore[misc]
    """TRL's collator, with `completion_mask` 0 at observations too. Does not cut: `max_length` must be None."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """Collates a batch, [2 B, T]: the chosen episodes, then the rejected."""
        batch: dict[str, Any] = super().torch_call(examples)
        masks = [[*[0] * len(e["prompt_ids"]), *e[f"{which}_mask"]]
                 for which in ("chosen", "rejected") for e in examples]  # fmt: skip
        for row, mask in zip(batch["completion_mask"], masks, strict=True):
            row[: len(mask)] = torch.tensor(mask)
        return batch


class EpisodeDPOTrainer(DPOTrainer):  # type: ignore[misc]
    """DPOTrainer for `datasets.preference_dataset`; takes DPOTrainer's arguments. DPOConfig needs `max_length=None`."""

    def __init__(self, *args: Any, processing_class: Any, **kwargs: Any) -> None:
        pad = processing_class.pad_token_id
        collator = EpisodeCollator(pad_token_id=processing_class.eos_token_id if pad is None else pad)
        super().__init__(*args, processing_class=processing_class, data_collator=collator, **kwargs)

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        return dataset  # already tokenised

    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns = [*COLUMNS, "ref_chosen_logps", "ref_rejected_logps"]
