"""A process that has imported torch and agentrl, and forks for each program: `python -m tests.fork_server FD`.

A request on the socket FD is JSON {"arguments": what follows `python`, "cwd", "environment"} with three files: standard
output, standard error and a pipe. The pipe gets a line with the process id, and one with the wait status at the end.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import agentrl
from agentrl.config.model import ModelSettings, ScratchModel
from agentrl.models.load import load_model
from agentrl.registry.kinds import KINDS, registry_of
from agentrl.registry.listing import entries
from agentrl.view import curves
from benchmarks.forked import run
from tests.hub import reload_constants

LONGEST = 1 << 20
NOT_IMPORTED = ("agentrl.cli", "agentrl.integrations")
"""Modules that are not imported before: `python -m` runs some, and integrations import other frameworks."""
ROOT = str(Path(__file__).parents[1])


def warm() -> None:
    """Imports what commands import, and does once what takes a process long the first time only."""
    modules = [module.name for module in pkgutil.walk_packages(agentrl.__path__, "agentrl.")]
    for name in [*(name for name in modules if not name.startswith(NOT_IMPORTED)), "peft"]:
        with contextlib.suppress(ImportError):  # of an extra that is not installed
            importlib.import_module(name)
    for kind in KINDS:
        entries(registry_of(kind))
    scratch = ScratchModel(hidden=16, layers=1, heads=1, vocab_size=300)
    loaded = load_model(ModelSettings(scratch=scratch), texts=["a"], seed=0)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):  # which shows its progress
        loaded.model.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
        load_model(ModelSettings(path=folder), texts=["a"], seed=0)


def serve(requests: socket.socket) -> None:
    """Forks for each request, until the other side closes the socket."""
    warm()
    gc.collect()
    gc.freeze()  # no collection in a fork looks at what is imported, and copies its pages;
    gc.unfreeze = lambda: None  # nor after a rollout, which has its end look at everything again (rollouts/garbage.py)
    curves.learning_curve = lambda *metrics, **how: None  # takes longer than small trainings; tests draw it themselves
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the keepers
    while True:
        request, files, _, _ = socket.recv_fds(requests, LONGEST, 3)
        if not request:
            return
        if os.fork() == 0:
            requests.close()
            keep(json.loads(request), *files)
        for file in files:
            os.close(file)


def keep(request: dict[str, Any], stdout: int, stderr: int, told: int) -> None:
    """Runs the program in a fork of this process, and tells its process id and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        for file in (stdout, stderr, told):
            os.close(file)
        os.environ.update({name: value for name, value in request["environment"].items() if name.startswith("HF_")})
        reload_constants()
        os.chdir(request["cwd"])
        sys.path[:1] = [request["cwd"], ROOT]
        run(request["arguments"], request["environment"])
    os.write(told, b"%d\n" % child)
    os.write(told, b"%d\n" % os.waitpid(child, 0)[1])
    os._exit(0)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
