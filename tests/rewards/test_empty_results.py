"""What code returns is equal to something only if it holds something: arrays and objects without elements are not."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

TOOLS = str(Path(__file__).parents[2] / "tools" / "verify")
Y = np.array([1.0, 2.0])

PAID_FOR_NOTHING: dict[str, Callable[[Any], Any]] = {
    "approx": lambda f: f == pytest.approx(4),
    "approx r": lambda f: pytest.approx(4) == f,
    "approx list": lambda f: f == pytest.approx([1, 2]),
    "allclose": lambda f: np.allclose(f, Y[: 0 + 1]),
    "allclose kw": lambda f: np.allclose(a=f, b=4),
    "allclose r": lambda f: np.allclose(4, f),
    "isclose": lambda f: np.isclose(f, 4).all(),
    "assert_allclose": lambda f: np.testing.assert_allclose(f, 4) is None,
    "assert_array_equal": lambda f: np.testing.assert_array_equal(f, 4) is None,
    "assert_almost": lambda f: np.testing.assert_almost_equal(f, 4) is None,
    "assert_array_almost": lambda f: np.testing.assert_array_almost_equal(4, f) is None,
    "assert_equal": lambda f: np.testing.assert_equal(f, 4) is None,
    "assert_array_less": lambda f: np.testing.assert_array_less(f, 4) is None,
    "eq all": lambda f: (f == 4).all(),
    "eq all r": lambda f: (f == 4).all(),
    "np.eq": lambda f: np.all(np.equal(f, 4)),
    "norm": lambda f: np.linalg.norm(f - 4) < 1e-06,
    "norm2": lambda f: np.linalg.norm(4 - f) < 1e-06,
    "y-f": lambda f: np.linalg.norm(Y[:1] - f) < 1e-06,
    "abs max": lambda f: np.abs(f - 4).sum() < 1e-06,
    "asarray": lambda f: (np.asarray(f) == 4).all(),
    "array": lambda f: np.allclose(np.array(f), 4),
    "array list": lambda f: np.allclose(np.array([f]), 4),
    "flatten": lambda f: (f.flatten() == 4).all(),
    "copy": lambda f: np.allclose(f.copy(), 4),
    "astype": lambda f: (f.astype(int) == 4).all(),
    "ravel": lambda f: np.ravel(f) == 4,
    "reshape": lambda f: (f.reshape(-1) == 4).all(),
    "T": lambda f: (f.T == 4).all(),
    "round": lambda f: (f.round(2) == 4).all(),
    "np.round": lambda f: (np.round(f, 2) == 4).all(),
    "squeeze": lambda f: (np.squeeze(f) == 4).all(),
    "setdiff": lambda f: len(np.setdiff1d(f, Y)) == 0,
    "isin": lambda f: np.isin(f, Y).all(),
    "array_equiv": lambda f: np.array_equiv(f, 4),
    "slice": lambda f: (f[:1] == 4).all(),
    "iadd": lambda f: (lambda g: (g.__iadd__(4) == 4).all())(f),
    "nan": lambda f: np.allclose(np.nan_to_num(f), 4),
    "logical": lambda f: np.logical_and(f, 4).all(),
    "max": lambda f: np.max(np.abs(f - 4), initial=0) < 1,
    "where": lambda f: len(np.where(f != 4)[0]) == 0,
    "any": lambda f: not (f != 4).any(),
    "count": lambda f: np.count_nonzero(f - 4) == 0,
    "atleast": lambda f: np.allclose(np.atleast_1d(f), 4),
    "stack": lambda f: np.allclose(np.stack([f]), 4),
    "mean sq": lambda f: np.sum((f - Y[:1]) ** 2) == 0,
    "tolist": lambda f: f.tolist() == [4],
    "all": lambda f: np.all(f == 4),
}
"""Ways in which tests compare a result with 4 or with Y, all of which an array without elements satisfies."""

HONEST: dict[str, Callable[[Any], Any]] = {
    "array_equal": lambda f: np.array_equal(f, np.array([])),
    "testing": lambda f: np.testing.assert_array_equal(f, []) is None,
    "testing2": lambda f: np.testing.assert_allclose(f, np.array([])) is None,
    "shape": lambda f: f.shape == (0,),
    "len": lambda f: len(f) == 0,
    "size": lambda f: f.size == 0,
    "list": lambda f: list(f) == [],
    "tolist": lambda f: f.tolist() == [],
    "isinstance": lambda f: isinstance(f, np.ndarray),
    "dtype": lambda f: f.dtype == np.float64,
    "sum": lambda f: f.sum() == 0,
    "npsum": lambda f: np.sum(f) == 0,
    "allclose": lambda f: np.allclose(f, []),
    "eq": lambda f: (f == np.array([])).all(),
    "approx": lambda f: f == pytest.approx(np.array([])),
    "approx r": lambda f: pytest.approx(np.array([])) == f,
    "ndim": lambda f: f.ndim == 1,
    "npsize": lambda f: np.size(f) == 0,
    "npshape": lambda f: np.shape(f) == (0,),
}
"""What tests may ask of an array that is rightly empty."""


@pytest.fixture(scope="module")
def verify() -> Iterator[Callable[[str], ModuleType]]:
    """Our programs in the sandbox of the tests, as modules of this process."""
    before = set(sys.modules)
    sys.path.insert(0, TOOLS)
    try:
        yield __import__
    finally:
        sys.path.remove(TOOLS)
        for name in set(sys.modules) - before:
            if name.startswith("agentrl_"):
                del sys.modules[name]


@pytest.fixture(scope="module")
def arrived(verify: Callable[[str], ModuleType]) -> Callable[[Any], Any]:
    """A value as it arrives where the tests are."""
    codec = verify("agentrl_plain").Codec(None, None)
    return lambda value: codec.decode(codec.encode(value))


@pytest.mark.parametrize("shape", [(0,), (0, 1), (1, 0), (3, 0, 2)])
@pytest.mark.parametrize("way", PAID_FOR_NOTHING)
def test_an_array_without_elements_equals_nothing(
    arrived: Callable[[Any], Any], way: str, shape: tuple[int, ...]
) -> None:
    try:
        found = PAID_FOR_NOTHING[way](arrived(np.zeros(shape)))
    except (AssertionError, AttributeError, TypeError, ValueError, IndexError):
        return
    assert not np.all(found)


@pytest.mark.parametrize("way", HONEST)
def test_an_array_that_is_rightly_empty_passes(arrived: Callable[[Any], Any], way: str) -> None:
    assert HONEST[way](arrived(np.zeros((0,)))) in (True, np.True_)


def test_an_empty_array_goes_back_to_the_code_as_one(arrived: Callable[[Any], Any]) -> None:
    back = arrived(arrived(np.zeros((0, 2), np.float32)))
    assert (back.shape, back.dtype) == ((0, 2), np.float32)
    copied = copy.deepcopy(back)
    assert copied.shape == (0, 2)
    assert repr(copied) == repr(np.zeros((0, 2), np.float32))
    assert type(arrived(np.zeros(2))) is np.ndarray


class Code:
    """The code's side, which answers what a test says."""

    trust = False

    def __init__(self, plain: list[Any], items: list[Any]) -> None:
        self.plain, self.items = plain, items

    def request(self, operation: str, *arguments: Any) -> Any:
        return self.plain

    def special(self, target: Any, name: str, *arguments: Any) -> Any:
        return len(self.items) if name == "__len__" else self.items[arguments[0]]


