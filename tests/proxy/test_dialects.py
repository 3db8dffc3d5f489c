"""The clients of OpenAI and Anthropic, as they are on PyPI, against the proxy."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI, BadRequestError

from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.engines.http import Refused
from agentrl.types.episode import Episode
from agentrl.types.errors import EngineError
from tests.proxy.world import ADD, Client, Parrot, connected, texts

TWO = (
    'I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
)
SCHEMA = ADD["function"]["parameters"]
ASKED: Any = {"messages": [{"role": "user", "content": "a"}]}
RESPONSES_ADD: Any = {"type": "function", "name": "add", "description": "Adds.", "parameters": SCHEMA, "strict": False}
ANTHROPIC_ADD: Any = {"name": "add", "description": "Adds.", "input_schema": SCHEMA}


def openai(client: Client) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{client.url}/v1", api_key="s", max_retries=0)


def anthropic(client: Client) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=f"{client.url}/s/s", api_key="any", max_retries=0)


async def by_responses(client: Client, stream: bool) -> tuple[list[str], str]:
    """Asks, runs the calls, asks again with all items; the calls' arguments and the last text."""
    made = openai(client)
    items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "Add 1 and 2."}]}]

    async def ask() -> Any:
        given: dict[str, Any] = {"model": "m", "instructions": "Be brief.", "input": items, "tools": [RESPONSES_ADD]}
        if not stream:
            return await made.responses.create(**given)
        async with made.responses.stream(**given) as events:
            kinds = [event.type async for event in events]
            assert kinds[0] == "response.created"
            assert kinds[-1] == "response.completed"
            return await events.get_final_response()

    first = await ask()
    assert first.usage.input_tokens > first.usage.output_tokens > 10
    assert [item.type for item in first.output] == ["message", "function_call", "function_call"]
    assert first.output_text == "I add."
    items += [item.model_dump(exclude_none=True) for item in first.output]
    calls = [item for item in first.output if item.type == "function_call"]
    for call in calls:
        value = str(json.loads(call.arguments)["a"])
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": value})
    return [call.arguments for call in calls], (await ask()).output_text


async def by_messages(client: Client, stream: bool) -> tuple[list[str], str]:
    made = anthropic(client)
    messages: list[Any] = [{"role": "user", "content": "Add 1 and 2."}]

    async def ask() -> Any:
        system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
        given: Any = {"model": "m", "max_tokens": 100, "system": system, "messages": messages, "tools": [ANTHROPIC_ADD]}
        if not stream:
            return await made.messages.create(**given)
        async with made.messages.stream(**given) as events:
            return await events.get_final_message()

    first = await ask()
    assert first.stop_reason == "tool_use"
    assert first.usage.input_tokens > first.usage.output_tokens > 10
    assert [block.type for block in first.content] == ["text", "tool_use", "tool_use"]
    assert first.content[0].text == "I add."
    messages.append({"role": "assistant", "content": [block.model_dump() for block in first.content]})
    calls = [block for block in first.content if block.type == "tool_use"]
    results = [
        {"type": "tool_result", "tool_use_id": c.id, "content": [{"type": "text", "text": str(c.input["a"])}]}
        for c in calls
    ]
    messages.append({"role": "user", "content": results})
    last = await ask()
    assert last.stop_reason == "end_turn"
    return [json.dumps(call.input) for call in calls], last.content[0].text


async def by_chat(client: Client, stream: bool) -> tuple[list[str], str]:
    made = openai(client)
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Add 1 and 2."}]

    async def ask() -> Any:
        given: Any = {"model": "m", "messages": messages, "tools": [ADD]}
        if not stream:
            return (await made.chat.completions.create(**given)).choices[0].message
        async with made.chat.completions.stream(**given) as events:
            return (await events.get_final_completion()).choices[0].message

    first = await ask()
    assert first.content == "I add."
    messages.append(first.model_dump(exclude_none=True))
    for call in first.tool_calls:
        value = str(json.loads(call.function.arguments)["a"])
        messages.append({"role": "tool", "tool_call_id": call.id, "content": value})
    return [call.function.arguments for call in first.tool_calls], (await ask()).content


