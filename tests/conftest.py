"""Property tests: other examples in every run, but in CI the same ones, so that a red run can be repeated."""

import os

import hypothesis

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    hypothesis.settings.load_profile("ci")
