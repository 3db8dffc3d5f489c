"""Errors for people: the fault, its place, and the remedy.

Three families decide the status of an episode (the table is in `rollouts/faults/failures.py`): `InfraError` never
becomes data and is retried unless that cannot help, `ToolError` becomes the observation, any other exception of user
code is a `user_error`.
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

from agentrl.types.distribution import pip_install

REMEDY = "\n  -> "
"""Separates the fault from its remedy."""


class AgentRLError(Exception):
    """Base of all errors that agentrl raises on purpose.

    Args:
        message: the fault, with the offending value.
        place: for example `recipes/shop.yaml:12`.
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
    """Extracts the message of one of our programs from its stderr: the text after the last form feed.

    Without a form feed, the end of the output.
    """
    printed, mark, said = stderr.decode("utf-8", "replace").rpartition("\f")
    return said.strip()[:_TOLD] if mark else (printed + said).strip()[-_TOLD:]


_TOLD = 1500  # characters


def nearest(given: str, known: Iterable[str], listed: str = "there are") -> str:
    """Returns the remedy for an unknown name: the nearest known one, and all of them after the words `listed`.

    A long list is left out where a name is near.
    """
    names = list(known)
    near = difflib.get_close_matches(given, names, 1)
    if near and len(names) > _MANY:
        return f"did you mean {near[0]!r}?"
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}{listed}: {', '.join(names) or 'none'}"


_MANY = 20
"""Names that are listed with the nearest one, at most."""


_LIBRARIES = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_NOT_THE_USERS = (
    *(f"{folder}{os.sep}" for folder in (Path(__file__).parents[1], *_LIBRARIES)),
    "<",
)  # "<": <string>, ...


_plug_ins: set[str] = set()


def is_user_code(place: Path) -> None:
    """Notes that a folder, or a file, among the installed libraries holds a plug-in: its lines are told as those of a
    user are. Elsewhere this has no effect."""
    name = f"{place}{os.sep}" if place.is_dir() else str(place)
    if name.startswith(_NOT_THE_USERS):
        _plug_ins.add(name)


def place_of(error: BaseException | None) -> str:
    """Returns the innermost `file:line in function` of user code in the traceback of an exception or of its causes."""
    while error is not None:
        if place := raised_by(error):
            return place
        error = error.__cause__ or error.__context__
    return ""


def raised_by(error: BaseException) -> str:
    """Returns the same as `place_of`, for this exception alone."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(tuple(_plug_ins)) or not frame.filename.startswith(_NOT_THE_USERS):
            return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return ""


def described(kind: str, message: str, place: str) -> str:
    """Formats an exception in a line: `KeyError: 'tea' at /shop/task.py:17 in search`.

    Long messages are cut in the middle: stderr of a child process ends with the error.
    """
    text = " ".join(f"{kind}: {message}".removesuffix(": ").split())
    if len(text) > _LINE:
        text = f"{text[:_BEGINS]} ... {text[_BEGINS - _LINE :]}"
    return f"{text} at {place}" if place else text


_LINE, _BEGINS = 300, 100
"""Maximum of characters of a message in a line; characters of its beginning if it is cut."""


def unless_told(place: str, message: str) -> str:
    """Returns the place of an exception, "" if its message names it already."""
    return "" if place.partition(" in ")[0] in message else place


class RecipeError(AgentRLError):
    """A recipe (or an override on the command line) is wrong."""


class TaskError(AgentRLError):
    """A data set, or one row of it, is wrong."""


class RenderError(AgentRLError):
    """A chat template cannot be used token-exactly."""


class StoreError(AgentRLError):
    """A run directory is damaged or does not fit the request."""


class CreditError(AgentRLError):
    """An estimator and its episodes do not fit."""


class TrainError(AgentRLError):
    """Training cannot continue, for example because the loss is not finite."""


class RankFailed(TrainError):
    """One trainer rank failed; the others cannot continue without it."""


class RankUnreachable(RankFailed):
    """Another trainer rank does not answer. Its failure, if known, is the cause."""


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
    """An optional dependency is missing or too old.

    Args:
        found: its version, if it is installed.
    """

    def __init__(self, what: str, extra: str, *, found: str | None = None, place: str | None = None) -> None:
        self.what, self.extra, self.found = what, extra, found
        problem = f"{what} is not installed" if found is None else f"{what} {found} is installed, which is too old"
        super().__init__(problem, place=place, remedy=pip_install(extra))

    def at(self, place: str) -> MissingExtra:
        """Returns the same error with the place that needs the dependency."""
        return MissingExtra(self.what, self.extra, found=self.found, place=place)


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Converts import errors inside the block: a package that is missing or too old becomes `MissingExtra`."""
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
    """Raises MissingExtra if an installed package of an extra is too old."""
    from agentrl.types.packages import installed  # slow to import

    for package in installed(extra):
        if package.too_old:
            raise MissingExtra(package.name, extra, found=package.version)


class InfraError(AgentRLError):
    """The infrastructure failed, not the model: the episode is retried from the start and never scored.

    Attributes:
        cause: the failed part, a key of `episode.budgets.BUDGETS`: "service", a service that user code calls (a
            simulated user, an API), unless a subclass overrides it. "": not counted by any budget.
        retried: whether a fresh attempt can help.
    """

    cause: ClassVar[str] = "service"
    retried: ClassVar[bool] = True


class EngineError(InfraError):
    """The engine cannot be reached or broke off."""

    cause = "engine"


class DeadPolicy(InfraError):
    """The policy's log-probabilities are not finite: it can neither be sampled from nor trained."""

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
    """Base of the errors of sandboxes. A command that fails or times out is a result, not an error."""

    cause = "sandbox"


class ToolServerEnded(InfraError):
    """The process of one episode's tool ended during a call of the model or of a reward.

    It is restarted with a fresh attempt. If it ends again, the agent is the cause: the episode is truncated
    (`rollouts/faults/failures.py`).
    """


class ToolError(Exception):
    """Raised inside a tool for a failure that the model should read: its text becomes the observation.

    Attributes:
        ends_reply: whether later calls of the same reply are skipped.
    """

    ends_reply: bool = False


class ScoringPrevented(Exception):
    """Raised in a reward that cannot be computed, perhaps because of what the agent did.

    The component gets its least favourable value (`worst`), so that an agent cannot void an episode.
    """


def asked_to_stop(error: BaseException) -> bool:
    """Returns True for errors that must propagate: Ctrl-C, closing of a coroutine, cancellation of the current task.

    Others come from user code and must not end other episodes: also its `sys.exit()`, exceptions of test frameworks
    (which derive from BaseException), and CancelledErrors of tasks that it cancelled itself.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | GeneratorExit)
