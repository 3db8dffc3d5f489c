"""Agents with several prompts or several conversations (docs/your-first-agent.md)."""
