"""Property tests: other examples in every run, but in CI the same ones, so that a red run can be repeated. No example
has a deadline: the machine may be busy.

One number of threads for every process that a test starts: sums of two threads and of one differ in their last bits."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import hypothesis

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")
