"""The shop's products: titles, features, options and prices, generated from a seed, and the search over them."""

from __future__ import annotations

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

COLOURS = ["black", "white", "navy", "grey", "red", "olive", "teal", "beige", "purple", "orange", "yellow", "pink"]
CLOTHES = ["x-small", "small", "medium", "large", "x-large", "xx-large"]
SHOES = ["6", "7", "8", "9", "10", "11", "12"]
FABRIC = ["machine washable", "quick drying", "moisture wicking", "wrinkle free", "organic cotton", "slim fit",
          "long lasting", "hand stitched", "fade resistant", "breathable mesh"]  # fmt: skip
SOLES = ["slip resistant", "memory foam", "arch support", "water resistant", "wide toe box", "rubber outsole",
         "shock absorbing", "breathable lining", "vegan leather", "steel shank"]  # fmt: skip
POWERED = ["fast charging", "noise cancelling", "easy to use", "dust proof", "long battery life", "voice control",
           "energy saving", "overheat protection", "low latency", "splash proof"]  # fmt: skip
HOME = ["easy to clean", "space saving", "easy to assemble", "scratch resistant", "solid wood", "non slip",
        "stain resistant", "fully foldable", "heavy duty", "powder coated"]  # fmt: skip
TABLE = ["dishwasher safe", "bpa free", "leak proof", "double walled", "stainless steel", "microwave safe",
         "stackable design", "heat resistant", "shatter proof", "wide mouth"]  # fmt: skip
FOOD = ["gluten free", "sugar free", "certified organic", "non gmo", "low sodium", "dairy free", "plant based",
        "individually wrapped", "high protein", "artificial colour free"]  # fmt: skip
