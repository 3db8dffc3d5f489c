"""The `docker` backend: containers of a Docker Engine."""
