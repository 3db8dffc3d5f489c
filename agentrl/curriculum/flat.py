"""Groups whose members all did equally well teach a group-relative estimator nothing."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from agentrl.curriculum.parts import Context, Filter, Group, NoSettings


class ZeroVariance(Filter):
    """Leaves out groups whose rewards are all equal, groups of one included."""

    source = "DAPO, arXiv:2503.14476, without its resampling"
    certainty = "A"

    def select(self, groups: list[Group], wanted: int, context: Context) -> list[Group]:
        return [group for group in groups if not group.flat]


class DapoSettings(NoSettings):
    """`rounds`: of rollouts in one iteration at most."""

    rounds: int = Field(10, gt=0)


class Dapo(Filter):
    """Dynamic sampling: plays more groups until enough are not flat, or `rounds` are over; then trains on the first
    `train.groups` that are not.

    A further round plays as many groups as are missing (verl plays a whole batch and discards the surplus). When the
    rounds are over, what there is trains; verl stops with an error.
    """

    Settings = DapoSettings
    source = "arXiv:2503.14476; volcengine/verl@b178a3c recipe/dapo"
    certainty = "A"

    def more(self, groups: Sequence[Group], wanted: int, rounds: int) -> int:
        missing = wanted - sum(not group.flat for group in groups)
        return max(missing, 0) if rounds < self.settings.rounds else 0

    def select(self, groups: list[Group], wanted: int, context: Context) -> list[Group]:
        return [group for group in groups if not group.flat][:wanted]
