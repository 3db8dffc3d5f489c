"""Conversion of server responses to text for the model: the main text of HTML pages, other text unchanged."""

from __future__ import annotations

import base64
import codecs
import re
from dataclasses import dataclass
from typing import Any

from agentrl.types.errors import MissingExtra, ToolError, require_versions

HTML = ("text/html", "application/xhtml+xml")
_MARKED = [
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
]
_META = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_SPACE = re.compile(r"\s+")
_SILENT = ("script", "style", "noscript", "template", "head", "svg", "iframe", "object")
_BLOCKS = {
    "address", "article", "aside", "blockquote", "body", "br", "dd", "div", "dl", "dt", "fieldset", "figcaption",
    "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol",
    "option", "p", "pre", "section", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "ul",
}  # fmt: skip
WHOLE = 1000
"""Pages shorter than this are shown whole, in characters: main text can be told apart only on longer ones."""

_START = re.compile(rb"\s*(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL)


TITLE = 200
"""Maximum characters of a title."""

TEXT = 1_000_000
"""Maximum characters of a page."""


@dataclass(frozen=True)
class HttpAnswer:
    """Response of a server.

    Attributes:
        url: address after redirects.
        type: media type in lower case, "" if missing; `charset` likewise.
        size: bytes of the whole body, if the server reports it.
        cut: True if the body is truncated.
    """

    url: str
    type: str
    charset: str
    body: bytes
    size: int | None
    cut: bool


@dataclass(frozen=True)
class ReadablePage:
    """Page as text."""

    url: str
    title: str
    text: str
    cut: bool


def prepare() -> None:
    """Imports the page parser in a helper process."""
    import_trafilatura()


def read(url: str, type: str, charset: str, body: str, size: int | None, cut: bool, links: bool) -> dict[str, Any]:
    """Converts a response in a helper process: returns the fields of its page, or the error as `refused`.

    Args:
        body: body in base64.
    """
    try:
        return vars(page_of(HttpAnswer(url, type, charset, base64.b64decode(body), size, cut), links=links))
    except ToolError as error:
        return {"refused": str(error)}


def page_of(answer: HttpAnswer, *, links: bool) -> ReadablePage:
    """Converts a response to text. Runs in a helper process, because the cost of untrusted input is unlimited.

    Args:
        links: shows links as `[text](url)`.

    Raises:
        ToolError: the body is not text; the message names its type and size.
    """
    if answer.body.startswith(b"%PDF-") or answer.type == "application/pdf":
        raise ToolError(f"{answer.url} is a PDF ({_size(answer)}), not a page")
    if answer.type in HTML or (not answer.type and _START.match(answer.body[:4096])):
        title, text = text_of_html(_decoded(answer, html=True), answer.url, links=links)
        return ReadablePage(answer.url, title[:TITLE], text[:TEXT], answer.cut or len(text) > TEXT)
    if _is_binary(answer):
        raise ToolError(f"{answer.url} is {answer.type or 'of no known type'} ({_size(answer)}), not text")
    text = _decoded(answer)
    return ReadablePage(answer.url, "", text[:TEXT], answer.cut or len(text) > TEXT)


def text_of_html(html: str, url: str, *, links: bool) -> tuple[str, str]:
    """Extracts title and text: the main text by trafilatura, which targets articles, or all text of a short page.

    Args:
        url: base address of relative links.
    """
    trafilatura = import_trafilatura()
    from lxml import etree
    from lxml import html as parsing

    data = html.encode("utf-8", "replace")
    try:
        tree = parsing.document_fromstring(data, parser=parsing.HTMLParser(encoding="utf-8"))
    except (etree.ParserError, etree.XMLSyntaxError):  # no element in the document
        return "", ""
    title = " ".join((tree.findtext(".//title") or "").split())
    etree.strip_elements(tree, *_SILENT, etree.Comment, etree.ProcessingInstruction, with_tail=False)
    _resolve_links(tree, url)
    whole = _whole_text(tree, links=links)
    if len(whole) < WHOLE:
        return title, whole
    main = trafilatura.extract(tree, include_links=links, include_comments=False, favor_recall=True) or ""
    return title, main.strip() if len(main) >= WHOLE // 4 else whole


def _resolve_links(tree: Any, url: str) -> None:
    """Makes links absolute and replaces links within the page by their text."""
    for link in list(tree.iter("a")):
        if (link.get("href") or "").startswith("#"):
            (link.drop_tree if (link.text or "") in ("¶", "#") else link.drop_tag)()
    tree.make_links_absolute(url, resolve_base_href=True, handle_failures="ignore")


def _whole_text(tree: Any, *, links: bool) -> str:
    """Returns all text of a page, one line per block."""
    from lxml import etree

    parts: list[str] = []
    for event, element in etree.iterwalk(tree, events=("start", "end")):
        name, begins = element.tag, event == "start"
        if name in _BLOCKS:
            parts.append("\n- " if begins and name == "li" else "\n")
        elif name == "a" and links and element.get("href"):
            parts.append("[" if begins else f"]({element.get('href')})")
        parts.append(_SPACE.sub(" ", (element.text if begins else element.tail) or ""))
    lines = (" ".join(line.split()) for line in "".join(parts).splitlines())
    return "\n".join(line for line in lines if line not in ("", "-"))


def import_trafilatura() -> Any:
    """Imports trafilatura.

    Raises:
        MissingExtra: the package or a dependency is not installed.
    """
    try:
        import trafilatura
    except ImportError:
        raise MissingExtra("trafilatura, which the http tool reads pages with,", "http") from None
    require_versions("http")
    return trafilatura


def _decoded(answer: HttpAnswer, *, html: bool = False) -> str:
    """Decodes the body by the first charset that fits: byte order mark, header, meta element, UTF-8.

    Servers often name a wrong one; the fallback is cp1252, as in browsers.
    """
    marked = [name for mark, name in _MARKED if answer.body.startswith(mark)]
    inside = _META.search(answer.body[:4096]) if html else None
    named = [*marked, answer.charset, inside[1].decode("ascii", "replace") if inside else "", "utf-8"]
    for name in filter(None, named):
        try:
            decoder = codecs.getincrementaldecoder(name)("strict")
            text = decoder.decode(answer.body, not answer.cut)
        except (LookupError, UnicodeError, TypeError):  # TypeError: text-to-text codecs such as rot13
            continue
        if isinstance(text, str):
            return text
    return answer.body.decode("cp1252", "replace")


def _is_binary(answer: HttpAnswer) -> bool:
    start = answer.body[:4096]
    if any(start.startswith(mark) for mark, _ in _MARKED):
        return False
    if b"\0" in start:
        return True
    if answer.type.startswith("text/") or answer.type.endswith(("json", "xml", "javascript", "yaml")):
        return False
    try:
        codecs.getincrementaldecoder("utf-8")("strict").decode(start)
    except UnicodeError:
        return True
    return False


def _size(answer: HttpAnswer) -> str:
    size = answer.size if answer.size is not None else len(answer.body)
    unit, name = next((pair for pair in ((10**6, "MB"), (1000, "kB")) if size >= pair[0]), (1, "bytes"))
    more = "more than " if answer.cut and answer.size is None else ""
    return f"{more}{size / unit:.3g} {name}"
