"""The proxy: agent programs talk to it as to the OpenAI API, and their calls become token-exact episodes."""
