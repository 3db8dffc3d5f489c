"""Between messages and tokens: tokenizers, the renderer that appends turn by turn, and the tool-call parsers.

Sampled tokens are never tokenised again. The renderer says which tokens to append after a sampled turn, and checks
when a model is loaded that its chat template allows that. Nothing here needs transformers, except `HFTokenizer`.
"""
