"""Google's client, as it is on PyPI, and other programs of the Gemini API, against the proxy."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from google import genai
from google.genai import errors, types

from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.proxy.dialects.gemini import GenerateContent
from agentrl.types.errors import EngineError
from tests.images import RED
from tests.proxy.test_dialects import TWO
from tests.proxy.test_images import Seer
from tests.proxy.world import ADD, Client, Parrot, connected, texts, user

DECLARED: Any = {
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "OBJECT", "properties": {"a": {"type": "INTEGER"}}, "required": ["a"]},
}
PATH = "/s/s/v1beta/models/any:generateContent"
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def said(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "parts": [{"text": text}]}


async def asked(client: Client, contents: Any, path: str = PATH, **more: Any) -> Any:
    reply = await client.http.post(client.url + path, json={"contents": contents, **more})
    return await reply.json()


def google(client: Client) -> genai.Client:
    return genai.Client(api_key="s", http_options=types.HttpOptions(base_url=client.url))


def add(a: int) -> str:
    """Adds."""
    return str(a)


async def test_the_client_s_own_chat_goes_on_token_by_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found by its variables alone, calls functions by itself, and sends back what it was given."""
    parrot = Parrot(TWO, "It is 1 and 2.", "Yes.", "Again.")
    async for client in connected(parrot, ByteTokenizer()):
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", f"{client.url}/s/s")
        monkeypatch.setenv("GEMINI_API_KEY", "any")
        config = types.GenerateContentConfig(system_instruction="Be brief.", tools=[add], temperature=0.3, top_k=40)
        async with genai.Client().aio as made:
            chat = made.chats.create(model="gemini-9", config=config)
            first = await chat.send_message("Add 1 and 2.")
            assert (first.text, first.model_version) == ("It is 1 and 2.", "m")
            usage = first.usage_metadata
            assert usage.total_token_count == usage.prompt_token_count + usage.candidates_token_count
            pieces = [piece async for piece in await chat.send_message_stream("Really?")]
            assert [piece.text for piece in pieces] == ["Yes."]
            assert pieces[-1].candidates[0].finish_reason == types.FinishReason.STOP
            await chat.send_message("Once more.")
        episode = await client.end(reward=1.0)
    assert texts(episode) == [TWO, "It is 1 and 2.", "Yes.", "Again."]
    assert episode.branches == []
    assert [call.result for call in episode.turns[0].calls] == ["1", "2"]
    assert episode.prompt[0]["content"] == "Be brief."
    assert episode.info == {"apis": ["Gemini"]}
    for before, after in zip(parrot.prompts, parrot.prompts[1:], strict=False):
        assert after.startswith(before)


@pytest.mark.parametrize("kept", ["ids", "no ids", "own ids"])
async def test_ids_of_calls_may_be_kept_left_out_or_given_anew(kept: str) -> None:
    async for client in connected(Parrot(TWO, CALL, "Done."), ByteTokenizer()):
        contents: list[Any] = [said("Add 1 and 2.")]
        tools = [{"functionDeclarations": [DECLARED]}]
        for turn in range(2):
            content = (await asked(client, contents, tools=tools))["candidates"][0]["content"]
            calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
            for number, call in enumerate(calls):
                if kept != "ids":
                    del call["id"]
                if kept == "own ids":
                    call["id"] = f"mine-{turn}-{number}"
            results = [
                {"functionResponse": {**{k: c[k] for k in ("id", "name") if k in c}, "response": {"output": str(k)}}}
                for k, c in enumerate(calls)
            ]
            contents += [content, {"role": "user", "parts": results}]
        last = await asked(client, contents, tools=tools)
        assert last["candidates"][0]["content"]["parts"] == [{"text": "Done."}]
        assert last["candidates"][0]["finishReason"] == "STOP"
        episode = await client.end()
    assert episode.branches == []
    assert [[(c.arguments, c.result) for c in turn.calls] for turn in episode.turns] == [
        [({"a": 1}, "0"), ({"a": 2}, "1")],
        [({"a": 1}, "0")],
        [],
    ]


