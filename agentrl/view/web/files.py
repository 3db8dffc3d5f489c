"""The files of the page."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from agentrl.types.errors import AgentRLError

APP = Path(__file__).resolve().parents[1] / "app"

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".md": "text/plain; charset=utf-8",
    ".LICENSE": "text/plain; charset=utf-8",
}
_SCRIPT = re.compile(r"<script(?P<attributes>[^>]*)>(?P<text>.*?)</script>", re.DOTALL)
_IMPORT_MAP = re.compile(r'<script type="importmap">(.*?)</script>', re.DOTALL)
_STYLE = re.compile(r'<link rel="stylesheet" href="([^"]+)"\s*/?>')


def names() -> dict[str, Path]:
    """The files by their names in URLs."""
    found = sorted(path for path in APP.rglob("*") if path.is_file() and path.suffix in TYPES)
    return {path.relative_to(APP).as_posix(): path for path in found}


def page() -> str:
    """The page itself.

    Raises:
        AgentRLError: this install lacks it.
    """
    path = APP / "index.html"
    if not path.exists():
        raise AgentRLError("the page of the viewer is missing from this install of agentrl", remedy="reinstall agentrl")
    return path.read_text(encoding="utf-8")


def policy(html: str) -> str:
    """The Content-Security-Policy of a page: nothing from elsewhere, and of scripts in it only those it came with."""
    hashes = [
        base64.b64encode(hashlib.sha256(script["text"].encode()).digest()).decode()
        for script in _SCRIPT.finditer(html)
        if "src=" not in script["attributes"]
    ]
    scripts = " ".join(["'self'", *(f"'sha256-{each}'" for each in hashes)])
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    )


ALONE = "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:"
"""The policy of a page that is one file."""


def bundled(data: Any) -> str:
    """The page as one file, with data in it."""
    html, files = page(), names()
    imports = json.loads(_IMPORT_MAP.findall(html)[0])["imports"]
    urls = {name: _data_url(files[place.removeprefix("./")]) for name, place in imports.items()}
    held = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{ALONE}">'
        f'<script type="application/json" id="agentrl-data">{embeddable(held)}</script>'
        f'<script type="importmap">{embeddable(json.dumps({"imports": urls}))}</script>'
    )
    html = _STYLE.sub(
        lambda link: f"<style>{files[link[1].removeprefix('./')].read_text(encoding='utf-8')}</style>", html
    )
    return _IMPORT_MAP.sub(lambda _: head, html, count=1)


def embeddable(text: str) -> str:
    """JSON that no content can break out of: `</script>` and `<!--` cannot occur without a `<`."""
    return text.replace("<", "\\u003c")


def _data_url(path: Path) -> str:
    return f"data:{TYPES[path.suffix].replace(' ', '')};base64,{base64.b64encode(path.read_bytes()).decode()}"
