"""Errors that a person reads: what is wrong, where, and what to do about it.

Three families decide what happens to an episode (the table is in `rollouts/faults/failures.py`): `InfraError` never
becomes data and is retried unless that cannot help, `ToolError` becomes the observation, everything else that user code
raises is a `user_error`.
"""

from __future__ import annotations

import asyncio
import difflib
import os
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import ClassVar

REMEDY = "\n  -> "
"""Stands between what is wrong and what to do about it."""


class AgentRLError(Exception):
    """Base of all errors that agentrl raises on purpose.

    Args:
        message: what is wrong, with the value that was found.
        place: where, for example `recipes/shop.yaml:12`.
        remedy: what to do about it.
    """

    def __init__(self, message: str, *, place: str | None = None, remedy: str | None = None) -> None:
        self.message = message
        self.place = place
        self.remedy = remedy
        super().__init__(str(self))

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        fix = f"{REMEDY}{self.remedy}" if self.remedy else ""
        return f"{where}{self.message}{fix}"


def told(stderr: bytes) -> str:
    """What a program of ours says to a person: what stands behind its last form feed.

    Without one, the end of all that was printed.
    """
    printed, mark, said = stderr.decode("utf-8", "replace").rpartition("\f")
    return said.strip()[:_TOLD] if mark else (printed + said).strip()[-_TOLD:]


_TOLD = 1500  # characters


def nearest(given: str, known: Iterable[str], listed: str = "there are") -> str:
    """The remedy for a name that does not exist: the nearest that does, and all of them after the words `listed`."""
    names = list(known)
    near = difflib.get_close_matches(given, names, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}{listed}: {', '.join(names) or 'none'}"


_LIBRARIES = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_NOT_THE_USERS = (
    *(f"{folder}{os.sep}" for folder in (Path(__file__).parents[1], *_LIBRARIES)),
    "<",
)  # "<": <string>, ...


def place_of(error: BaseException | None) -> str:
    """Innermost `file:line in function` of user code that an exception, or one that led to it, came through."""
    while error is not None:
        if place := raised_by(error):
            return place
        error = error.__cause__ or error.__context__
    return ""


def raised_by(error: BaseException) -> str:
    """As `place_of`, of this exception alone."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(_NOT_THE_USERS):
            return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return ""


def described(kind: str, message: str, place: str) -> str:
    """An exception in a line: `KeyError: 'tea' at /shop/task.py:17 in search`.

    Of a long message the middle is left out: what a child wrote to stderr ends with what it was.
    """
    text = " ".join(f"{kind}: {message}".removesuffix(": ").split())
    if len(text) > _LINE:
        text = f"{text[:_BEGINS]} ... {text[_BEGINS - _LINE :]}"
    return f"{text} at {place}" if place else text


_LINE, _BEGINS = 300, 100
"""Characters of a message in a line, and how many of them are its beginning where it is cut."""


def unless_told(place: str, message: str) -> str:
    """The place of an exception, "" if its message names it: our own errors say where."""
    return "" if place.partition(" in ")[0] in message else place


class RecipeError(AgentRLError):
    """A recipe (or an override on the command line) is wrong."""


class TaskError(AgentRLError):
    """A data set, or one row of it, is wrong."""


class RenderError(AgentRLError):
    """A chat template cannot be used token-exactly."""


class StoreError(AgentRLError):
    """A run directory is damaged or does not fit what is asked of it."""


class CreditError(AgentRLError):
    """An estimator and the episodes that it was given do not fit."""


class TrainError(AgentRLError):
    """Training cannot continue, for example because the loss is not finite."""


class RankFailed(TrainError):
    """One trainer rank failed; the others cannot continue without it."""


class RankUnreachable(RankFailed):
    """Another trainer rank does not answer. Its own failure, if there is one, is the cause."""


class RankDied(TrainError):
    """A trainer rank died, and with it a part of the model. The last checkpoint holds the whole model.

    Args:
        restarts: maximum number of restarts of the training for this reason.
    """

    def __init__(self, message: str, *, restarts: int) -> None:
        self.restarts = restarts
        super().__init__(
            message, place="scale.trainer_ranks", remedy="the same command resumes from the last checkpoint"
        )


class MissingExtra(AgentRLError):
    """An optional part is used that is not installed, or too old.

    Args:
        found: its version, if it is installed.
    """

    def __init__(self, what: str, extra: str, *, found: str | None = None, place: str | None = None) -> None:
        self.what, self.extra, self.found = what, extra, found
        problem = f"{what} is not installed" if found is None else f"{what} {found} is installed, which is too old"
        super().__init__(problem, place=place, remedy=f"pip install 'agentrl[{extra}]'")

    def at(self, place: str) -> MissingExtra:
        """The same error with the place that asks for the part."""
        return MissingExtra(self.what, self.extra, found=self.found, place=place)


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Imports inside: a package that is missing or too old becomes `MissingExtra`."""
    try:
        yield
    except ImportError as error:
        if error.name is not None and error.name.startswith("agentrl"):
            raise
        require_versions(extra)  # an old package often lacks what is imported
        if error.name is None or not isinstance(error, ModuleNotFoundError):
            raise
        raise MissingExtra(error.name.partition(".")[0], extra) from None
    require_versions(extra)


@cache
def require_versions(extra: str) -> None:
    """Raises MissingExtra: a package of an extra is installed in a version that is too old."""
    from agentrl.types.packages import installed  # whose own imports take longer than all others here

    for package in installed(extra):
        if package.too_old:
            raise MissingExtra(package.name, extra, found=package.version)


class InfraError(AgentRLError):
    """The machinery failed, not the model: the episode is retried from the start and never scored.

    Attributes:
        cause: which part failed, a key of `episode.budgets.BUDGETS`: "service", what user code asks (a simulated
            user, an API), unless a subclass says otherwise. "": one that no budget counts.
        retried: whether a fresh attempt can help.
    """

    cause: ClassVar[str] = "service"
    retried: ClassVar[bool] = True


class EngineError(InfraError):
    """The engine cannot be reached or broke off."""

    cause = "engine"


class DeadPolicy(InfraError):
    """The policy's log-probabilities are not finite: there is nothing left to sample from, or to train."""

    cause = "policy"

    def __init__(self, message: str, *, place: str | None = None) -> None:
        super().__init__(
            message,
            place=place,
            remedy="the weights are broken: go on from an earlier checkpoint (remove the newest folder of "
            "checkpoints/) with a lower train.lr; a model that was never trained needs another model.dtype, or its "
            "files are damaged",
        )


class SandboxError(InfraError):
    """Base of what a sandbox raises. A command that fails or times out is a result, not one of these."""

    cause = "sandbox"


class ToolServerEnded(InfraError):
    """A program that serves one episode's tool ended during a call of the model.

    It is started again with a fresh attempt. Where it ends again, the agent ends it: the episode is truncated
    (`rollouts/faults/failures.py`).
    """


class ToolError(Exception):
    """Raised inside a tool for a failure that the model should read: the text becomes the observation.

    Attributes:
        ends_reply: whether calls that stand behind it in the reply are skipped.
    """

    ends_reply: bool = False


def asked_to_stop(error: BaseException) -> bool:
    """Whether the error must go on its way: a Ctrl-C, the closing of a coroutine, a cancellation of the current task.

    Everything else is user code's, and no reason to end others' episodes: also its `sys.exit()`, exceptions of test
    frameworks (which derive from BaseException), and CancelledErrors of what it had cancelled itself.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | GeneratorExit)
