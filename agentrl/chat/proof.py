"""Proof that a renderer appends exactly the text that the chat template would write.

Replies are sampled and remain as sampled: changes of the template to earlier replies (dropped thoughts, other white
space) do not matter. The text *between* two replies does: it must not depend on the earlier conversation, because the
renderer shows the template only the last reply.
"""

from __future__ import annotations

import re

from agentrl.chat.formats.native_calls import told
from agentrl.chat.presence import LEFT_OUT
from agentrl.chat.recognise import called_message, writes_unknown_calls
from agentrl.chat.renderer import Renderer
from agentrl.chat.samples import (
    MARK,
    PROBE,
    REPLY,
    STAND_IN,
    USER,
    conversation_with_images,
    result,
    sample_conversations,
)
from agentrl.chat.template import KEEP_TURNS
from agentrl.chat.tokenizer import Tokenizer
from agentrl.types.errors import RenderError
from agentrl.types.task import Message

TOOLS_MOVE = (
    "the chat template describes tools where later messages move them: they are described in the system message "
    "instead, in the format {}"
)
CALLS_UNKNOWN = (
    "the chat template writes tool calls in a form that no format reads: the model is asked for {} instead; "
    "agent.format: ./file.py:Parser reads its own"
)
SYSTEM_MOVES = (
    "the chat template writes the system message where later messages move it: it becomes part of the user's first"
)


def check(renderer: Renderer) -> None:
    """Proves that a renderer appends the text that its template would write.

    If the template describes tools in a place that moves, the system message describes them instead, and a system
    message that moves becomes part of the user's first. Remarks for the user are added to the renderer's `notes`.

    Raises:
        RenderError: the template is not append-only; names the message, the first difference, and a remedy.
    """
    try:
        prove(renderer)
    except RenderError:
        if not _gets_around(renderer):
            raise
    if writes_unknown_calls(renderer.tokenizer, renderer.parser):
        renderer.notes.append(CALLS_UNKNOWN.format(renderer.parser.name))
    if (note := thoughts_note(renderer.tokenizer, *renderer.parser.thought)) is not None:
        renderer.notes.append(note)
    if _drops_what_stands_beside_calls(renderer):
        renderer.notes.append(LEFT_OUT["beside calls"])


def _gets_around(renderer: Renderer) -> bool:
    """Returns True if the proof holds with fewer parts left to the template: without tools, then without the system
    message.
    """
    for change, note in ((renderer.describe_tools_in_system, TOOLS_MOVE), (renderer.system_in_user, SYSTEM_MOVES)):
        if not change():
            continue
        renderer.notes.append(note.format(renderer.parser.name))
        try:
            prove(renderer)
        except RenderError:
            continue
        return True
    return False


def prove(renderer: Renderer) -> None:
    """Compares representative conversations, rendered as a whole, with what the renderer appends turn by turn.

    Raises:
        RenderError: something differs.
    """
    conversations = sample_conversations(renderer.parser, sorted(renderer.tokenizer.special))
    if renderer.processor is not None:
        conversations.append(conversation_with_images())
    for conversation in conversations:
        replies = [index for index, message in enumerate(conversation) if message["role"] == "assistant"]
        for count, index in enumerate(replies):
            _prove_prompt(renderer, conversation[:index], replies[:count])


def thoughts_note(tokenizer: Tokenizer, opened: str, closed: str) -> str | None:
    """Returns a note if the template drops the thoughts of earlier replies, which remain here."""
    thinking: Message = {"role": "assistant", "content": f"{opened}\n{STAND_IN}\n{closed}\n\nYes."}
    try:
        shown = tokenizer.render([USER, thinking, USER], None, True)
    except RenderError:
        return None
    if STAND_IN in shown:
        return None
    return LEFT_OUT["thoughts"]


def _drops_what_stands_beside_calls(renderer: Renderer) -> bool:
    """Returns True if the template shows the calls of an earlier reply, but not its other text."""
    if not renderer._calls_as_keys:
        return False
    calling = {**called_message("probe", renderer._results[1]), "content": PROBE}
    try:
        shown = renderer.tokenizer.render([USER, calling, result("", renderer._results[1]), REPLY, USER], None, True)
    except RenderError:
        return False
    return PROBE not in shown


