"""OpenEnv server."""