NAMES = {by_chat: "OpenAI chat completions", by_responses: "OpenAI Responses", by_messages: "Anthropic Messages"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ask", [by_chat, by_responses, by_messages])
async def test_every_api_becomes_the_same_episode(ask: Any, stream: bool) -> None:
    parrot = Parrot(TWO, "It is 1 and 2.")
    async for client in connected(parrot, ByteTokenizer()):
        assert await ask(client, stream) == (['{"a": 1}', '{"a": 2}'], "It is 1 and 2.")
        episode = await client.end(reward=1.0)
    assert_same(episode)
    assert episode.info == {"apis": [NAMES[ask]]}
    assert parrot.prompts[1].startswith(parrot.prompts[0] + TWO)


def assert_same(episode: Episode) -> None:
    assert texts(episode) == [TWO, "It is 1 and 2."]
    assert [(c.name, c.arguments, c.result) for c in episode.turns[0].calls] == [
        ("add", {"a": 1}, "1"),
        ("add", {"a": 2}, "2"),
    ]
    assert [(m["role"], m["content"]) for m in episode.prompt] == [("system", "Be brief."), ("user", "Add 1 and 2.")]
    assert [node.kind for node in episode.nodes] == ["prompt", "sampled", "observation", "sampled"]
    assert episode.branches == []
    assert episode.components == {"reward": 1.0}


@pytest.mark.parametrize("stream", [False, True])
async def test_the_messages_api_names_the_stop_sequence(stream: bool) -> None:
    async for client in connected(Parrot("I look.\nObservation: 1", "Done."), ByteTokenizer()):

        async def ask(text: str, client: Client = client) -> Any:
            messages: Any = [{"role": "user", "content": text}]
            given: Any = {"model": "m", "max_tokens": 99, "messages": messages, "stop_sequences": ["Observation:"]}
            if not stream:
                return await anthropic(client).messages.create(**given)
            async with anthropic(client).messages.stream(**given) as events:
                return await events.get_final_message()

        cut, whole = await ask("Look."), await ask("On.")
    assert (cut.content[0].text, cut.stop_reason, cut.stop_sequence) == ("I look.\n", "stop_sequence", "Observation:")
    assert (whole.content[0].text, whole.stop_reason, whole.stop_sequence) == ("Done.", "end_turn", None)


async def test_responses_are_remembered_within_their_session() -> None:
    async for client in connected(Parrot("one", "two", "three"), ByteTokenizer()):
        made = openai(client)
        first = await made.responses.create(model="m", input="Count.")
        second = await made.responses.create(model="m", input="On.", previous_response_id=first.id)
        with pytest.raises(BadRequestError, match="has no response 'resp_x'"):
            await made.responses.create(model="m", input="On.", previous_response_id="resp_x")
        await made.responses.create(model="m", input="On.", previous_response_id=second.id, store=False)
        episode = await client.end()
    assert texts(episode) == ["one", "two", "three"]
    assert [node.parent for node in episode.nodes] == [-1, 0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("responses", {"input": [{"type": "item_reference", "id": "x"}]}, "an item of type 'item_reference'"),
        ("responses", {"input": "a", "tools": [{"type": "web_search"}]}, "a tool of type 'web_search'"),
        ("responses", {"input": "a", "conversation": "c"}, "'conversation'"),
        ("responses", {"input": 3}, "'input' must be a list"),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "has the image_url None"),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "an image has no source"),
        ("messages", {"messages": [{"role": "user", "content": "a"}], "stop_sequences": 3}, "'stop_sequences' is 3"),
        ("responses", {"input": "a", "stop": ["x"]}, "this API has no 'stop'"),
        ("messages", {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "bash_1"}]}, "'bash_1'"),
        ("messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": "many"}, "'max_tokens' is 'many'"),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "n": 0}, "'n' is 0"),
        ("chat/completions", {**ASKED, "tool_choice": "required"}, "'tool_choice' is \"required\""),
        ("chat/completions", {**ASKED, "tools": [ADD], "tool_choice": "none"}, "'tool_choice' is \"none\""),
        ("chat/completions", {**ASKED, "tool_choice": {"type": "function"}}, "'tool_choice' is {"),
        ("chat/completions", {**ASKED, "response_format": {"type": "json_object"}}, "'response_format' is {"),
        ("chat/completions", {**ASKED, "functions": [{"name": "f"}]}, "'functions' is ["),
        ("responses", {"input": "a", "tool_choice": "required"}, "'tool_choice' is \"required\""),
        ("responses", {"input": "a", "text": {"format": {"type": "json_schema"}}}, "'text.format' is {"),
        ("chat/completions", {**ASKED, "parallel_tool_calls": False}, "'parallel_tool_calls' is false"),
        ("chat/completions", {**ASKED, "logprobs": True}, "'logprobs' is true"),
        ("chat/completions", {**ASKED, "top_logprobs": 3}, "'top_logprobs' is 3"),
        ("chat/completions", {**ASKED, "seed": 7}, "'seed' is 7"),
        ("chat/completions", {**ASKED, "logit_bias": {"7": 1}}, "'logit_bias' is {"),
        ("chat/completions", {**ASKED, "presence_penalty": 0.5}, "'presence_penalty' is 0.5"),
        ("chat/completions", {**ASKED, "modalities": ["audio"]}, "'modalities' is ["),
        ("chat/completions", {**ASKED, "web_search_options": {"a": 1}}, "'web_search_options' is {"),
        ("chat/completions", {**ASKED, "guided_json": {"type": "object"}}, "'guided_json' is {"),
        ("chat/completions", {**ASKED, "chat_template_kwargs": {"x": 1}}, "'chat_template_kwargs' is {"),
        ("responses", {"input": "a", "parallel_tool_calls": False}, "'parallel_tool_calls' is false"),
        ("responses", {"input": "a", "max_tool_calls": 1}, "'max_tool_calls' is 1"),
        ("responses", {"input": "a", "truncation": "auto"}, "'truncation' is"),
        ("responses", {"input": "a", "top_logprobs": 1}, "'top_logprobs' is 1"),
        ("responses", {"input": "a", "n": 2}, "'n' is 2"),
        ("responses", {"input": "a", "seed": 2}, "'seed' is 2"),
        ("responses", {"input": "a", "prompt": {"id": "p"}}, "'prompt' is {"),
        ("messages", {**ASKED, "n": 2}, "'n' is 2"),
        ("messages", {**ASKED, "stop": ["x"]}, "'stop' is ["),
        ("messages", {**ASKED, "mcp_servers": [{"url": "x"}]}, "'mcp_servers' is ["),
        ("messages", {**ASKED, "container": "c"}, "'container' is"),
        ("messages", {**ASKED, "output_config": {"format": {"type": "json_schema"}}}, "'output_config' is {"),
        (
            "messages",
            {**ASKED, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            "'disable_parallel_tool_use' is true",
        ),
        ("messages", {**ASKED, "tool_choice": {"type": "any"}}, "'tool_choice' is \"any\""),
        ("messages", {**ASKED, "tool_choice": {"type": "tool", "name": "f"}}, "'tool_choice' is \"tool\""),
    ],
)
async def test_what_no_record_could_hold_is_refused_in_the_api_s_form(path: str, body: Any, said: str) -> None:
    async for client in connected(Parrot(), ByteTokenizer()):
        reply = await client.http.post(f"{client.url}/s/s/v1/{path}", json=body)
        error = await reply.json()
        assert reply.status == 400
        assert said in error["error"]["message"]
        assert error["error"]["type"] == "invalid_request_error"
        assert (error.get("type") == "error") == (path == "messages")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {**ASKED, "tools": [ADD], "tool_choice": "auto", "response_format": {"type": "text"}}),
        ("chat/completions", {**ASKED, "tool_choice": "none", "logit_bias": {}, "functions": None}),
        ("responses", {"input": "a", "tool_choice": "auto", "text": {"format": {"type": "text"}, "verbosity": "low"}}),
        ("messages", {**ASKED, "tools": [ANTHROPIC_ADD], "tool_choice": {"type": "auto"}}),
        (
            "chat/completions",
            {**ASKED, "parallel_tool_calls": True, "logprobs": False, "seed": None, "top_logprobs": 0},
        ),
        ("chat/completions", {**ASKED, "temperature": 0.0, "top_p": 0.9, "user": "u", "metadata": {"a": "b"}}),
        ("chat/completions", {**ASKED, "presence_penalty": 0.0, "store": True, "reasoning_effort": "low"}),
        ("responses", {"input": "a", "parallel_tool_calls": True, "store": False, "reasoning": {"effort": "low"}}),
        ("responses", {"input": "a", "include": [], "truncation": "disabled", "background": False}),
        ("messages", {**ASKED, "metadata": {"user_id": "u"}, "thinking": {"type": "enabled"}, "top_k": 5}),
    ],
)
async def test_a_request_may_say_what_holds_anyway(path: str, body: Any) -> None:
    async for client in connected(Parrot("ok"), ByteTokenizer()):
        assert (await client.http.post(f"{client.url}/s/s/v1/{path}", json=body)).status == 200


