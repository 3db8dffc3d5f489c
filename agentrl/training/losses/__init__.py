"""Policy losses on flat tensors of one element per trained token, and how tokens are weighted.

A loss knows nothing of samples in memory: it takes a `TokenBatch` and returns a number per token. The trainer sums
them with the weights of `token_weights`. `registry` and `settings` are free of torch.
"""
