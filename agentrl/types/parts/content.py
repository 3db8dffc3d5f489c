"""Content of messages: text, or a list of parts.

A part is `{"type": "text", "text": ...}` or `{"type": "image", "blob": SHA-256, "width": ..., "height": ...,
"format": ...}`. Records and renderers identify images by the hash of their file; the bytes are a blob of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from agentrl.types.parts.image import checked_image, data_url, is_pil
from agentrl.types.values import ValueRefused, plain, shown, text

Part = dict[str, Any]
Content = str | list[Part]
TakeImage = Callable[[Any], Part]
"""Makes a part of an image: bytes, a path, a data URL, a PIL image."""

_IMAGE_KEYS = ("image", "path", "url")
_REMEDY = (
    'a content is text, or a list of {"type": "text", "text": ...} and {"type": "image", "image": bytes, path, PIL '
    "image or data URL}"
)


def message(value: Any, what: str, take: TakeImage | None = None) -> dict[str, Any]:
    """Converts a chat message of user code: `role` and `content` checked, the other keys as plain JSON.

    Args:
        take: makes parts of images; without it they become JSON (a path, or a data URL).

    Raises:
        ValueRefused: it is not a dict with a role, a key of it is not JSON, or a part of its content is invalid.
    """
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str):
        raise ValueRefused(
            f"{what} is {shown(value)}", remedy='a message is {"role": "user", "content": "text"}, with both keys'
        )
    made = {"role": text(value["role"]), "content": checked(value.get("content"), what, take or _for_a_task)}
    return made | {key: plain(more, (key,)) for key, more in value.items() if key not in made}


def messages(given: Any, what: str, take: TakeImage | None = None) -> list[dict[str, Any]]:
    """Converts a list of messages, copied.

    Raises:
        ValueRefused: it is not a list, or holds an invalid message.
    """
    if not isinstance(given, list | tuple):
        raise ValueRefused(f"{what} is {shown(given)}", remedy="give a list of messages")
    return [message(value, f"message {k} of {what}", take) for k, value in enumerate(given)]


def with_images(said: str, images: Sequence[Part]) -> Content:
    """Returns a text, followed by images if any."""
    return [*([_text(said)] if said else []), *images] if images else said


def parts_of(content: Any) -> list[Part]:
    """Returns any content as parts."""
    return content if isinstance(content, list) else [_text(text(content))]


def joined(*pieces: Any) -> Content:
    """Joins contents: to a text if all of them are, else to a list of parts."""
    if all(part["type"] == "text" for piece in pieces for part in parts_of(piece)):
        return "".join(map(text_of, pieces))
    made: list[Part] = []
    for part in (part for piece in pieces for part in parts_of(piece)):
        if part["type"] == "text" and made and made[-1]["type"] == "text":
            made[-1] = _text(made[-1]["text"] + part["text"])
        elif part["type"] != "text" or part["text"]:
            made.append(part)
    return made


def text_of(content: Any, image: Callable[[Part], str] = lambda part: "[image]") -> str:
    """Returns the text of a content. `image` makes the text for an image."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] if part.get("type") == "text" else image(part) for part in parts_of(content))


def image_parts(messages: Iterable[Mapping[str, Any]]) -> Iterator[Part]:
    """Yields the images of recorded messages, in order."""
    for each in messages:
        if isinstance(content := each.get("content"), list):
            yield from (part for part in content if isinstance(part, dict) and isinstance(part.get("blob"), str))


def line_of(part: Mapping[str, Any], size: int | None = None) -> str:
    """Describes an image in a line: `[image 640x480 png 12.3 kB sha256:ab12...]`. `size`: of its file, if it exists."""
    kept = "missing" if size is None else f"{size / 1000:.1f} kB"
    sides = f"{part.get('width', '?')}x{part.get('height', '?')}"
    return f"[image {sides} {part.get('format', '?')} {kept} sha256:{str(part.get('blob'))[:12]}]"


def checked(value: Any, what: str, take: TakeImage) -> Content:
    """Converts a content of user code, its images by `take`.

    Raises:
        ValueRefused: it is neither text nor a list of parts.
    """
    if is_pil(value):
        value = [{"type": "image", "image": value}]
    if not isinstance(value, list | tuple):
        if isinstance(value, dict):
            raise ValueRefused(f"the content of {what} is {shown(value)}", remedy=_REMEDY)
        return text(value)
    return [_part(part, f"part {k} of {what}", take) for k, part in enumerate(value)]


def _part(given: Any, what: str, take: TakeImage) -> Part:
    if isinstance(given, str):
        return _text(text(given))
    if isinstance(given, Mapping) and given.get("type") == "text" and "text" in given:
        return _text(text(given["text"]))
    if isinstance(given, Mapping) and given.get("type") == "image_url":
        return take(_data_url(given.get("image_url"), what))
    if isinstance(given, Mapping) and given.get("type") == "image":
        if isinstance(given.get("blob"), str):
            return take(dict(given))
        key = next((key for key in _IMAGE_KEYS if given.get(key) is not None), None)
        if key is not None:
            return take(given[key])
    raise ValueRefused(f"{what} is {shown(given)}", remedy=_REMEDY)


def _data_url(given: Any, what: str) -> str:
    """Returns the data URL of an API's image part. Other URLs are refused: none is fetched or opened."""
    url = given.get("url") if isinstance(given, Mapping) else given
    if not isinstance(url, str) or not url.startswith("data:"):
        raise ValueRefused(f"{what} has the image_url {shown(url)}", remedy="write data:image/png;base64,...")
    return url


def _text(said: str) -> Part:
    return {"type": "text", "text": said}


def _for_a_task(given: Any) -> Part:
    """Converts an image to JSON for a task."""
    if isinstance(given, dict):
        return dict(given)
    if isinstance(given, str) and given.startswith("data:"):
        return {"type": "image", "image": given}
    if isinstance(given, str) or hasattr(given, "__fspath__"):
        return {"type": "image", "image": str(given)}
    return {"type": "image", "image": data_url(checked_image(given))}
