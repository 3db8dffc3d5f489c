"""Changes of a repository's files against a commit: found in one sandbox, made in another.

`python3 agentrl_changes.py find` reads a JSON object from stdin: `base` (path: [mode, hash] of `git ls-tree`) and
`limit` (bytes), and writes one of path: null for a file that is gone, else [mode, content in base64]. The repository's
own `.git` is not read: only what git ignores by the files `.gitignore` is left out. `make` reads such an object. Both
work in the current folder.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LINK, PROGRAM, FILE = "120000", "100755", "100644"


def read(path: str, most: int) -> tuple[str, str, bytes | None] | None:
    """Returns git's mode and hash of a file, and its content; None if there is neither file nor link.

    Args:
        most: bytes of content; None stands for a larger one, which may be the commit's.
    """
    try:
        about = os.lstat(path)
        if stat.S_ISLNK(about.st_mode):
            target = os.fsencode(os.readlink(path))
            return LINK, hashlib.sha1(b"blob %d\0" % len(target) + target).hexdigest(), target
        if not stat.S_ISREG(about.st_mode):
            return None
        name, kept, large = hashlib.sha1(b"blob %d\0" % about.st_size), bytearray(), about.st_size > most
        with open(path, "rb") as file:
            while part := file.read(1 << 20):
                name.update(part)
                if not large:
                    kept += part
        return PROGRAM if about.st_mode & 0o100 else FILE, name.hexdigest(), None if large else bytes(kept)
    except (FileNotFoundError, NotADirectoryError):
        return None


def others() -> list[str]:
    """Returns all files that git does not ignore, seen by an empty repository elsewhere."""
    with tempfile.TemporaryDirectory() as made:
        env = {**os.environ, "GIT_DIR": made, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
        subprocess.run(["git", "init", "-q", "--bare", made], env=env, check=True, stdout=subprocess.DEVNULL)
        listed = ["git", "--work-tree=.", "ls-files", "-o", "-z", "--exclude-per-directory=.gitignore"]
        found = subprocess.run(listed, env=env, check=True, stdout=subprocess.PIPE).stdout
    return [os.fsdecode(each) for each in found.split(b"\0") if each]


def find(asked: Any) -> dict[str, Any]:
    base, left = asked["base"], asked["limit"]
    changed: dict[str, Any] = {}
    for path in dict.fromkeys([*base, *others()]):
        found = read(path, left)
        if found is None:
            if path in base:
                changed[path] = None
            continue
        mode, name, content = found
        if [mode, name] != base.get(path):
            if content is None:
                sys.exit("the changes are too large")
            left -= len(content)
            changed[path] = [mode, base64.b64encode(content).decode()]
    return changed


def make(changed: Any) -> dict[str, Any]:
    here = os.path.realpath(".")
    for path in changed:
        folder = os.path.normpath(os.path.join(here, os.path.dirname(path)))
        if os.path.realpath(folder) != folder:
            sys.exit(f"{path} lies behind a link")
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)
    for path, entry in changed.items():
        if entry is None:
            continue
        mode, content = entry[0], base64.b64decode(entry[1])
        folder = os.path.join(here, os.path.dirname(path))
        os.makedirs(folder, exist_ok=True)
        if os.path.realpath(folder) != os.path.normpath(folder):
            sys.exit(f"{path} lies behind a link")
        if mode == LINK:
            os.symlink(content, os.fsencode(path))
            continue
        with open(path, "wb") as file:
            file.write(content)
        os.chmod(path, 0o755 if mode == PROGRAM else 0o644)
    return {}


if __name__ == "__main__":
    json.dump({"find": find, "make": make}[sys.argv[1]](json.load(sys.stdin)), sys.stdout)
