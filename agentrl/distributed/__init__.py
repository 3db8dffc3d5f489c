"""Scale: the same run in one process, in several, or on a Ray cluster (docs/scale.md).

A handle calls methods of an object wherever that was put. Rollout workers are such objects, and a pool of them plays
the episodes that the driver plans, stores, credits and trains on.
"""
