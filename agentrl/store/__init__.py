"""The run directory: every episode of a run, written once, readable during the run, intact after a kill -9.

`run_dir` writes a run, `reader` reads one. They use `shards` (compressed records), `index` (one SQLite row per episode,
rebuilt from the shards when lost), `lines` (plain JSON lines) and `lock` (one writer per run). `check` verifies a run.
"""

from agentrl.store.check import check
from agentrl.store.codec import StoredCredit
from agentrl.store.index import EpisodeRow
from agentrl.store.reader import RunReader
from agentrl.store.run_dir import RunDir

__all__ = ["EpisodeRow", "RunDir", "RunReader", "StoredCredit", "check"]