async def test_results_go_to_their_calls_by_id_by_name_or_by_their_order() -> None:
    def shown(*parts: Any) -> list[Any]:
        made: Any = ({"name": "f", "id": "x"}, {"name": "g"}, {"name": "f", "args": {}})
        calls = [{"functionCall": each} for each in made]
        results = [{"functionResponse": part} for part in parts]
        contents = [
            said("Go."),
            {"role": "model", "parts": calls},
            {"role": "user", "parts": [*results, {"text": "On."}]},
        ]
        read = GenerateContent().read({"contents": contents}, {})["messages"]
        ids = [call["id"] for call in read[1]["tool_calls"]]
        assert read[-1] == user("On.")
        return [(ids.index(message["tool_call_id"]), message["content"]) for message in read[2:-1]]

    def result(name: str, value: Any, **more: Any) -> dict[str, Any]:
        return {"name": name, "response": value, **more}

    assert shown(result("f", {"output": "3"}), result("g", {"result": 2}), result("f", {"error": "no"}, id="x")) == [
        (2, "3"),
        (1, "2"),
        (0, '{"error": "no"}'),
    ]
    assert shown(result("f", {"output": "a", "more": 1}, id="x"), result("h", {"output": ["b"]})) == [
        (0, '{"output": "a", "more": 1}'),
        (1, '["b"]'),
    ]


async def test_thoughts_and_signatures_come_back_and_mean_nothing() -> None:
    async for client in connected(Parrot("one", "two"), ByteTokenizer()):
        content = (await asked(client, [said("Count.")]))["candidates"][0]["content"]
        content["parts"][0]["thoughtSignature"] = "c2lnbmVk"
        content["parts"].insert(0, {"text": "I think.", "thought": True})
        await asked(client, [said("Count."), content, said("On.")])
        episode = await client.end()
    assert episode.branches == []
    assert texts(episode) == ["one", "two"]


@pytest.mark.parametrize("version", ["v1", "v1beta"])
async def test_a_stream_is_events_or_an_array(version: str) -> None:
    async for client in connected(Parrot(TWO, TWO), ByteTokenizer()):
        body = {"contents": [said("Add.")], "tools": [{"function_declarations": [DECLARED]}]}
        url = f"{client.url}/{version}/models/any:streamGenerateContent?key=s"
        events = await client.http.post(f"{url}&alt=sse", json=body)
        array = await client.http.post(url, json={**body, "labels": {"a": "b"}})
        lines = [line.removeprefix("data: ") for line in (await events.text()).split("\n\n") if line]
        assert (events.content_type, array.content_type) == ("text/event-stream", "application/json")
        assert set(client.proxy.sessions) == {"s"}
        found = [[json.loads(line) for line in lines], await array.json()]
    for pieces in found:
        parts = [piece["candidates"][0]["content"]["parts"] for piece in pieces]
        assert [[*part] for (part,) in parts] == [["text"], ["functionCall"], ["functionCall"]]
        assert [piece["candidates"][0].get("finishReason") for piece in pieces] == [None, None, "STOP"]
        assert [*pieces[-1]["usageMetadata"]] == ["promptTokenCount", "candidatesTokenCount", "totalTokenCount"]


async def test_a_request_limits_its_reply() -> None:
    parrot = Parrot("I look.\nObservation: 1")
    async for client in connected(parrot, ByteTokenizer()):
        config = {"stopSequences": ["Observation:"], "maxOutputTokens": 99, "responseMimeType": "text/plain"}
        cut = await asked(client, [said("Look.")], generation_config=config)
    assert cut["candidates"][0]["content"]["parts"] == [{"text": "I look.\n"}]
    read = GenerateContent().read({"contents": [said("a")], "generationConfig": config}, {})
    assert (read["max_tokens"], read["stop"]) == (99, ["Observation:"])


