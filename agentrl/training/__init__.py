"""Training: samples (tokens with one advantage each), packed as a prefix tree, and a loss that is selected by name.

The trainer is independent of the algorithm: `agentrl.estimators` computes the advantages. Most modules here need
`pip install 'agentrl-framework[train]'`.
"""
