"""What recipes make of episodes that are written by hand."""

from __future__ import annotations

import numpy as np

from agentrl.config.recipe import Recipe
from tests.estimators.tables import Member, Step, run, table_of


def credited(recipe: Recipe) -> list[float]:
    """The credit of every turn. One episode goes a, b and succeeds; one goes a, b and fails; one goes c and fails."""
    good, bad = [Step("a", 0, 1), Step("b", 0, 1)], [Step("c", 0, 1)]
    table = table_of([Member("g", 1.0, good), Member("g", 0.0, good), Member("g", 0.0, bad)])
    table = table.with_columns(action=["x", "y", "x", "y", "z"])
    settings = {"std": "none", **recipe.credit.settings}
    return [round(value, 3) for value in np.asarray(run(str(recipe.credit.use), table, **settings).turn).tolist()]