async def test_an_image_is_shown_in_a_question_and_in_a_result() -> None:
    """google-genai writes base64 with the alphabet of URLs."""
    engine = Seer(CALL, "red")
    picture: Any = {"inlineData": {"mimeType": "image/png", "data": base64.urlsafe_b64encode(RED).decode()}}
    async for client in connected(engine, ByteTokenizer()):
        contents = [{"role": "user", "parts": [{"text": "What is it?"}, picture]}]
        tools = [{"functionDeclarations": [DECLARED]}]
        content = (await asked(client, contents, tools=tools))["candidates"][0]["content"]
        answer = {"name": "add", "response": {"output": "Look:"}, "parts": [picture]}
        result = {"role": "user", "parts": [{"functionResponse": answer}]}
        last = await asked(client, [*contents, content, result], tools=tools)
        assert last["candidates"][0]["content"]["parts"] == [{"text": "red"}]
        episode = await client.end()
    (done,) = episode.turns[0].calls
    assert (done.result, [image["format"] for image in done.images]) == ("Look:", ["png"])
    assert [len([token for token in seen if token < 0]) for seen in engine.seen] == [1, 2]


async def test_tokens_are_counted_and_nothing_is_recorded() -> None:
    parrot = Parrot("hi")
    async for client in connected(parrot, ByteTokenizer()):
        path = PATH.replace("generate", "count").replace("Content", "Tokens")
        contents = [said("Hello.")]
        alone = await asked(client, contents, path)
        whole = await asked(client, None, path, generateContentRequest={"model": "models/any", "contents": contents})
        assert not client.proxy.sessions
        usage = (await asked(client, contents))["usageMetadata"]
        assert alone == whole == {"totalTokens": usage["promptTokenCount"]}
        body = {"messages": [user("Hello.")]}
        other = await client.http.post(f"{client.url}/s/t/v1/messages/count_tokens", json=body)
        assert await other.json() == {"input_tokens": usage["promptTokenCount"]}
        assert len((await client.end()).turns) == 1
    assert len(parrot.prompts) == 1


