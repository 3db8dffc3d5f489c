"""Interface of tokenizers for the renderer: text to ids and back, and the chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agentrl.chat.processor import OneToken, Processor
from agentrl.types.errors import MissingExtra, RenderError
from agentrl.types.parts.content import text_of
from agentrl.types.task import Message

if TYPE_CHECKING:
    import jinja2


class Tokenizer(Protocol):
    """Tokenizer for the renderer.

    Attributes:
        name: for messages to people.
        vocab_size: ids are below it.
        stop_ids: tokens that end a turn under every template (the tokenizer's eos first, if it has one).
        controls: control tokens by their text; `encode(..., special=False)` never makes one of the `special` ones.
        special: texts in `controls` that untrusted text must never produce.

    A tokenizer of a vision model also has an attribute `processor` (`chat.processor`).
    """

    name: str
    vocab_size: int
    stop_ids: tuple[int, ...]
    controls: dict[str, int]
    special: frozenset[str]

    def encode(self, text: str, special: bool) -> list[int]:
        """Returns the token ids of `text`, without additions.

        Args:
            special: whether the text of a control token becomes the control token.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of `ids`, control tokens included."""
        ...

    def render(self, messages: list[Message], tools: list[dict[str, Any]] | None, add_generation_prompt: bool) -> str:
        """Applies the chat template.

        Raises:
            RenderError: the template refuses the conversation.
        """
        ...


def control_pattern(texts: Iterable[str]) -> re.Pattern[str] | None:
    """Returns a pattern of control tokens in a text; None without writable ones.

    Control tokens of a single character are ambiguous, and runs of spaces (tokens of some vocabularies) control
    nothing: both are left out.
    """
    writable = sorted((text for text in texts if len(text) > 1 and not text.isspace()), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, writable))) if writable else None


def break_up(text: str, pattern: re.Pattern[str] | None, mark: str) -> str:
    """Inserts `mark` into every control token's text, after its first character.

    Split at the marks and encoded piece by piece, the text has no control tokens, and its characters are unchanged.
    """
    while pattern is not None and pattern.search(text):
        text = pattern.sub(lambda found: found[0][0] + mark + found[0][1:], text)
    return text


def _encode_plain(tokenizer: Tokenizer, text: str) -> list[int]:
    # U+FFFF is a noncharacter: control tokens never contain it, and it never reaches the tokenizer.
    pieces = break_up(text.replace("\uffff", "\ufffd"), control_pattern(tokenizer.special), "\uffff").split("\uffff")
    return [token for piece in pieces for token in tokenizer.encode(piece, True)]


class ByteTokenizer:
    """UTF-8 bytes, four control tokens and the ChatML template: for scripted engines, without any dependency.

    Ids 0 to 255 are bytes. The template knows no `tools`: the renderer describes them in the parser's own format.
    """

    name = "bytes"
    processor: Processor = OneToken()
    controls = {"<|im_start|>": 256, "<|im_end|>": 257, "<|pad|>": 258, OneToken.placeholder: 259}
    special = frozenset(controls)
    vocab_size = 256 + len(controls)
    stop_ids: tuple[int, ...] = (257,)

    _splitter = re.compile("(" + "|".join(map(re.escape, controls)) + ")")
    _bytes = [bytes([value]) for value in range(256)] + [text.encode() for text in controls]

    def encode(self, text: str, special: bool) -> list[int]:
        """Returns one id per byte; control tokens are recognised if `special`."""
        if not special:
            return list(text.encode("utf-8", "replace"))
        ids: list[int] = []
        for piece in self._splitter.split(text):
            ids += [self.controls[piece]] if piece in self.controls else piece.encode("utf-8", "replace")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Decodes ids: invalid UTF-8 becomes U+FFFD; placeholders of images (negative) become the control token."""
        known = [token if token >= 0 else self.controls[OneToken.placeholder] for token in ids]
        return b"".join([self._bytes[token] for token in known]).decode("utf-8", "replace")

    def render(self, messages: list[Message], tools: list[dict[str, Any]] | None, add_generation_prompt: bool) -> str:
        """Renders ChatML: `<|im_start|>role`, newline, content, `<|im_end|>`, newline."""
        said = [text_of(message["content"], lambda image: OneToken.placeholder) for message in messages]
        turns = [f"<|im_start|>{m['role']}\n{text}<|im_end|>\n" for m, text in zip(messages, said, strict=True)]
        return "".join(turns) + ("<|im_start|>assistant\n" if add_generation_prompt else "")


TURN_ENDS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>", "<|end|>", "</s>",
)  # fmt: skip
"""Control tokens that model families use to end a turn. Base and instruct models disagree on which of them is `eos`,
so every one in the vocabulary stops sampling."""

CALL_ENDS = ("<|call|>", "<|eom_id|>", "<|tool_response>", "<|observation|>", "<|tools_suffix|>")
"""Control tokens that end a reply with a tool call, in families with a separate one for that."""


def _generation_ends(folder: str, vocab_size: int) -> list[int]:
    """Returns the tokens that end sampling, from `generation_config.json` in a model's folder."""
    file = Path(folder) / "generation_config.json"
    try:
        ends = json.loads(file.read_bytes()).get("eos_token_id")
    except (OSError, ValueError, AttributeError):
        return []
    return [end for end in (ends if isinstance(ends, list) else [ends]) if isinstance(end, int) and end < vocab_size]


