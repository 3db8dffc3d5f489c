"""The families of attacks by name."""

from __future__ import annotations

from tests.attacks.cases import Family
from tests.attacks.families.answers import Answers
from tests.attacks.families.archives import Streams, Trees
from tests.attacks.families.calls import Calls
from tests.attacks.families.checks import Checks
from tests.attacks.families.code import Code
from tests.attacks.families.doors import Completions, Numbers, Replies, Requests
from tests.attacks.families.leftovers import Leftovers
from tests.attacks.families.network import Network
from tests.attacks.families.programs import Programs
from tests.attacks.families.queries import Queries
from tests.attacks.families.verdicts import Verdicts

_ALL = (
    Programs(), Verdicts(), Code(), Leftovers(), Calls(), Trees(), Network(), Checks(), Answers(), Queries(),
    Streams(), Requests(),
    Completions(), Replies(), Numbers(),
)  # fmt: skip
FAMILIES: dict[str, Family] = {family.name: family for family in _ALL}