def _prove_prompt(renderer: Renderer, messages: list[Message], replies: list[int]) -> None:
    """Proves the prompt of one reply: the last piece token by token, earlier ones up to the start of a reply."""
    calls = {index for index in replies if renderer._call_close is not None and _is_answered(messages, index)}
    marked = [_marked(renderer, message, index, index in calls) for index, message in enumerate(messages)]
    whole = renderer._opening_text(marked)
    pieces = _pieces(renderer, whole, replies, calls)
    ends = [*replies, len(messages)]
    for count, piece in enumerate(pieces):
        begin = replies[count - 1] + 1 if count else 0
        new = messages[begin : ends[count]]
        called = count > 0 and replies[count - 1] in calls
        expected = _expected(renderer, new, first=not count, called=called)
        if count < len(pieces) - 1:
            bare = _expected(renderer, new, first=not count, called=called, generation=False)
            opens = bare != expected and expected.startswith(bare)  # the opening may depend on earlier messages
            expected = bare if opens else expected.removesuffix(renderer._generation)
            piece = piece[: len(expected)]
        if piece != expected:
            _refuse(renderer, new, begin, expected, piece, first=not count, called=called)
    new = messages[replies[-1] + 1 :] if replies else messages
    if replies:
        last, tokens = renderer._encode(pieces[-1], after=renderer._end_text), renderer.extend((), new)
        last = renderer._with_images(last, new)
    else:
        last, tokens = renderer.start(new), renderer._with_images(renderer._encode(whole, after=""), new)
    if not (replies and replies[-1] in calls) and last != tokens:
        _refuse(renderer, messages, 0, str(tokens), str(last), first=True, called=False)


def _is_answered(messages: list[Message], index: int) -> bool:
    return index + 1 < len(messages) and messages[index + 1]["role"] == "tool"


def _marked(renderer: Renderer, message: Message, index: int, calls: bool) -> Message:
    """Returns a reply with a mark at its end; a reply with an answered call in the template's own form."""
    if message["role"] != "assistant":
        return message
    mark = f"{STAND_IN}-{index}-"
    if calls:
        return called_message("probe", renderer._results[1], argument=mark)
    return told([{**message, "content": message["content"] + mark}], renderer.parser, renderer._calls_as_keys)[0]


def _pieces(renderer: Renderer, whole: str, replies: list[int], calls: set[int]) -> list[str]:
    """Returns the text before, between and behind the replies; the end of a reply belongs to the text behind it."""
    pieces, rest = [], whole
    for index in replies:
        piece, found, rest = rest.partition(f"{STAND_IN}-{index}-")
        if not found:
            raise RenderError(
                f"the chat template is not append-only: it drops or changes message {index} (assistant) of a test "
                f"conversation of {len(replies)} replies",
                place=renderer.tokenizer.name,
                remedy=KEEP_TURNS,
            )
        pieces.append(piece)
        close = renderer._call_close
        if index in calls and close is not None:
            rest = close.end + rest.partition(close.end)[2]
    return [*pieces, rest]


def _expected(renderer: Renderer, new: list[Message], *, first: bool, called: bool, generation: bool = True) -> str:
    if first:
        return renderer._opening_text(new, generation=generation)
    return renderer._after(new, called=called, generation=generation)[1]


def _refuse(
    renderer: Renderer, new: list[Message], begin: int, expected: str, found: str, *, first: bool, called: bool
) -> None:
    """Raises an error that names the differing message of a piece: the first without which the texts differ later."""
    at = _common(expected, found)
    where = "the generation prompt"
    for count in range(1, len(new)):
        shorter = _expected(renderer, new[:count], first=first, called=called).removesuffix(renderer._generation)
        if _common(shorter, expected) > at:
            where = f"message {begin + count - 1} ({new[count - 1]['role']})"
            break
    else:
        if at < len(expected.removesuffix(renderer._generation)):
            where = f"message {begin + len(new) - 1} ({new[-1]['role']})"
    raise RenderError(
        f"the chat template is not append-only: {where} of a test conversation differs: the whole renders "
        f"{_shown(found, at)}, turn by turn it is {_shown(expected, at)}",
        place=renderer.tokenizer.name,
        remedy=KEEP_TURNS,
    )


def _common(a: str, b: str) -> int:
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _shown(text: str, at: int) -> str:
    return repr(re.sub(MARK, "", text[at : at + 60])) if at < len(text) else "nothing more"
