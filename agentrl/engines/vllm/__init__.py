"""The vLLM engine: servers started or attached, weights and adapters pushed to them."""
