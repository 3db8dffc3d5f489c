"""Devices for tests of kernels: the CPU, and a GPU if there is one (`make gpu` runs them on a machine that has one)."""

from __future__ import annotations

import pytest
import torch

no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: make gpu, on a machine with one")

DEVICES = ["cpu", pytest.param("cuda", marks=no_gpu)]