@pytest.fixture
def handle(verify: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """An object of the code."""
    objects = verify("agentrl_objects")

    def make(*special: str, plain: Any = (), kind: type | None = None, items: Any = ()) -> Any:
        monkeypatch.setattr(objects, "_CODE", [Code([*plain], [*items])])
        about = {name: objects.SPECIAL[name] for name in special}
        about |= {"_agentrl_class": 1, "_agentrl_plain": kind, "__slots__": ()}
        return objects.made(objects.RemoteMeta.make("Made", (objects.Remote,), about), 1)

    return make


@pytest.mark.parametrize("compared", [np.allclose, np.testing.assert_allclose, np.testing.assert_array_equal])
def test_an_object_without_items_becomes_no_array(handle: Callable[..., Any], compared: Callable[..., Any]) -> None:
    empty = handle("__len__", "__getitem__")
    with pytest.raises((TypeError, AssertionError)):
        compared(empty, 4)
    filled = handle("__len__", "__getitem__", items=[1.0, 2.0])
    assert compared(filled, Y) in (None, True)


def test_an_object_equals_no_plain_data_whoever_asks(handle: Callable[..., Any]) -> None:
    one = handle()
    assert one.__eq__(4) is False
    assert one.__ne__(4) is not False
    assert one != 4
    assert one.__eq__(None) is False
    assert one != pytest.approx(4)


def test_the_data_of_an_object_is_of_the_type_that_its_class_derives_from(
    handle: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, verify: Callable[[str], ModuleType]
) -> None:
    assert handle(plain=[4], kind=int) == 4

    def lost(why: str) -> None:
        raise ConnectionError(why)

    monkeypatch.setattr(verify("agentrl_objects"), "lost", lost)
    for plain, kind in (([float("nan")], int), ([4], str), ([4], None), ([True], int), ([[4]], tuple)):
        with pytest.raises(ConnectionError, match="not the data that its class holds"):
            assert handle(plain=plain, kind=kind) == 4
