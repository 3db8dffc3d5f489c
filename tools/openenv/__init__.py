"""NAME as an environment of OpenEnv."""
