"""Loading models and tokenizers of transformers, and building small ones from nothing."""
