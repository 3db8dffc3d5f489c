"""Distributed runs: the same run in one process, in several processes, or on a Ray cluster (docs/scale.md).

A launcher spawns objects (actors) and returns handles, which call their methods. Rollout workers, trainer ranks and
vLLM servers are such objects. The driver plans the episodes, stores them, computes credit and trains.
"""
