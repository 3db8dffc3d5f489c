"""Interface of image processors for the renderer: the tokens of an image."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from agentrl.chat.formats.parser import ParseFault
from agentrl.types.errors import RenderError
from agentrl.types.parts.content import Content, Part, text_of
from agentrl.types.parts.intake import TAKES_IMAGES
from agentrl.types.parts.placeholders import ids_of

_KEY_OF = {"text": "text", "image": "blob"}


class Processor(Protocol):
    """Processor of a vision model, in addition to its tokenizer.

    Attributes:
        name: for messages to people.
        placeholder: the control token that the chat template writes for an image.
        vision_tokens: ids of the vocabulary for images, which a reply must not contain.
        settings: all that affect the number of tokens of an image, as JSON; a run continues only with the same.
    """

    @property
    def name(self) -> str: ...

    @property
    def placeholder(self) -> str: ...

    @property
    def vision_tokens(self) -> Collection[int]: ...

    @property
    def settings(self) -> Mapping[str, Any]: ...

    def layout(self, width: int, height: int) -> Sequence[int | None]:
        """Returns the tokens in place of the template's placeholder: ids of the vocabulary (borders, rows), and None
        for every placeholder that the model replaces by image features.
        """
        ...


def sampled_image(
    processor: Processor, sampled_ids: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> ParseFault | None:
    """Returns the fault of a reply with an image token, which has no meaning there; None if it has none.

    A model's forward pass would look for the image of this placeholder.
    """
    if not (found := set(sampled_ids).intersection(processor.vision_tokens)):
        return None
    name = decode([min(found)])
    return ParseFault(name, f"the reply holds {name}, which stands for an image: write text only")


class OneToken:
    """One token per image: for scripts and APIs, which count tokens themselves."""

    name = "one token an image"
    placeholder = "<|image|>"
    vision_tokens: Collection[int] = ()
    settings: Mapping[str, Any] = {"use": "one_token"}

    def layout(self, width: int, height: int) -> Sequence[int | None]:
        """Returns one placeholder."""
        return (None,)


def expanded(token_ids: list[int], placeholder: int, images: Sequence[Part], processor: Processor) -> list[int]:
    """Returns the tokens for the record: every placeholder of the template is replaced by those of its image.

    Raises:
        RenderError: the template did not write one for each image.
    """
    if (written := token_ids.count(placeholder)) != len(images):
        raise RenderError(
            f"the chat template writes {written} placeholders for {len(images)} images",
            place=processor.name,
            remedy="a template that takes image parts in messages of this role (docs/images.md)",
        )
    made: list[int] = []
    left = iter(images)
    for token in token_ids:
        made += _tokens_of(next(left), processor) if token == placeholder else (token,)
    return made


def as_template_content(content: Any, processor: Processor | None, name: str, place: str) -> Content:
    """Returns the content of a message for chat templates: a text, unless it holds an image.

    Args:
        name: of the tokenizer.

    Raises:
        RenderError: it is not a content, or holds an image for a model without vision.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(map(_is_part, content)):
        raise RenderError(
            f"the content of a message is a {type(content).__name__} that holds more than text and images",
            place=place,
            remedy='write it as a string, or as parts: {"type": "text", "text": ...}, {"type": "image", "blob": ...}',
        )
    if all(part["type"] == "text" for part in content):
        return text_of(content)
    if processor is None or "(assistant)" in place:
        who = "a reply holds" if processor is not None else f"the model of {name} takes text only, and a message holds"
        raise RenderError(f"{who} an image", place=place, remedy=TAKES_IMAGES)
    return [{"type": "text", "text": p["text"]} if p["type"] == "text" else {"type": "image"} for p in content]


def _is_part(given: Any) -> bool:
    return isinstance(given, dict) and isinstance(given.get(_KEY_OF.get(given.get("type", ""), "")), str)


def _tokens_of(part: Part, processor: Processor) -> list[int]:
    layout = processor.layout(int(part.get("width", 1)), int(part.get("height", 1)))
    own = iter(ids_of(part["blob"], sum(token is None for token in layout)))
    return [next(own) if token is None else token for token in layout]
