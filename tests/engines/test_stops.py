"""Stop strings on every engine: a completion ends with the token that completes one, and loses nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.chat.formats.registry import parser_named
from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.config.loader import load_recipe
from agentrl.engines.embedded.engine import TorchEngine
from agentrl.engines.scripted import Say, ScriptedEngine
from agentrl.engines.stops import StopStrings, cut
from agentrl.engines.vllm.engine import VLLMEngine
from agentrl.engines.vllm.settings import VLLMSettings
from agentrl.rollouts.builder import build
from agentrl.types.engine import Completion, Sampling
from agentrl.types.episode import VersionSpan
from agentrl.types.errors import AgentRLError, RecipeError
from agentrl.types.task import Task
from tests.command import agentrl
from tests.counting import CODE, RECIPE

from .conftest import VOCAB, make_model
from .http_server import serving

# Tokens of one to three bytes; some are parts of a letter, one says nothing.
PIECES = [
    "".join(letters).encode() for letters in ("a", "b", "ab", "ba", "</s>x", "</", "s>", ">", "<", "é", " ", " a")
]
PIECES += ["🙂".encode()[:2], "🙂".encode()[2:], b"", "é".encode()[:1], "é".encode()[1:]]
PIECES += [bytes([value]) for value in range(33, 33 + VOCAB - len(PIECES))]


def decode(ids: Sequence[int]) -> str:
    return b"".join(PIECES[token] for token in ids).decode("utf-8", "replace")


def naive(ids: Sequence[int], strings: Sequence[str]) -> int | None:
    texts = (decode(ids[:count]) for count in range(1, len(ids) + 1))
    return next((count for count, text in enumerate(texts, 1) if any(string in text for string in strings)), None)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.integers(0, 16), max_size=40),
    st.lists(st.sampled_from(["ab", "</s>", "🙂", "é", "ba b", "a ", "bbbb", "s>x"]), min_size=1, max_size=3),
)
def test_the_token_that_completes_a_string_is_found(ids: list[int], strings: list[str]) -> None:
    assert StopStrings(decode, strings).first(ids) == naive(ids, strings)


def test_tokens_that_say_nothing_do_not_hide_a_string() -> None:
    ids = [0, *[PIECES.index(b"")] * 50, 1]
    assert StopStrings(decode, ["ab"]).first(ids) == len(ids)


@pytest.mark.slow
async def test_the_embedded_engine_ends_at_that_token_and_samples_nothing_else() -> None:
    engine = TorchEngine(make_model(), max_batch=4, decode=decode)
    rng, stopped = random.Random(0), 0
    for number in range(30):
        prompt = [rng.randrange(VOCAB) for _ in range(5)] + [4]  # the prompt's own text counts for nothing
        free = Sampling(temperature=1.5, max_tokens=25, seed=number)
        whole = await engine.generate(prompt, free, f"free{number}")
        text = decode(whole.token_ids)
        string = text[(at := rng.randrange(len(text))) : at + 2].replace("\ufffd", "") or "zz"
        sampling = Sampling(temperature=1.5, max_tokens=25, seed=number, stop=(string, "</s>"))
        ended = await engine.generate(prompt, sampling, f"ended{number}")
        count = naive(whole.token_ids, sampling.stop)
        assert ended.token_ids == whole.token_ids[:count]
        assert ended.logprobs == pytest.approx(whole.logprobs[:count], abs=1e-5)
        assert ended.finish == ("length" if count is None else "stop")
        stopped += count is not None
        # The cache goes on from there.
        more = await engine.generate([*prompt, *ended.token_ids, 7], free, f"ended{number}")
        assert more.token_ids == (await engine.generate([*prompt, *ended.token_ids, 7], free, "anew")).token_ids
    await engine.close()
    assert stopped > 15


async def test_without_a_tokenizer_they_are_refused() -> None:
    engine = TorchEngine(make_model())
    with pytest.raises(AgentRLError, match="stop strings need a tokenizer"):
        await engine.generate([1], Sampling(stop=("x",)), "s")
    await engine.close()


def test_a_cut_completion_keeps_its_spans() -> None:
    spans = [VersionSpan(3, 0, 2), VersionSpan(4, 2, 5)]
    whole = Completion(token_ids=[1, 2, 3, 4, 5], logprobs=[-1.0] * 5, finish="length", versions=spans)
    assert cut(whole, 5).versions == spans
    assert cut(whole, 3) == Completion(
        token_ids=[1, 2, 3], logprobs=[-1.0] * 3, finish="stop", versions=[VersionSpan(3, 0, 2), VersionSpan(4, 2, 3)]
    )
    assert cut(whole, 2).versions == spans[:1]


@pytest.mark.parametrize("native", [True, False])
async def test_vllm_servers_are_told_and_what_they_say_more_is_cut(native: bool) -> None:
    """A server that breaks off within the string, and one that goes on behind it."""
    said = [b"x</", b"s>yy"]
    asked: list[dict[str, Any]] = []

    async def server(path: str, body: Any) -> Any:
        asked.append(body)
        ids = list(said[(len(asked) - 1) % 2])
        finish = "abort" if len(asked) % 2 else "length"
        if native:
            content = [{"token_id": token, "logprob": -0.5} for token in ids]
            spans = [{"version": "7", "start": 0, "end": len(ids)}]
            choice: dict[str, Any] = {"logprobs": {"content": content}, "weight_versions": spans}
        else:
            choice = {"logprobs": {"token_logprobs": [-0.5] * len(ids)}}
        return {"choices": [{**choice, "token_ids": ids, "finish_reason": finish}]}

    async with serving(server) as url:
        engine = VLLMEngine(VLLMSettings(urls=[url]), [url], tokenizer=ByteTokenizer())
        engine.max_context, engine._native = 1000, native
        completion = await engine.generate([1, 2], Sampling(stop=("</s>",), max_tokens=50), "s")
        await engine.close()
    assert bytes(completion.token_ids) == b"x</s>"
    assert (completion.finish, len(completion.logprobs)) == ("stop", 5)
    assert completion.versions == [VersionSpan(7 if native else 0, 0, 5)]
    sent = asked[0]["sampling_params"] if native else asked[0]
    assert (sent["stop"], sent["include_stop_str_in_output"], sent["skip_special_tokens"]) == (["</s>"], True, False)
    assert not native or sent["detokenize"]
    assert len(asked) == 2


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"properties": {"at": {"type": "string"}}}}}


async def test_a_script_ends_where_sampling_would() -> None:
    def script(task: Task, rng: random.Random) -> Any:
        yield Say("So.", calls=[("look", {"at": "x"})])
        yield Say(calls=[("look", {"at": "x"}), ("look", {"at": "y"})])

    parser = parser_named("tags", [TOOL])
    renderer = Renderer(ByteTokenizer(), parser, [TOOL])
    engine = ScriptedEngine(script, renderer, parser)
    engine.begin_session("s", Task.of("t", "x"), [], 0)
    sampling = Sampling(stop=parser.stops(), stop_token_ids=renderer.stop_token_ids)
    said = await engine.generate([], sampling, "s")
    assert renderer.tokenizer.decode(said.token_ids) == "So.\n<look>x</look>"
    # What ends so is closed as the template does.
    after = renderer.tokenizer.decode(renderer.extend(said.token_ids, [{"role": "user", "content": "Hm."}]))
    assert after.startswith("<|im_end|>\n<|im_start|>user\nHm.")
    with pytest.raises(ValueError, match=r"continues with '<look>y</look>' after a stop string: one call per turn"):
        await engine.generate([], sampling, "s")


@pytest.mark.parametrize(
    ("content", "finish", "call"),
    [
        ("I look. <add>2", "stop", "<add>2</add>"),  # as APIs do: without the string
        ("I look. <add>2</add> and then <add>3</add>", "stop", "<add>2</add>"),
        ("I look. <add>2", "length", "<add>2"),
        ("Nothing.", "stop", "Nothing."),
    ],
)
async def test_an_api_is_told_and_what_it_cut_off_is_put_back(
    tmp_path: Path, content: str, finish: str, call: str
) -> None:
    from agentrl.rollouts.engines import open_engine

    asked: list[dict[str, Any]] = []

    async def api(path: str, body: Any) -> Any:
        asked.append(body)
        return {"choices": [{"message": {"role": "assistant", "content": content}, "finish_reason": finish}]}

    (tmp_path / "task.py").write_text(CODE)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    async with serving(api) as url:
        given = {"use": "openai", "urls": [f"{url}/v1"], "model": "m", "native_tools": False}
        recipe = load_recipe(str(tmp_path), [f"engine={json.dumps(given)}", "agent.format=tags"])
        engine, renderer = open_engine(build(recipe))
        messages = [{"role": "user", "content": "Go."}]
        engine.begin_session("s", Task.of("t", "x"), messages, 0)
        completion = await engine.generate([], Sampling(stop=renderer.parser.stops()), "s")
        await engine.close()
    text = renderer.tokenizer.decode(completion.token_ids).removesuffix("<|im_end|>")
    assert text.endswith(call)
    assert text.count("<add>") <= 1
    assert asked[0]["stop"] == ["</add>"]


@pytest.mark.slow
def test_a_string_that_the_tokenizer_cannot_produce_is_refused(tmp_path: Path) -> None:
    class Deaf(ByteTokenizer):
        name = "deaf"

        def encode(self, text: str, special: bool) -> list[int]:
            return super().encode(text.replace("ß", "?"), special)

    renderer = Renderer(Deaf(), parser_named("tags", [TOOL]), [TOOL])
    renderer.check_stops(["</look>", "<|im_end|>"])
    with pytest.raises(RecipeError, match=r"sampling.stop: .*deaf cannot produce 'Spaß': it makes 'Spa\?'"):
        renderer.check_stops(["Spaß"])
    (tmp_path / "task.py").write_text(CODE)
    (tmp_path / "recipe.yaml").write_text(RECIPE + "sampling: {stop: ['']}\n")
    assert "sampling.stop.0" in agentrl("recipe", "check", ".", cwd=tmp_path, ok=False).stderr


def test_a_recipe_names_them_and_tags_adds_its_own(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(CODE)
    (tmp_path / "recipe.yaml").write_text(RECIPE + "sampling: {stop: [END]}\nagent: {format: tags}\n")
    parts = build(load_recipe(str(tmp_path)))
    engine, renderer = parts.scripted_engine("oracle")
    assert parts.context(engine, renderer, None).sampling.stop == ("END", "</add>")
