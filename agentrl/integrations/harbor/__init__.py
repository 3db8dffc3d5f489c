"""Task folders in the format of Harbor (docs/adapters.md): read without its package."""
