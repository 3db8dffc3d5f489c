"""Converts messages to tokens and back: tokenizers, the renderer that appends turn by turn, and the tool-call parsers.

Sampled tokens are never tokenised again. The renderer computes the tokens to append after a sampled turn, and checks
on loading a model that its chat template allows that. Only `HFTokenizer` needs transformers.
"""
