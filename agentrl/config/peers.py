"""Words of other libraries for keys of a recipe: what a newcomer writes, and the key that it is here."""

from __future__ import annotations

_WORDS = {
    "train.lr": "learning_rate actor_lr optim_lr",
    "train.lr_schedule": "lr_scheduler lr_scheduler_type",
    "train.warmup_steps": "warmup num_warmup_steps lr_warmup_steps",
    "train.group_size": "num_generations rollouts_per_example num_rollouts rollout_n n_samples num_samples",
    "train.groups": "train_batch_size generation_batch_size prompts_per_step num_prompts",
    "train.minibatch": "mini_batch_size ppo_mini_batch_size minibatch_size",
    "train.iterations": "max_steps num_steps total_steps total_training_steps num_iterations steps",
    "train.epochs": "num_train_epochs ppo_epochs num_epochs",
    "train.max_grad_norm": "grad_clip clip_grad gradient_clipping",
    "train.activation_checkpointing": "gradient_checkpointing enable_gradient_checkpointing",
    "train.precision": "bf16 fp16 mixed_precision",
    "train.lora": "lora_rank lora_r lora_alpha peft_config peft",
    "train.entropy_bonus": "entropy_coef entropy_coeff entropy_weight",
    "train.kl.coef": "beta kl_coef kl_beta kl_loss_coef kl_penalty",
    "train.loss": "loss_type clip_ratio clip_range clip_eps epsilon epsilon_high clip_ratio_high policy_loss",
    "train.checkpoint_every": "save_steps save_freq save_every",
    "train.keep": "save_total_limit max_actor_ckpt_to_keep load_best_model_at_end keep_last",
    "eval.every": "eval_steps test_freq eval_interval eval_every",
    "sampling.max_tokens": "max_new_tokens max_completion_length max_response_length response_length",
    "sampling.temperature": "temperature",
    "sampling.top_p": "top_p",
    "agent.max_turns": "max_tool_calling_iterations max_assistant_turns max_turns",
    "agent.system": "system_prompt system_message",
    "model.path": "model_name model_name_or_path pretrained checkpoint model_path",
    "credit": "advantage adv_estimator advantage_estimator estimator algorithm gamma lam gae_lambda scale_rewards",
    "rewards": "reward_funcs reward_functions reward_fn rubric verifier",
    "tasks": "dataset train_dataset data env environment",
    "scripts": "oracle policy_script",
    "track": "report_to logger logging wandb",
    "concurrency": "max_concurrent max_concurrency num_workers",
    "seed": "random_seed",
}
PEERS = {word: key for key, words in _WORDS.items() for word in words.split()}
"""The recipe's key for a word of TRL, verl or verifiers. Batch sizes that mean several things are left out."""

BATCHES = ("batch_size", "per_device_train_batch_size", "micro_batch_size", "global_batch_size")
"""Words for a batch, of which a recipe has three."""

_TURNS = ("max_steps", "max_iterations", "max_iter", "num_steps", "steps", "max_rounds")


def told_of_peer(word: str, section: str) -> str | None:
    """Returns the remedy for a word of another library: the key of the recipe. None: no library's word.

    Args:
        section: path of the section that holds the word.
    """
    if word.lower() in BATCHES:
        return (
            "train.groups counts the tasks of an iteration, train.group_size the episodes of each, train.minibatch the "
            "episodes of an update"
        )
    key = "agent.max_turns" if section == "agent" and word.lower() in _TURNS else PEERS.get(word.lower())
    if key is None or key == ".".join(filter(None, [section, word])):
        return None
    inside = f": {{use: NAME, {word}: ...}}" if key == "credit" and word in ("gamma", "lam") else ""
    return f"the key is {key}{inside}"
