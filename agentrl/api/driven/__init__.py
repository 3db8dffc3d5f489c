"""Recipes whose episodes are driven from outside."""