class HFTokenizer:
    """A transformers tokenizer with its own chat template.

    Args:
        tokenizer: a `PreTrainedTokenizer` (fast ones are encoded with directly, four times quicker).
        processor: of a vision model.

    Raises:
        RenderError: it has no chat template.
    """

    def __init__(self, tokenizer: Any, processor: Processor | None = None) -> None:
        self.name = str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
        if not tokenizer.chat_template:
            raise RenderError(
                "the tokenizer has no chat template (a base model?)",
                place=self.name,
                remedy="use an instruct model, or save a template as chat_template.jinja in the model's folder",
            )
        self.hf, self.processor = tokenizer, processor
        self.vocab_size = len(tokenizer)
        added = tokenizer.added_tokens_decoder
        self.controls = {str(token): int(index) for index, token in added.items()}
        self.special = frozenset(
            [str(token) for token in added.values() if token.special] + list(tokenizer.all_special_tokens)
        )
        ends = [self.controls[text] for text in TURN_ENDS if text in self.controls]
        eos = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
        self.stop_ids = tuple(dict.fromkeys([*eos, *ends, *_generation_ends(self.name, self.vocab_size)]))
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        self._render = _template_of(tokenizer)
        self._in_parts = processor is not None and self._drops_strings()

    @classmethod
    def load(cls, folder: str) -> HFTokenizer:
        """Loads the tokenizer of a model's folder.

        Raises:
            MissingExtra: transformers is not installed.
        """
        try:
            from transformers import AutoTokenizer
        except ImportError:
            raise MissingExtra("transformers", "train") from None
        return cls(AutoTokenizer.from_pretrained(folder))

    def encode(self, text: str, special: bool) -> list[int]:
        """Returns token ids; lone surrogates (undecodable output of a command) are encoded as `?`."""
        if not special:
            return _encode_plain(self, text)
        text = text.encode("utf-8", "replace").decode()
        if self._backend is None:
            return list(self.hf.encode(text, add_special_tokens=False))
        # "fast": without the unused offsets into the text, which take a third of the time.
        return list(self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text, control tokens included, spaces unchanged; placeholders of images as the control token."""
        if self.processor is not None and min(ids, default=0) < 0:
            placeholder = self.controls[self.processor.placeholder]
            ids = [token if token >= 0 else placeholder for token in ids]
        if self._backend is None:
            return str(self.hf.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))
        return str(self._backend.decode(list(ids), skip_special_tokens=False))

    def render(self, messages: list[Message], tools: list[dict[str, Any]] | None, add_generation_prompt: bool) -> str:
        """Applies the model's own template."""
        if self._in_parts:
            messages = [message | {"content": _in_parts(message["content"])} for message in messages]
        try:
            return str(self._render(messages, tools=tools, add_generation_prompt=add_generation_prompt))
        except Exception as error:  # a template may raise anything: it is a program
            raise RenderError(
                f"the chat template refuses the conversation: {type(error).__name__}: {error}",
                place=self.name,
                remedy=f"roles in the conversation: {', '.join(str(m.get('role')) for m in messages)}",
            ) from error

    def _drops_strings(self) -> bool:
        """Returns True if the template writes contents that are lists of parts, but drops strings (Idefics3's)."""
        probe = "stand-in"
        try:
            shown = self.hf.apply_chat_template([{"role": "user", "content": probe}], tokenize=False)
            in_parts = self.hf.apply_chat_template([{"role": "user", "content": _in_parts(probe)}], tokenize=False)
        except Exception:  # a template is a program; the proof of rendering reports its faults
            return False
        return probe not in shown and probe in in_parts


class _Template:
    """Renders conversations by the chat template of a transformers tokenizer.

    As its `apply_chat_template` does it, but what takes longer than a short template is done once: the map of special
    tokens, and the choice of the compiled template.
    """

    def __init__(self, hf: Any) -> None:
        self._hf, self._special = hf, dict(hf.special_tokens_map)
        self._compiled: dict[str, jinja2.Template] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state that a worker gets: it compiles the template itself."""
        return {**vars(self), "_compiled": {}}

    def __call__(self, messages: list[Message], *, tools: list[dict[str, Any]] | None, **settings: Any) -> str:
        text = self._hf.get_chat_template(None, tools)
        if (template := self._compiled.get(text)) is None:
            template = self._compiled[text] = _compiled(text)
        return template.render(messages=messages, tools=tools, documents=None, **settings, **self._special)


def _compiled(text: str) -> jinja2.Template:
    """Compiles a chat template as transformers does. `message.role` of a dict is looked up at once, without a search
    for an attribute of this name, which raises an exception each time.
    """
    from transformers.utils.chat_template_utils import _compile_jinja_template

    environment = _compile_jinja_template(text).environment.overlay()
    of_any = environment.getattr

    def member(value: Any, name: str) -> Any:
        if type(value) is dict and name in value and name not in _ATTRIBUTES:
            return value[name]
        return of_any(value, name)

    environment.getattr = member
    compiled: jinja2.Template = environment.from_string(text)
    return compiled


_ATTRIBUTES = frozenset(dir(dict))
"""Attributes of a dict: a template gets them, not the values under these names."""


def _template_of(hf: Any) -> Callable[..., str]:
    from transformers import PreTrainedTokenizerBase

    if getattr(type(hf), "apply_chat_template", None) is PreTrainedTokenizerBase.apply_chat_template:
        return _Template(hf)
    return partial(hf.apply_chat_template, tokenize=False)


def _in_parts(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
