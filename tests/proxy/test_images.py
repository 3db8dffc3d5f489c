"""Images in the requests of agent programs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.store.check import check
from agentrl.store.run_dir import RunDir
from agentrl.types.parts.image import data_url
from agentrl.types.parts.placeholders import ids_of
from tests.images import BLUE, RED

from .test_proxy import Parrot, connected, user


class Seer(Parrot):
    """A parrot with eyes: remembers the tokens."""

    sees = True

    async def generate(self, token_ids: Any, sampling: Any, session: str) -> Any:
        self.seen = [*getattr(self, "seen", []), list(token_ids)]
        return await super().generate(token_ids, sampling, session)


def shown(text: str, data: bytes) -> dict[str, Any]:
    image = {"type": "image_url", "image_url": {"url": data_url(data), "detail": "low"}}
    return {"role": "user", "content": [{"type": "text", "text": text}, image]}


async def test_conversations_that_differ_in_an_image_are_two(tmp_path: Path) -> None:
    """Their texts are equal, and so are the model's own placeholders."""
    engine = Seer("first", "second", "third")
    async for client in connected(engine, ByteTokenizer()):
        first = await client.say([shown("What is it?", RED)])
        await client.say([shown("What is it?", RED), first, user("And now?")])
        await client.say([shown("What is it?", BLUE), first, user("And now?")])
        episode = await client.end()
    (red, text), *_ = [sorted(m["content"], key=lambda part: part["type"]) for m in episode.prompt]
    assert (red["width"], red["format"], text["text"]) == (8, "png", "What is it?")
    second, third = engine.seen[1:]
    assert second[: len(engine.seen[0])] == engine.seen[0]  # the same image: the tokens go on
    assert [token for token in second if token < 0] == ids_of(red["blob"], 1)
    assert len(third) == len(second)
    assert len([1 for a, b in zip(second, third, strict=True) if a != b]) == 1  # the image alone
    assert [branch.reason for branch in episode.branches] == ["edit"]
    assert [node.parent for node in episode.nodes if node.kind == "prompt"] == [-1, -1]
    asked = [part for message in episode.branches[0].messages or () for part in message["content"]]
    assert [part["blob"] for part in asked if "blob" in part] == [hashlib.sha256(BLUE).hexdigest()]
    with RunDir.create(tmp_path / "run") as run:
        for data in (RED, BLUE):
            run.put_blob(data)
        run.add(episode)
    report = check(tmp_path / "run")
    assert not report.invariants["images"].failed
    assert not report.invariants["blobs"].failed


async def test_a_tool_result_with_an_image_is_recorded() -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    from .test_proxy import ADD

    async for client in connected(Seer(call, "done"), ByteTokenizer()):
        first = await client.say([user("Go.")], tools=[ADD])
        result = {**shown("Look:", RED), "role": "tool", "tool_call_id": first["tool_calls"][0]["id"]}
        await client.say([user("Go."), first, result], tools=[ADD])
        episode = await client.end()
    (done,) = episode.turns[0].calls
    assert (done.result, [image["format"] for image in done.images]) == ("Look:", ["png"])


async def test_what_cannot_be_taken_is_refused() -> None:
    async for client in connected(Seer("never"), ByteTokenizer()):
        for content, why in (
            ([{"type": "input_audio", "input_audio": {}}], "a message holds 'input_audio'"),
            ([{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}], "has the image_url 'https"),
            ([{"type": "image_url", "image_url": {"url": "/etc/hostname"}}], "has the image_url '/etc/hostname'"),
            ([{"type": "image", "image": "/etc/hostname"}], "a message holds 'image'"),
            ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}], "3 bytes are no image"),
            ({"type": "text"}, "neither text nor a list"),
        ):
            reply = await client.chat([{"role": "user", "content": content}])
            assert why in reply["error"]["message"]
    async for client in connected(Parrot("never"), ByteTokenizer()):
        reply = await client.chat([shown("What is it?", RED)])
        assert reply["error"]["code"] == "invalid_request_error"
        assert "the engine parrot takes text only: it is shown an image" in reply["error"]["message"]


def posted(kind: str) -> tuple[str, dict[str, Any]]:
    """Path and body of a request that shows a red image, in an API's own form."""
    data = data_url(RED).partition(",")[2]
    source = {"type": "base64", "media_type": "image/png", "data": data}
    bodies: dict[str, tuple[str, dict[str, Any]]] = {
        "chat": ("chat/completions", {"messages": [shown("What is it?", RED)]}),
        "responses": (
            "responses",
            {
                "input": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "input_text", "text": "What is it?"},
                            {"type": "input_image", "image_url": data_url(RED)},
                        ],
                    }
                ]
            },
        ),
        "anthropic": (
            "messages",
            {
                "max_tokens": 9,
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "text", "text": "What is it?"}, {"type": "image", "source": source}],
                    }
                ],
            },
        ),
    }
    return bodies[kind]


async def test_every_api_shows_the_same_image() -> None:
    engine = Seer("red", "red", "red")
    async for client in connected(engine, ByteTokenizer()):
        for kind in ("chat", "responses", "anthropic"):
            path, body = posted(kind)
            reply = await client.http.post(f"{client.url}/s/{kind}/v1/{path}", json=body)
            assert reply.status == 200, await reply.text()
    assert engine.seen[0] == engine.seen[1] == engine.seen[2]
    assert len([token for token in engine.seen[0] if token < 0]) == 1
