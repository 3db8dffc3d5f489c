"""Errors of the Hugging Face Hub in words, alike for models, data sets and what is pushed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

Kind = Literal["model", "dataset"]

_LOG_IN = "hf auth login, or HF_TOKEN=..."


def page_of(name: str, kind: Kind = "model") -> str:
    """Returns the address of a repository's page."""
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    return f"{endpoint}/{'datasets/' if kind == 'dataset' else ''}{name}"


def explained(error: BaseException, name: str, revision: str | None = None, kind: Kind = "model") -> tuple[str, str]:
    """Returns the fault and the remedy of an error of huggingface_hub, or of a package that calls it.

    Args:
        name: the repository that was asked for.
        revision: of it; None: its main branch.
    """
    kinds, page = _kinds(error), page_of(name, kind)
    if "HFValidationError" in kinds:
        return f"{name!r} is no name of the Hugging Face Hub: {kinds['HFValidationError']}", "write OWNER/NAME"
    if "GatedRepoError" in kinds:
        return (
            f"{name} is gated: its owners decide which accounts may read it",
            f"ask for access at {page}, then give its token: {_LOG_IN}",
        )
    if "RevisionNotFoundError" in kinds:
        return (
            f"{name} has no revision {revision or 'main'!r}",
            f"a branch, a tag or a commit of {page}; without 'revision' it is the branch main",
        )
    if "RepositoryNotFoundError" in kinds or "DatasetNotFoundError" in kinds:
        return (
            f"there is no {kind} {name} that this machine may read at {page}",
            f"check the name; a private one needs a token: {_LOG_IN}",
        )
    answer = getattr(kinds.get("HfHubHTTPError"), "response", None)
    if (status := getattr(answer, "status_code", None)) in (401, 403):
        return f"the Hub refuses {name} (status {status})", f"give a token that may do this: {_LOG_IN}"
    if answer is not None and not unreachable(error):
        return f"the Hub answers {name} with status {status}: {_last(error)}", "run the same command again later"
    return f"{name} is not on this machine and cannot be downloaded: {_last(error)}", _brought(name, revision, kind)


def _brought(name: str, revision: str | None, kind: Kind) -> str:
    """Returns the commands that bring a repository to a machine without a network."""
    command, folder = f"where there is a network: hf download {name}", name.rpartition("/")[2]
    if kind == "dataset":
        return f"{command} --repo-type dataset --local-dir data/{folder}, then tasks.hf=./data/{folder}"
    command += "" if revision is None else f" --revision {revision}"
    return f"{command}, with the same HF_HOME; or --local-dir models/{folder}, then model.path=models/{folder}"


def is_of_hub(error: BaseException) -> bool:
    """Returns True if an error is the Hub's, not one of the files that it gave."""
    return unreachable(error) or bool(
        _kinds(error).keys() & {"HfHubHTTPError", "HFValidationError", "DatasetNotFoundError"}
    )


def refused(error: BaseException, name: str) -> tuple[str, str]:
    """Returns the fault and the remedy of an error of huggingface_hub while a repository is pushed."""
    kinds = _kinds(error)
    if "HFValidationError" in kinds:
        return f"{name!r} is no name of the Hugging Face Hub: {kinds['HFValidationError']}", "write NAME or OWNER/NAME"
    if unreachable(error):
        return (
            f"the Hub cannot be reached: {_last(error)}",
            "run it where there is a network (and without HF_HUB_OFFLINE)",
        )
    answer = kinds.get("HfHubHTTPError")
    status = getattr(getattr(answer, "response", None), "status_code", None)
    if "LocalTokenNotFoundError" in kinds or status == 401:
        return f"the Hub does not know who pushes {name}", f"give a token that may write: {_LOG_IN}"
    if status == 403:
        return f"the Hub refuses {name}: {_last(error)}", f"give a token that may write there: {_LOG_IN}"
    return f"the Hub does not take {name}: {_last(error)}", "mend that"


def unreachable(error: BaseException) -> bool:
    """Returns True if the Hub did not answer, or the machine is set to ask nobody (HF_HUB_OFFLINE)."""
    return bool(_kinds(error).keys() & {"ConnectionError", "TransportError"})


def _kinds(error: BaseException) -> dict[str, BaseException]:
    """An error and its causes, by the names of their classes and of what those derive from: packages that call
    huggingface_hub wrap its errors, and it is not imported here."""
    return {kind.__name__: each for each in _causes(error) for kind in type(each).__mro__}


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _last(error: BaseException) -> str:
    """The Hub's own words; else the innermost exception in a line: the others tell what they could not do because of
    it."""
    said = next((words for each in _causes(error) if (words := getattr(each, "server_message", None))), None)
    if said is not None:
        return " ".join(str(said).split())[:300]
    *_, last = _causes(error) if error.__cause__ is not None else (error,)
    return " ".join(f"{type(last).__name__}: {last}".split())[:300]
