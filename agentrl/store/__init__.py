"""The run directory: every episode of a run, written once, readable while it is written, whole after a kill -9.

`run_dir` is what others use. Below it `shards` (compressed records), `index` (a row per episode in SQLite, rebuilt
from the shards when lost), `lines` (plain JSON lines) and `lock` (one writer a run). `check` proves a run sound.
"""

from agentrl.store.check import check
from agentrl.store.codec import StoredCredit
from agentrl.store.index import EpisodeRow
from agentrl.store.run_dir import RunDir

__all__ = ["EpisodeRow", "RunDir", "StoredCredit", "check"]