async def test_another_api_is_told_what_is_spoken_here() -> None:
    async for client in connected(Parrot(), ByteTokenizer()):
        reply = await client.http.post(f"{client.url}/api/generate", json={})
        assert reply.status == 404
        said = (await reply.json())["error"]["message"]
        assert said == (
            "POST /api/generate is not supported; supported are /v1/chat/completions, /v1/responses, /v1/messages, "
            "/v1beta/models/{model}:generateContent, /v1beta/models/{model}:streamGenerateContent"
        )


async def test_an_episode_s_group_is_said_by_header_or_by_the_closing_call() -> None:
    async for client in connected(Parrot(*"abc"), ByteTokenizer()):
        body = {"messages": [{"role": "user", "content": "hi"}]}
        for name in ("a", "b"):
            head = {"X-Agentrl-Group": "g"}
            await client.http.post(f"{client.url}/s/{name}/v1/chat/completions", json=body, headers=head)
        await client.say(body["messages"], "c")
        groups = [(await client.end("a")).group_id, (await client.end("b", group="h")).group_id]
        assert [*groups, (await client.end("c")).group_id] == ["g", "h", "c"]
        refused = await client.http.post(f"{client.url}/s/c/end", json={"score": 1})
        assert "the closing call has an unknown key 'score'" in (await refused.json())["error"]["message"]


@pytest.mark.parametrize(("error", "status"), [(EngineError("gone"), 503), (Refused(422, "no", "url"), 400)])
async def test_an_engine_that_refuses_is_not_asked_again(error: Exception, status: int) -> None:
    class Failing(Parrot):
        async def generate(self, *given: Any) -> Any:
            raise error

    async for client in connected(Failing(), ByteTokenizer()):
        body = {"messages": [{"role": "user", "content": "hi"}]}
        assert (await client.http.post(f"{client.url}/s/s/v1/chat/completions", json=body)).status == status
