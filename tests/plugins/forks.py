"""`--forks N`: collects the tests once, and runs them in N forks of this process.

For `make check`, in which importing torch takes longer than the tests of most files. Workers of pytest-xdist would
import and collect once each. Files are handed out in the order of the tests; forks send their reports through pipes.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import selectors
import traceback
from collections.abc import Iterator
from typing import IO, Any, NoReturn

import pytest

WORD = 4
"""Bytes of the number of a file in the queue: a pipe, from which each fork reads its next one."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, metavar="N", help="collect once, and run the tests in N forks")


def register(config: pytest.Config) -> None:
    if config.getoption("forks"):
        config.pluginmanager.register(Forks(config.getoption("forks")))


class Forks:
    """The process that collects and reports."""

    def __init__(self, count: int) -> None:
        self._count = count

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        gc.disable()  # a collection of garbage would look at all that was imported, and in a fork copy its pages
        yield
        gc.freeze()
        gc.enable()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.config.option.collectonly or session.testsfailed:
            return None
        files = [list(items) for _, items in itertools.groupby(session.items, key=lambda item: item.path)]
        queue, fill = os.pipe()
        os.write(fill, b"".join(number.to_bytes(WORD) for number in range(len(files))))  # some hundreds: it has room
        os.close(fill)
        forks = {}
        for _ in range(self._count):
            reads, writes = os.pipe()
            if not (pid := os.fork()):
                os.close(reads)
                Fork(session, files, queue, os.fdopen(writes, "w")).run()
            os.close(writes)
            forks[os.fdopen(reads)] = pid
        os.close(queue)
        self._report(session, forks)
        return True

    def _report(self, session: pytest.Session, forks: dict[IO[str], int]) -> None:
        """Reports the results as they arrive.

        Raises:
            pytest.exit.Exception: a fork has ended before its work was done.
        """
        hook, last = session.config.hook, dict.fromkeys(forks, "")
        with selectors.DefaultSelector() as selector:
            for pipe in forks:
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select():
                    pipe: Any = key.fileobj
                    if not (line := pipe.readline()):
                        selector.unregister(pipe)
                        if code := os.waitstatus_to_exitcode(os.waitpid(forks[pipe], 0)[1]):
                            pytest.exit(f"a fork ended with {code}; it had come to {last[pipe]}", returncode=3)
                        continue
                    said = json.loads(line)
                    if isinstance(said, str):
                        last[pipe] = said
                        continue
                    report = hook.pytest_report_from_serializable(config=session.config, data=said)
                    if report.skipped and isinstance(report.longrepr, list):
                        report.longrepr = tuple(report.longrepr)
                    hook.pytest_runtest_logreport(report=report)
                    if session.shouldfail:
                        raise session.Failed(session.shouldfail)


class Fork:
    """A fork: runs tests, and sends their reports.

    Args:
        queue: gives the numbers of files that nobody has taken.
        pipe: takes a line of JSON for each report, and before it the name of the test.
    """

    def __init__(self, session: pytest.Session, files: list[list[pytest.Item]], queue: int, pipe: IO[str]) -> None:
        self._config, self._files, self._queue, self._pipe = session.config, files, queue, pipe

    def run(self) -> NoReturn:
        code = 1
        try:
            plugins = self._config.pluginmanager
            plugins.unregister(name="terminalreporter")
            plugins.register(self)
            capture = plugins.getplugin("capturemanager")
            capture.stop_global_capturing()  # the forks would share a file
            capture.start_global_capturing()
            items = self._items()
            item = next(items, None)
            while item is not None:
                following = next(items, None)
                self._config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                item = following
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            self._pipe.close()
            os._exit(code)

    def _items(self) -> Iterator[pytest.Item]:
        """Yields tests of this fork. A file is taken when the last test of the one before begins."""
        while number := os.read(self._queue, WORD):
            yield from self._files[int.from_bytes(number)]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._send(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._send(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def _send(self, what: object) -> None:
        print(json.dumps(what, default=str), file=self._pipe, flush=True)
