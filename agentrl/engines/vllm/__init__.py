"""The vLLM engine: starts servers or connects to running ones, and transfers weights and adapters to them."""
