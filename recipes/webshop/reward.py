"""WebShop's reward for a purchase: attributes, options and price that fit, times how well the type fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def terms(product: Any, options: Mapping[str, str], goal: Mapping[str, Any]) -> dict[str, float]:
    """The terms of WebShop's reward (arXiv:2207.01206, section 3.2; `get_reward` of its goal.py), and the `reward`.

        reward = type * (attributes + options + price) / (attributes asked for + options asked for + 1)

    Args:
        options: those that were chosen, by name.
        goal: `attributes`, `options` by name, `price_upper`, and what is asked for: `nouns`, `query`, `path`.
    """
    wanted, choices = goal["attributes"], goal["options"]
    attributes = sum(_has(product, attribute) for attribute in wanted)
    chosen = sum(options.get(name, "").lower() == value.lower() for name, value in choices.items())
    price = float(product.price <= goal["price_upper"])
    kind = _type(product, goal)
    return {
        "type": kind,
        "attributes": attributes / len(wanted),
        "options": chosen / len(choices) if choices else 1.0,
        "price": price,
        "reward": kind * (attributes + chosen + price) / (len(wanted) + len(choices) + 1),
    }


def _has(product: Any, attribute: str) -> bool:
    """Whether the product has an attribute, or says so in its title, features or description."""
    said = (product.title, " ".join(product.features), product.description)
    return attribute in product.attributes or any(attribute in text.lower() for text in said)


def _type(product: Any, goal: Mapping[str, Any]) -> float:
    """`get_type_reward` of WebShop's goal.py, with the nouns of the kind for those of the title."""
    wanted = set(goal["nouns"])
    title = len(wanted & set(product.kind.nouns)) / len(wanted) if wanted else 0.2
    same = product.kind.query == goal["query"] or _shared(product.kind.path, goal["path"]) >= 2 or title > 0.2
    if title == 0.0:
        return 0.0
    if title < 0.1:
        return 0.1
    return 1.0 if same else 0.5


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    return len({*one} & {*other})
