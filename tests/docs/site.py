"""The folder that a page of the documentation describes, its site served."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PORT = "801[0-9]"
"""The ports that pages name. The site is served at a free one."""


@contextmanager
def served(page: Path, name: str, root: Path) -> Iterator[Path]:
    """Writes the files `NAME/...` of a page, each announced by its path in backquotes, and serves `NAME/site`.

    Args:
        root: an empty folder, in which NAME is made.

    Returns:
        `root`.
    """
    text = page.read_text()
    paths = dict.fromkeys(re.findall(rf"`({name}/[\w./]+\.\w+)`", text))
    blocks = re.findall(r"```(?:html|python|yaml)\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= len(paths)
    files = dict(zip(paths, blocks, strict=False))  # after its files a page may show other code
    site = root / name / "site"
    site.mkdir(parents=True)
    server = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(site)]
    with subprocess.Popen(server, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        port = re.findall(r"port (\d+)", process.stdout.readline())[0]
        try:
            for path, block in files.items():
                (root / path).write_text(re.sub(rf"\b{PORT}\b", port, block))
            yield root
        finally:
            process.kill()
