"""Checkpoints as plain models, in a folder or on the Hugging Face Hub."""
