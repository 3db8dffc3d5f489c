"""Credit assignment: how much each turn of each episode should be made more or less likely.

A pure function: it maps a `CreditTable` of groups to one number per turn (or token). All statistics are computed on the
explicit (group, trajectory, turn) table, never on the rows of a tensor. Estimators are in one file per family and are
found by name in `registry`; a user's function that takes a table is an estimator, too.
"""

from agentrl.estimators.estimator import Advantages, Estimator, estimator
from agentrl.estimators.registry import CreditAssigner, EpisodeCredit
from agentrl.estimators.table import CreditTable

__all__ = ["Advantages", "CreditAssigner", "CreditTable", "EpisodeCredit", "Estimator", "estimator"]
