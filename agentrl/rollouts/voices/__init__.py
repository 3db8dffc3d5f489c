"""Voices: who speaks in an episode beside the policy that trains."""
