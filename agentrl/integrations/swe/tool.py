"""The tool `repository`: checks out the commit of a row, and hides what came later. Offers no function to the model."""

from __future__ import annotations

from agentrl.integrations.swe.rows import row_of
from agentrl.tools.base import Tool, own
from agentrl.types.errors import TaskError
from agentrl.types.sandbox import Sandbox, SandboxImageUnusable
from agentrl.types.task import Task

_CHECKOUT_S = 120.0
_NO_COMMIT, _NO_REPOSITORY = 3, 4
_CHECKOUT = """
{ [ -d .git ] && [ ! -L .git ] && git rev-parse -q --git-dir >/dev/null 2>&1; } || exit 4
git rev-parse -q --verify "${1:-HEAD}^{commit}" >/dev/null || exit 3
git -c advice.detachedHead=false -c core.hooksPath=/dev/null checkout -q --force --detach "${1:-HEAD}"
"""
# A repair that is a later commit of the repository must not be there to read: one new commit is all the history.
# Submodules would point into the history that is gone.
_FORGET = """
set -e
find . -name .git -prune -exec rm -rf {} +
git init -q -b main
git config user.name agent
git config user.email agent@localhost
git add -A
git commit -q --no-verify -m "$1"
"""
_DATES = {"GIT_AUTHOR_DATE": "2031-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2031-01-01T00:00:00Z"}


class Repository(Tool):
    """Checks out `base_commit` in `workdir`, as the only commit of a new history. List it before other tools."""

    needs_sandbox = True  # not stateless: `open` writes files, so that a fork cannot begin with a snapshot

    def check_task(self, task: Task) -> None:
        """Checks the columns of the row."""
        row_of(task)

    async def open(self, task: Task, sandbox: Sandbox | None) -> None:
        """Prepares the repository of the image."""
        box = own(sandbox)
        await check_out(task, box)
        await forget(task, box)


async def check_out(task: Task, sandbox: Sandbox) -> None:
    """Checks out the commit of the row in a sandbox that the agent has not used.

    Raises:
        SandboxImageUnusable: `workdir` holds no repository, or git fails.
        TaskError: the repository has no such commit.
    """
    commit, folder = row_of(task).base_commit, sandbox.spec.workdir
    done = await sandbox.exec(["sh", "-c", _CHECKOUT, "sh", commit], timeout_s=_CHECKOUT_S)
    if done.code == _NO_COMMIT:
        remedy = "use the image of the row (sandbox.image), or mend base_commit"
        raise TaskError(f"{folder} has no commit {commit!r}", place=f"task {task.id!r}", remedy=remedy)
    if not done.ok:
        why = "there is no git repository" if done.code == _NO_REPOSITORY else f"git fails: {done.text[-300:].strip()}"
        raise SandboxImageUnusable(
            f"{why} in {folder} of the image {sandbox.spec.image!r}",
            place=f"task {task.id!r}: sandbox.spec",
            remedy="set image and workdir to an image with git and the repository (docs/swe.md)",
        )


async def forget(task: Task, sandbox: Sandbox) -> None:
    """Makes the files of the repository the only commit of a new history.

    Raises:
        SandboxImageUnusable: git fails.
    """
    words = ["sh", "-c", _FORGET, "sh", row_of(task).base_commit or "base"]
    done = await sandbox.exec(words, env=_DATES, timeout_s=_CHECKOUT_S)
    if not done.ok:
        said = f"git fails in {sandbox.spec.workdir}: {done.text[-300:].strip()}"
        raise SandboxImageUnusable(said, place=f"task {task.id!r}: sandbox.spec")
