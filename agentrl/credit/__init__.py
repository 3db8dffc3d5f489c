"""Credit: which turn of which episode is to be made more likely, and by how much.

A pure function: a `CreditTable` of groups in, one number per turn (or token) out. All statistics are taken on the
explicit (group, trajectory, turn) table, never on the rows of a tensor. Estimators live one file a family and are
found by name in `registry`; anything of the user's that takes a table is an estimator too.
"""

from agentrl.credit.estimator import Advantages, Estimator, estimator
from agentrl.credit.registry import CreditAssigner, EpisodeCredit
from agentrl.credit.table import CreditTable

__all__ = ["Advantages", "CreditAssigner", "CreditTable", "EpisodeCredit", "Estimator", "estimator"]
