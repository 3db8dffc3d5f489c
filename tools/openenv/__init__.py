"""OpenEnv environment of recipe NAME."""
