"""`make gpu`: everything that must be seen once on a machine with a GPU, in eight minutes and without a network.

`python -m scripts.gpu` plays the phases, each in a process of its own (docs/gpu.md).
"""
