"""TRL's trainers on stored episodes, exact in tokens and masks (extra `trl`, docs/trainers.md).

`datasets`: data for SFT and preferences; `dpo`: trainer for preferences; `grpo`: our token-level credit in
GRPOTrainer; `async_grpo`: the same in AsyncGRPOTrainer. TRL is not patched, only configured and subclassed.
"""