CARE = ["cruelty free", "fragrance free", "paraben free", "sulfate free", "dermatologist tested", "travel size",
        "oil free", "clinically proven", "alcohol free", "sensitive skin"]  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A kind of product.

    Attributes:
        query: what people call it; WebShop's `query`.
        path: its categories, outermost first.
        nouns: the nouns of `query`: by them the reward compares kinds.
        attributes: those that products of the kind may have.
        options: the values that a product may offer, by the option's name.
        prices: least and greatest, in dollars.
    """

    query: str
    path: tuple[str, ...]
    nouns: tuple[str, ...]
    attributes: list[str]
    options: dict[str, list[str]]
    prices: tuple[int, int]


def _kinds() -> Iterator[Kind]:
    wear, colour = {"color": COLOURS, "size": CLOTHES}, {"color": COLOURS}
    table: list[tuple[tuple[str, ...], list[str], dict[str, list[str]], list[tuple[str, tuple[int, int]]]]] = [
        (("Clothing", "Tops"), FABRIC, wear, 
         [("t-shirts", (9, 40)), ("hoodies", (20, 80)), ("dress shirts", (18, 70))]),
        (("Clothing", "Bottoms"), FABRIC, wear, [("jeans", (25, 95)), ("shorts", (12, 50)), ("leggings", (12, 55))]),
        (("Clothing", "Outerwear"), FABRIC, wear, [("rain jackets", (35, 160)), ("fleece vests", (22, 90))]),
        (("Shoes", "Athletic"), SOLES, {"color": COLOURS, "size": SHOES},
         [("running shoes", (35, 150)), ("hiking boots", (50, 190))]),
        (("Shoes", "Casual"), SOLES, {"color": COLOURS, "size": SHOES},
         [("loafers", (30, 120)), ("sandals", (15, 70)), ("house slippers", (10, 45))]),
        (("Electronics", "Audio"), POWERED, {**colour, "connection": ["bluetooth", "usb-c", "headphone jack"]},
         [("headphones", (20, 240)), ("earbuds", (15, 180)), ("portable speakers", (18, 150))]),
        (("Electronics", "Power"), POWERED, {**colour, "capacity": ["5000mah", "10000mah", "20000mah", "30000mah"]},
         [("power banks", (14, 90)), ("solar chargers", (22, 130))]),
        (("Electronics", "Appliances"), POWERED, {**colour, "plug": ["us plug", "eu plug", "uk plug"]},
         [("desk lamps", (16, 90)), ("tower fans", (35, 140)), ("electric kettles", (20, 95))]),
        (("Home", "Furniture"), HOME, {**colour, "width": ["24 in", "30 in", "36 in", "42 in", "48 in"]},
         [("bookcases", (45, 260)), ("side tables", (60, 320)), ("shoe racks", (18, 90)), ("nightstands", (35, 160))]),
        (("Home", "Textiles"), HOME, {**colour, "size": ["twin", "full", "queen", "king"]},
         [("duvet covers", (25, 130)), ("mattress pads", (30, 150))]),
        (("Kitchen", "Drinkware"), TABLE, {**colour, "capacity": ["12 oz", "16 oz", "20 oz", "32 oz", "40 oz"]},
         [("water bottles", (9, 50)), ("travel mugs", (10, 45)), ("tumblers", (8, 40))]),
        (("Kitchen", "Storage"), TABLE, {**colour, "set": ["set of 2", "set of 4", "set of 6", "set of 10"]},
         [("food containers", (12, 70)), ("mixing bowls", (14, 80))]),
        (("Grocery", "Snacks"), FOOD, {"flavor": ["almond", "apple", "cinnamon", "cocoa", "honey", "mango", "sea salt"],
                                       "pack": ["pack of 1", "pack of 3", "pack of 6", "pack of 12"]},
         [("granola bars", (6, 48)), ("trail mix", (7, 52)), ("rice crackers", (5, 36))]),
        (("Grocery", "Drinks"), FOOD, {"flavor": ["ginger", "jasmine", "lemon", "mint", "peach", "vanilla"],
                                       "pack": ["pack of 1", "pack of 2", "pack of 4", "pack of 8"]},
         [("green tea", (5, 40)), ("ground coffee", (8, 60))]),
        (("Beauty", "Skin"), CARE, {"scent": ["aloe", "citrus", "lavender", "oat", "rose"],
                                    "volume": ["1 fl oz", "2 fl oz", "4 fl oz", "8 fl oz"]},
         [("face moisturizers", (9, 70)), ("hand creams", (6, 35)), ("sunscreens", (9, 50))]),
    ]  # fmt: skip
    for path, attributes, options, kinds in table:
        for query, prices in kinds:
            yield Kind(query, (*path, query.title()), tuple(words(query)), attributes, options, prices)


BRANDS = ["Alder", "Bramble", "Corvid", "Dunmore", "Eastlake", "Fennick", "Garrow", "Halvard", "Ironbark", "Juniper",
          "Kestrel", "Lomond", "Marlow", "Northfell", "Oakhurst", "Pinecrest", "Quillon", "Ravensby", "Sorrel",
          "Tamarack", "Umbra", "Vesper", "Wexford", "Yarrow"]  # fmt: skip
LINES = ["Aspen", "Breeze", "Classic", "Drift", "Element", "Flow", "Glide", "Harbor", "Iris", "Journey", "Lark",
         "Meadow", "Nova", "Orbit", "Prime", "Ridge", "Summit", "Trail", "Urban", "Vista"]  # fmt: skip
FEATURES = ["{a}: made for every day of the week.", "What customers like: {a}.", "{a}, tested twice.",
            "Known for: {a}.", "Highlight: {a}.", "New in this line: {a}."]  # fmt: skip
REVIEWS = ["Does what it says.", "Bought a second one.", "Came a day late, but good.", "Not for me.", "My favourite.",
           "Good for the price.", "The picture shows another shade.", "Solid. Would buy again."]  # fmt: skip


@dataclass(frozen=True)
class Product:
    """What the shop sells.

    Attributes:
        asin: its id, as in WebShop ten characters.
        attributes: what it is; each stands in the title, a feature or the description.
        options: the values on offer, by the option's name.
        price: in dollars.
    """

    asin: str
    kind: Kind
    brand: str
    title: str
    attributes: tuple[str, ...]
    options: dict[str, list[str]]
    price: float
    rating: float
    features: tuple[str, ...]
    description: str
    reviews: tuple[str, ...]

    @property
    def text(self) -> str:
        """All that a search looks at."""
        return " ".join(
            (self.title, *self.features, self.description, *(v for vs in self.options.values() for v in vs))
        )


@dataclass
class Catalogue:
    """`per_kind` products of each of the 40 kinds. The same seed gives the same catalogue.

    Raises:
        ValueError: `per_kind` is not positive.
    """

    seed: int = 0
    per_kind: int = 40
    products: dict[str, Product] = field(init=False)

    def __post_init__(self) -> None:
        if self.per_kind < 1:
            raise ValueError(f"per_kind is {self.per_kind}: at least 1")
        made = (_product(kind, f"{self.seed}/{kind.query}/{i}") for kind in _kinds() for i in range(self.per_kind))
        self.products = {product.asin: product for product in made}

    def search(self, query: str, limit: int = 50) -> list[Product]:
        """The best products for a query, by BM25 (k1 0.9, b 0.4, as Pyserini, which WebShop searches with)."""
        scores: dict[str, float] = defaultdict(float)
        for word in words(query):
            found = self._index.get(word, {})
            weight = math.log(1 + (len(self.products) - len(found) + 0.5) / (len(found) + 0.5))
            for asin, score in found.items():
                scores[asin] += weight * score
        best = sorted(scores, key=lambda asin: (-scores[asin], asin))
        return [self.products[asin] for asin in best[:limit]]

    @cached_property
    def _index(self) -> dict[str, dict[str, float]]:
        """By word: by product, how much it is about the word."""
        counts = {asin: Counter(words(product.text)) for asin, product in self.products.items()}
        mean = sum(count.total() for count in counts.values()) / len(counts)
        index: dict[str, dict[str, float]] = defaultdict(dict)
        for asin, count in counts.items():
            length = 0.9 * (1 - 0.4 + 0.4 * count.total() / mean)
            for word, times in count.items():
                index[word][asin] = times * 1.9 / (times + length)
        return index


def words(text: str) -> list[str]:
    """The words of a text in lower case; a hyphen is part of its word."""
    return re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)*", text.lower())


def _product(kind: Kind, seed: str) -> Product:
    rng = random.Random(seed)
    brand, line = rng.choice(BRANDS), rng.choice(LINES)
    attributes = rng.sample(kind.attributes, rng.randint(4, 6))
    # One attribute stands in the title, one in the description, the others are features, an article's sub-pages.
    titled, described, *featured = attributes
    options = {name: _some(values, rng) for name, values in kind.options.items()}
    templates = rng.sample(FEATURES, len(featured))
    features = [_sentence(template, attribute) for template, attribute in zip(templates, featured, strict=True)]
    return Product(
        asin="B" + "".join(rng.choices("0123456789ABCDEFGHJKLMNPQRSTUVWXYZ", k=9)),
        kind=kind,
        brand=brand,
        title=f"{brand} {line} {titled.title()} {kind.query.title()}",
        attributes=tuple(attributes),
        options=options,
        price=rng.randint(kind.prices[0] * 100, kind.prices[1] * 100) // 5 * 5 / 100,
        rating=rng.randint(25, 50) / 10,
        features=tuple(features),
        description=f"{kind.query.capitalize()} of the {line} line by {brand}. {_sentence('Also: {a}.', described)}",
        reviews=tuple(rng.sample(REVIEWS, 3)),
    )


def _sentence(template: str, attribute: str) -> str:
    said = template.format(a=attribute)
    return said[0].upper() + said[1:]


def _some(values: list[str], rng: random.Random) -> list[str]:
    """A part of the values, in their order: not every product comes in every colour."""
    chosen = set(rng.sample(values, rng.randint(2, min(5, len(values)))))
    return [value for value in values if value in chosen]
