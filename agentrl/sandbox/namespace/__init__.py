"""The `namespace` backend: Linux namespaces, without a daemon."""
