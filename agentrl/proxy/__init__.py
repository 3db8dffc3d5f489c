"""The proxy: serves the APIs of OpenAI and Anthropic to agent programs, and records calls as token-exact episodes."""
