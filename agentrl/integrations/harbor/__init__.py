"""Task folders in Harbor's format (docs/harbor.md), read without its package."""
