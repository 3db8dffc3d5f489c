"""Chromium for tools and environments: the driver's client, its launching, and the `web` tool."""
