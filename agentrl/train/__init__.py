"""Training: samples, tokens with one advantage each, packed as a prefix tree, and a named loss on them.

Blind to algorithms: what makes a token good or bad was decided in `agentrl.credit`. `settings` and `sample` are free
of torch; everything else here needs `pip install 'agentrl[train]'`.
"""
