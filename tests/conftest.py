"""Property tests: other examples in every run, but in CI the same ones, so that a red run can be repeated. No example
has a deadline: the machine may be busy."""

import os

import hypothesis

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")
