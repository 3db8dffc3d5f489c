"""The proxy: agent programs talk to it as to an API of OpenAI or Anthropic, and their calls become exact episodes."""