def test_schemas_of_the_api_become_json_schemas() -> None:
    given = {
        "type": "OBJECT",
        "propertyOrdering": ["b", "a"],
        "properties": {
            "a": {"type": "STRING", "nullable": True, "enum": ["x"], "example": "x", "minLength": "1"},
            "b": {"type": "ARRAY", "items": {"any_of": [{"type": "NUMBER"}, {"type": "TYPE_UNSPECIFIED"}]}},
            "max_items": {"anyOf": [{"type": "STRING"}], "nullable": True},
        },
    }
    whole = {"type": "object", "properties": {"type": {"type": "string"}}}
    declared = [{"name": "f", "parameters": given}, {"name": "g", "parametersJsonSchema": whole}, {"name": "h"}]
    body = {"contents": [said("a")], "tools": [{"functionDeclarations": declared}]}
    f, g, h = (tool["function"]["parameters"] for tool in GenerateContent().read(body, {})["tools"])
    assert f == {
        "type": "object",
        "properties": {
            "a": {"type": ["string", "null"], "enum": ["x", None], "examples": ["x"], "minLength": 1},
            "b": {"type": "array", "items": {"anyOf": [{"type": "number"}, {}]}},
            "max_items": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
    }
    assert [*f["properties"]] == ["b", "a", "max_items"]
    assert g == whole
    assert h == {"type": "object", "properties": {}}


HI: Any = {"contents": [said("a")]}
ONE: Any = {"tools": [{"functionDeclarations": [DECLARED]}]}


def configured(**config: Any) -> dict[str, Any]:
    return {**HI, "generationConfig": config}


def chosen(**choice: Any) -> dict[str, Any]:
    return {**HI, **ONE, "toolConfig": {"functionCallingConfig": choice}}


def held(part: Any) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": [part]}]}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "'contents' must be a list of objects"),
        (configured(candidateCount=2), "'candidateCount' is 2"),
        (configured(responseMimeType="application/json"), "'responseMimeType' is \"application/json\""),
        (configured(responseSchema={"type": "OBJECT"}), "'responseSchema' is {"),
        (configured(response_json_schema={"type": "object"}), "'responseJsonSchema' is {"),
        (configured(seed=7), "leave 'seed' out"),
        (configured(responseLogprobs=True), "'responseLogprobs' is true"),
        (configured(responseModalities=["AUDIO"]), "'responseModalities' is ["),
        (configured(maxOutputTokens=0), "'maxOutputTokens' is 0"),
        (configured(stopSequences=[""]), "'stopSequences' is ['']"),
        (chosen(mode="ANY"), "'mode' of 'functionCallingConfig' is \"ANY\""),
        (chosen(mode="NONE"), "'mode' of 'functionCallingConfig' is \"NONE\""),
        (chosen(mode="AUTO", allowedFunctionNames=["other"]), "'allowedFunctionNames' is ["),
        ({**HI, "tools": [{"googleSearch": {}}]}, "a tool of type 'googleSearch'"),
        ({**HI, "cachedContent": "c"}, "'cachedContent' is \"c\""),
        (held({"fileData": {"fileUri": "gs://x"}}), "a part that holds fileData"),
        (held({"executableCode": {"code": "1"}}), "a part that holds executableCode"),
        (held({}), "a part that holds nothing"),
        (held({"inlineData": {"mimeType": "audio/wav", "data": "AAAA"}}), "a part holds 'audio/wav'"),
        (held({"text": 3}), "only text can be recorded here"),
        (held({"functionCall": {"name": "add"}}), "a part holds functionCall"),
    ],
)
async def test_what_no_record_could_hold_is_refused_in_google_s_form(body: Any, told: str) -> None:
    async for client in connected(Parrot(), ByteTokenizer()):
        reply = await client.http.post(client.url + PATH, json=body)
        error = (await reply.json())["error"]
        assert (reply.status, error["code"], error["status"]) == (400, 400, "INVALID_ARGUMENT")
        assert told in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        configured(temperature=0.1, topP=0.9, topK=5, thinkingConfig={"thinkingBudget": 0}, candidateCount=1),
        configured(responseMimeType="text/plain", responseModalities=["TEXT"], presencePenalty=0.0, seed=None),
        chosen(mode="AUTO", allowedFunctionNames=["add"]),
        chosen(mode="MODE_UNSPECIFIED"),
        {**HI, "toolConfig": {"functionCallingConfig": {"mode": "NONE"}}, "safetySettings": [{"category": "x"}]},
    ],
)
async def test_a_request_may_say_what_holds_anyway(body: Any) -> None:
    async for client in connected(Parrot("ok"), ByteTokenizer()):
        assert (await client.http.post(client.url + PATH, json=body)).status == 200


async def test_the_client_raises_its_own_errors() -> None:
    class Failing(Parrot):
        async def generate(self, *given: Any) -> Any:
            raise EngineError("gone")

    async for client in connected(Failing(), ByteTokenizer()):
        async with google(client).aio as made:
            with pytest.raises(errors.ServerError) as failed:
                await made.models.generate_content(model="m", contents="hi")
            with pytest.raises(errors.ClientError) as refused:
                await made.models.generate_content(
                    model="m", contents="hi", config=types.GenerateContentConfig(candidate_count=2)
                )
    assert (failed.value.code, failed.value.status) == (503, "UNAVAILABLE")
    assert (refused.value.code, refused.value.status) == (400, "INVALID_ARGUMENT")
    assert "'candidateCount' is 2" in str(refused.value.message)


async def test_every_api_sees_the_same_prompt() -> None:
    parrot = Parrot("ok", "ok")
    async for client in connected(parrot, ByteTokenizer()):
        opening = [{"role": "system", "content": "Be brief."}, user("Add 1.")]
        await client.say(opening, "chat", tools=[ADD])
        given = {"systemInstruction": {"parts": [{"text": "Be brief."}]}, **ONE}
        await asked(client, [said("Add 1.")], **given)
    assert parrot.prompts[0] == parrot.prompts[1]
