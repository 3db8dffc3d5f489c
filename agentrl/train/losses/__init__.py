"""Policy losses on flat tensors of one element per trained token, and how tokens are weighted.

A loss knows nothing of samples in memory: it takes a `TokenBatch` and returns a number per token. The trainer sums
them with the weights of `token_weights`. Names and settings are in `agentrl.config.loss`, free of torch.
"""

from agentrl.train.losses.batch import TokenBatch
from agentrl.train.losses.objective import Objective
from agentrl.train.losses.weights import token_weights

__all__ = ["Objective", "TokenBatch", "token_weights"]
