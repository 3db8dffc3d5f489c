"""TRL's trainers on stored episodes, exact in tokens and masks (extra `trl`, docs/training.md).

`datasets`: supervised warm starts and preferences, `dpo`: the trainer of the latter. `grpo`: our credit, token by
token, in GRPOTrainer. `async_grpo`: the same in AsyncGRPOTrainer. TRL stays as it is: what it cannot be told by
arguments is told by a subclass.
"""
