"""Servers that run until a signal stops them: the proxy, and the vLLM servers of a recipe."""
