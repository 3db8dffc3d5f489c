"""Plays MiniWoB++'s click-test-2 in BrowserGym, in an environment that has it: `browsergym_arm.py EPISODES HTML`.

The last line is JSON: seconds of all episodes but the first, which starts the browser, and how many were solved.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *_: object) -> None:
        pass


def main(episodes: int, html: str) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=html))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["MINIWOB_URL"] = f"http://127.0.0.1:{server.server_address[1]}/miniwob/"
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    # Its chat window launches a browser of Playwright's own, which is looked for here.
    browsers = Path(tempfile.mkdtemp()) / "chromium-1117" / "chrome-linux"
    browsers.mkdir(parents=True)
    (browsers / "chrome").symlink_to(str(program))
    os.environ["PLAYWRIGHT_BROWSERS_PATH"] = str(browsers.parent.parent)

    import browsergym.miniwob  # registers the environments
    import gymnasium
    from browsergym.utils.obs import flatten_axtree_to_str

    assert browsergym.miniwob
    env = gymnasium.make(
        "browsergym/miniwob.click-test-2", headless=True, pw_chromium_kwargs={"executable_path": program}
    )
    solved, began = 0, 0.0
    for seed in range(episodes + 1):
        if seed == 1:
            began = time.perf_counter()
        seen, _ = env.reset(seed=seed)
        found = re.search(r"\[(\w+)\] button 'ONE'", flatten_axtree_to_str(seen["axtree_object"]))
        assert found is not None
        _, reward, *_ = env.step(f"click('{found[1]}')")
        solved += seed > 0 and reward > 0
    print(json.dumps({"seconds": time.perf_counter() - began, "solved": solved}))
    env.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
