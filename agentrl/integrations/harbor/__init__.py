"""Task folders in Harbor's format (docs/adapters.md), read without its package."""
