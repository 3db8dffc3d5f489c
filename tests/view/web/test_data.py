import json
import shutil
import statistics
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec import structs

from agentrl.commands.view import helpers
from agentrl.store import RunDir
from agentrl.store.tokens import TokenRecord, TurnTokens
from agentrl.types.episode import Context, Parent
from agentrl.view.web.endpoints import ENDPOINTS, answer
from agentrl.view.web.library import Helpers, RunLibrary
from agentrl.view.web.overview import last_iteration
from agentrl.view.web.query import Query, RequestError
from agentrl.view.web.text_index import Requests, match, snippet
from tests.store.make import make_episode
from tests.view.web.test_server import make_run


@pytest.fixture
def library(tmp_path):
    library = RunLibrary(make_run(tmp_path / "run"), helpers(), cache=tmp_path / "cache")
    library.run("run").texts.finish()
    yield library
    library.close()


def ask(library: RunLibrary, name: str, **asked):
    return json.loads(json.dumps(answer(library, name, Query({"run": "run", **{k: str(v) for k, v in asked.items()}}))))


def ids(library: RunLibrary, **asked) -> list[str]:
    return [row["id"] for row in ask(library, "episodes", **asked)["rows"]]


def test_rows_are_filtered_and_sorted_and_cut_into_pages(library):
    assert ask(library, "episodes")["total"] == 12
    assert set(ids(library, split="train", error="any")) == {"g1/1"}
    assert set(ids(library, group="g2")) == {f"g2/{k}" for k in range(4)}
    assert set(ids(library, iteration_min=1, iteration_max=1)) == {f"g1/{k}" for k in range(4)}
    rows = ask(library, "episodes", sort="reward", desc=1, status="done,truncated")["rows"]
    assert [row["reward"] for row in rows] == sorted((row["reward"] for row in rows), reverse=True)
    everything = ids(library, sort="id")
    assert ids(library, sort="id", offset=5, limit=3) == everything[5:8]
    assert ids(library, id="g0/", turns_min=5) == []


def test_rows_are_sorted_by_the_credit_of_their_turns(library):
    credits = [library.run("run").reader.credit(id) for id in ids(library)]
    turns = {credit.episode_id: credit.turn_advantages for credit in credits if credit is not None}
    for name, of in {"advantage": statistics.fmean, "advantage_max": max, "advantage_min": min}.items():
        for down in ("", 1):
            rows = ask(library, "episodes", sort=name, desc=down)["rows"]
            values = [row[name] for row in rows if row["id"] in turns]
            assert values == pytest.approx(sorted(map(of, turns.values()), reverse=bool(down)))
            assert {row[name] for row in rows[len(values) :]} == {None}


def test_the_best_and_the_worst_turn_of_a_run_are_named(tmp_path):
    path = make_run(tmp_path / "run")
    with RunDir.open(path) as run:
        run.add_credit("g1/0", "gigpo", [0.5, -2.0, 9.0, 0.0], {})
        run.add_credit("g1/0", "gigpo", [0.5, -2.0, 1.5, 0.0], {})  # counts in place of the one before
    library = RunLibrary(path, helpers(), cache=tmp_path / "cache")
    found = ask(library, "facets")
    assert found["best_turn"] == {"id": "g1/0", "turn": 2, "advantage": 1.5}
    assert found["worst_turn"] == {"id": "g1/0", "turn": 1, "advantage": -2.0}
    library.close()


def test_a_damaged_credit_leaves_the_next_best_turn(tmp_path):
    path = make_run(tmp_path / "run")
    with RunDir.open(path) as run:
        run.add_credit("g2/0", "gigpo", [9.0, -9.0, 0.0, 0.0], {})
    newest = max((path / "credit").iterdir())
    newest.write_bytes(bytes(len(newest.read_bytes())))
    library = RunLibrary(path, helpers(), cache=tmp_path / "cache")
    found = ask(library, "facets")
    assert found["best_turn"] == {"id": "g0/0", "turn": 0, "advantage": 0.5}
    assert found["worst_turn"] == {"id": "g0/0", "turn": 1, "advantage": -0.5}
    library.close()


def test_an_unscored_episode_is_last_and_has_no_reward(library):
    for down in ("", 1):
        rows = ask(library, "episodes", sort="reward", desc=down)["rows"]
        assert (rows[-1]["id"], rows[-1]["reward"]) == ("g1/1", None)


def test_what_the_index_of_a_run_lacks_comes_from_the_text_index(library):
    (row,) = ask(library, "episodes", id="g0/0")["rows"]
    assert set(row["components"]) == {"found", "format", "progress"}
    assert sum(row["tools"].values()) == 4
    assert row["versions"] == [0, 1]
    assert row["advantage"] == pytest.approx(0.025)
    by_found = ask(library, "episodes", sort="components.found")["rows"]
    values = [row["components"]["found"] for row in by_found if "found" in row["components"]]
    assert values == sorted(values)
    assert set(ids(library, version_min=3)) == {f"g2/{k}" for k in range(4)}
    with_look = set(ids(library, tool="look"))
    assert with_look == {row["id"] for row in ask(library, "episodes")["rows"] if "look" in row["tools"]}
    assert ids(library, component="found", component_min=2) == []


def test_facets_count_what_there_is(library):
    facets = ask(library, "facets")
    assert facets["status"] == {"done": 11, "infra_error": 1}
    assert facets["error"] == {"SandboxLost": 1}
    assert facets["iteration"] == [0, 2]
    assert facets["components"]["found"]["count"] == 11
    assert facets["versions"] == [0, 3]
    assert facets["histogram"]["turns"] == [[4, 4, 11]]
    bins = facets["histogram"]["reward"]
    rewards = [row["reward"] for row in ask(library, "episodes")["rows"] if row["reward"] is not None]
    assert (len(bins), sum(count for _, _, count in bins)) == (20, 11)
    assert (bins[0][0], bins[-1][1]) == (min(rewards), pytest.approx(max(rewards)))
    assert bins[-1][2] == sum(reward >= bins[-1][0] for reward in rewards)
    assert facets["index"] == {"state": "ready", "done": 12, "of": 12, "problem": None}


def test_the_head_has_the_columns_of_the_recipe(library):
    head = ask(library, "head")
    assert head["name"] == "house"
    assert [column["title"] for column in head["columns"]][:5] == ["episode", "reward", "format", "found", "progress"]
    assert head["estimator"] == "gigpo"
    assert {"grpo", "gigpo"} <= {each["name"] for each in head["estimators"]}
    assert head["summary"]["splits"]["train"]["episodes"] == 12
    assert "entropy" in head["not_recorded"]
    assert head["state"] == "stopped"


def test_the_head_of_a_long_run_is_short(tmp_path):
    planned = [f"train/{k}#0" for k in range(20_000)]
    make_run(tmp_path / "run", groups=1, planned=planned, tools=["look"])
    library = RunLibrary(tmp_path / "run", helpers(), cache=tmp_path / "cache")
    head = ask(library, "head")
    assert (head["info"]["planned"], head["info"]["tools"]) == ("20,000 entries", ["look"])
    assert len(json.dumps(head)) < 20_000
    library.close()


def test_columns_without_a_value_are_left_out(library, tmp_path):
    def titles(library):
        return [column["title"] for column in ask(library, "head")["columns"]]

    assert {"failure", "answer", "group"} <= set(titles(library))  # one failed, and the ids do not begin with a group
    assert {"credit", "best turn", "worst turn"} <= set(titles(library))
    with RunDir.create(tmp_path / "plain" / "run") as run:
        run.add(make_episode("a#0", group="a", answer=None))
    plain = RunLibrary(tmp_path / "plain" / "run", cache=tmp_path / "cache")
    assert not {"failure", "answer", "group", "credit", "best turn", "worst turn"} & set(titles(plain))
    plain.close()


def test_panels_of_stages_are_named_and_a_warm_start_is_told(tmp_path):
    with RunDir.create(tmp_path / "run") as run:
        run.add_metrics({"stage": "warm_start", "split": "sft", "iteration": 10, "loss": 2.0, "lr": 0.1})
        for split in ("train", "eval"):
            run.add_metrics({"stage": "learn", "split": split, "iteration": 1, "success": 0.5, "rewards": {"a": 1.0}})
    library = RunLibrary(tmp_path / "run", cache=tmp_path / "cache")
    found = ask(library, "metrics")
    assert found["supervised"] == ["warm_start"]
    assert found["screen"] == {
        "learn: success": ["learn/success", "learn/eval/success"],
        "learn: rewards": ["learn/rewards/a"],
        "warm_start: loss": ["warm_start/loss"],
    }
    library.close()


def test_lengths_are_those_of_an_episode(tmp_path):
    with RunDir.create(tmp_path / "run") as run:
        for split, episodes in (("train", 3), ("eval", 5)):  # one failed, and sampled nothing that counts
            line = {"split": split, "iteration": 1, "episodes": episodes, "failed": 1, "sampled_tokens": 10}
            run.add_metrics(line)
    library = RunLibrary(tmp_path / "run", cache=tmp_path / "cache")
    found = ask(library, "metrics")
    assert found["screen"]["length"] == ["tokens_per_episode", "eval/tokens_per_episode"]
    assert [found["series"][name] for name in found["screen"]["length"]] == [[[1, 5]], [[1, 2.5]]]
    library.close()


def test_metrics_are_curves_and_panels(library):
    metrics = ask(library, "metrics")
    assert metrics["series"]["reward"] == [[0, 0], [1, 0.1], [2, 0.2]]
    assert metrics["screen"] == {"reward": ["reward"]}
    assert (metrics["shown"], metrics["iteration"]) == ("reward", 2)


def test_an_episode_is_whole(library):
    shown = ask(library, "episode", id="g0/0")
    assert shown["credit"]["turn_advantages"] == [0.5, -0.5, 0.1, 0.0]
    assert len(shown["turns"]) == len(shown["episode"]["turns"]) == 4
    assert "nodes" not in shown["episode"]
    assert [turn["prompt_tokens"] > 0 for turn in shown["turns"]] == [True] * 4
    assert shown["turns"][1]["gained_tokens"] == 8
    assert shown["turns"][2]["fork"].endswith("g0/0 --turn 2")
    assert shown["lanes"][0]["turns"] == [0, 1, 2, 3]
    assert {each["id"] for each in shown["siblings"]} == {f"g0/{k}" for k in range(4)}
    assert shown["cut"] == []


def test_neighbours_are_those_in_time(library):
    order = ids(library)
    for before, after in pairwise(order):
        assert ask(library, "episode", id=before)["next"] == after
        assert ask(library, "episode", id=after)["previous"] == before


def test_long_texts_are_cut_and_the_rest_can_be_asked_for(tmp_path):
    long = "".join(chr(97 + k % 26) for k in range(300_000))
    with RunDir.create(tmp_path / "run") as run:
        run.add(make_episode("long", answer=long))
    library = RunLibrary(tmp_path / "run", cache=tmp_path / "cache")
    shown = ask(library, "episode", id="long")
    (cut,) = shown["cut"]
    assert cut == {"path": "/episode/answer", "shown": 20_000, "size": 300_000}
    rest = ask(library, "text", id="long", path=cut["path"], start=20_000, length=1_000_000)
    assert shown["episode"]["answer"] + rest["text"] == long
    assert len(ask(library, "episodes")["rows"][0]["answer"]) < 300
    library.close()


def test_thoughts_are_apart_from_what_was_said():
    from agentrl.view.web.episode import parted

    assert parted("<think>why</think>\nyes <tool_call>{}</tool_call>") == ("why", "yes")
    assert parted("why</think>yes") == ("why", "yes")
    assert parted("<think>still") == ("still", "")
    assert parted("plain") == ("", "plain")


def test_conversations_are_lanes(tmp_path):
    episode = make_episode("two", turns=2)
    turns = [episode.turns[0], structs.replace(episode.turns[1], context="helper", agent="reader")]
    context = Context(role="reader", prompt=[{"role": "user", "content": "read"}])
    origin = Parent(run="", episode="one", turn=1)
    with RunDir.create(tmp_path / "run") as run:
        run.add(structs.replace(episode, turns=turns, contexts={"helper": context}, parent=origin))
    library = RunLibrary(tmp_path / "run", cache=tmp_path / "cache")
    shown = ask(library, "episode", id="two")
    assert [(lane["name"], lane["role"], lane["turns"]) for lane in shown["lanes"]] == [
        ("main", "agent", [0]),
        ("helper", "reader", [1]),
    ]
    assert shown["parent"]["episode"] == "one"
    library.close()


def test_tokens_come_in_pieces_that_make_the_whole(library):
    whole = ask(library, "tokens", id="g0/0")
    assert whole["next"] is None
    assert set(whole["has"]) == {"mask", "logprob", "version", "advantage"}
    pieces, start = [], 0
    while start is not None:
        part = ask(library, "tokens", id="g0/0", start=start, limit=7)
        pieces += [(node["index"], id) for node in part["nodes"] for id in node["token_ids"]]
        start = part["next"]
    assert pieces == [(node["index"], id) for node in whole["nodes"] for id in node["token_ids"]]
    assert len(pieces) == whole["total"]
    sampled = [node for node in whole["nodes"] if node["kind"] == "sampled"]
    assert [node["advantage"] for node in sampled] == [0.5, -0.5, 0.1, 0.0]
    assert all(len(node["logprobs"]) == len(node["token_ids"]) for node in sampled)


def test_tokens_show_what_the_trainer_kept_of_the_last_update(tmp_path):
    path = make_run(tmp_path / "run")
    with RunDir.open(path) as run:
        run.add_tokens("rl", 1, [recorded("g0/0", {0: 3, 1: 3}, ratio=1.0)])
        run.add_tokens("rl", 2, [recorded("g0/0", {1: 3}, ratio=1.5)])
    library = RunLibrary(path, helpers(), cache=tmp_path / "cache")
    shown = ask(library, "tokens", id="g0/0")
    assert set(shown["has"]) == {"mask", "logprob", "version", "advantage", "ratio", "entropy", "clip"}
    found = {node["turn"]: node["trainer"] for node in shown["nodes"] if node["trainer"]}
    assert {turn: trainer["ratio"] for turn, trainer in found.items()} == {0: [1.0] * 3, 1: [1.5] * 3}
    assert found[1]["clip"] == [False, False, True]
    assert all(node["turn"] in found or node["trainer"] is None for node in shown["nodes"])
    assert ask(library, "tokens", id="g0/1")["has"] == ["mask", "logprob", "version"]
    (path / "tokens" / "rl-00002.jsonl.zst").write_bytes(b"torn")
    with pytest.raises(RequestError, match="cannot be read"):
        ask(library, "tokens", id="g0/0")
    library.close()


def recorded(id: str, turns: dict[int, int], ratio: float) -> TokenRecord:
    kept = [
        TurnTokens(
            turn=turn,
            advantage=[0.5] * n,
            logprob=[-0.1] * n,
            ratio=[ratio] * n,
            entropy=[0.7] * n,
            clipped=[False] * (n - 1) + [True],
        )
        for turn, n in turns.items()
    ]
    return TokenRecord(episode_id=id, group_id=id.partition("/")[0], branch_id=0, turns=kept)


def test_credit_of_a_run_without_a_base_names_what_is_missing(tmp_path):
    with RunDir.create(tmp_path / "run", {"recipe": {"name": "bare"}}) as run:
        run.add(make_episode("one"))
    library = RunLibrary(tmp_path / "run", helpers(), cache=tmp_path / "cache")
    with pytest.raises(RequestError, match="has no base"):
        ask(library, "credit", id="one", estimator="grpo")
    library.close()


def test_the_prompt_of_a_turn_says_what_it_gained(tmp_path):
    path = make_run(tmp_path / "run")
    with RunDir.open(path) as run:
        run.add(make_episode("branched", branch=True))
    library = RunLibrary(path, Helpers(decoder=lambda run: lambda id: f"<{id}>"), cache=tmp_path / "cache")
    first, second, last = (ask(library, "prompt", id="branched", turn=turn) for turn in (0, 1, 3))
    assert first["gained"]["fresh"]
    assert (second["gained"]["tokens"], second["gained"]["fresh"]) == (8, False)
    assert second["text"].startswith(first["text"])
    assert second["text"].endswith(second["gained"]["text"])
    assert last["gained"]["fresh"]
    assert last["tokens"] == last["gained"]["tokens"] == 30
    library.close()


def test_a_group_is_aligned_and_says_where_it_parts(library):
    group = ask(library, "group", id="g0")
    assert [member["id"] for member in group["members"]] == [f"g0/{k}" for k in range(4)]
    assert group["by_turn"] == [[row] * 4 for row in range(4)]
    assert group["diverges"] == 0
    assert group["differs"][0] is None
    states = {each["state"]: each["turns"] for each in group["by_state"]}
    assert sum(len(turns) for each in states.values() for turns in each) == 16
    assert group["members"][0]["turns"][0]["advantage"] == 0.5
    assert group["members"][0]["turns"][0]["parts"] == {"step": 0.5}
    assert group["members"][1]["turns"][0]["advantage"] is None


def test_failures_by_class(library):
    failures = ask(library, "failures")
    (one,) = failures["classes"]
    assert (one["kind"], one["count"], one["episodes"]) == ("SandboxLost", 1, ["g1/1"])
    assert "gone" in one["message"]
    assert len(failures["slowest"]) == 12
    assert failures["zero"] == ask(library, "episodes", reward_min=0, reward_max=0)["total"]


def test_demonstrations_are_not_among_the_longest(tmp_path):
    with RunDir.create(tmp_path / "run") as run:
        run.add(make_episode("train/0", split="train", turns=1))
        run.add(make_episode("demo/0", split="demo", turns=4))
    library = RunLibrary(tmp_path / "run", cache=tmp_path / "cache")
    assert [row["id"] for row in ask(library, "failures")["longest"]] == ["train/0"]
    library.close()


def test_episodes_without_reward_are_counted_by_the_filter_that_lists_them(tmp_path):
    with RunDir.create(tmp_path / "run") as run:
        for member, reward in enumerate([0.0, 0.0, 1.0]):
            run.add(make_episode(f"a#{member}", reward=reward, components={"found": reward}, turns=1))
    library = RunLibrary(tmp_path / "run", cache=tmp_path / "cache")
    assert ask(library, "failures")["zero"] == sum(
        row["reward"] == 0 for row in ask(library, "episodes", reward_min=0, reward_max=0)["rows"]
    )
    assert ask(library, "failures")["zero"] > 0
    library.close()


def test_credit_under_another_estimator(library):
    found = ask(library, "credit", group="g0", estimator="grpo")
    assert set(found["credits"]) == {f"g0/{k}" for k in range(4)}
    rewards = {row["id"]: row["reward"] for row in ask(library, "episodes", group="g0")["rows"]}
    best = max(rewards, key=rewards.__getitem__)
    assert found["credits"][best]["turn_advantages"][0] == max(
        each["turn_advantages"][0] for each in found["credits"].values()
    )
    assert found["stored"]["g0/0"]["estimator"] == "gigpo"
    assert found["batch"]["episodes"] == 4
    assert library.run("run").reader.credit("g0/1") is None


@pytest.mark.parametrize("estimator", ["./task.py:mine", "os:system", "nonsense"])
def test_code_of_a_run_is_not_imported(library, estimator):
    with pytest.raises(RequestError, match="no built-in estimator"):
        answer(library, "credit", Query({"run": "run", "group": "g0", "estimator": estimator}))


def test_two_runs_are_compared_by_task(tmp_path):
    for name, rate, reward in (("a", 1e-5, 1.0), ("b", 2e-5, 0.5)):
        recipe = {"name": "house", "train": {"lr": rate, "steps": 3}}
        with RunDir.create(tmp_path / "runs" / name, {"recipe": recipe}) as run:
            run.add(make_episode("x", reward=reward, components={"success": reward}, turns=1))
            run.add(make_episode("y", group="g1", reward=0.5, components={"success": 0.5}, turns=1))
            run.add_metrics({"iteration": 0, "reward": reward})
    library = RunLibrary(tmp_path / "runs", cache=tmp_path / "cache")
    for key in "ab":
        library.run(key).texts.finish()
    found = answer(library, "compare", Query({"run": "a", "with": "b"}))
    assert found["config"] == [{"path": "train.lr", "a": 1e-5, "b": 2e-5}]
    assert found["won"] == {"a": 1, "b": 0, "tie": 1, "only_a": 0, "only_b": 0}
    assert found["tasks"][0]["task_id"] == "task-g0"
    assert found["metrics"]["reward"] == {"a": [(0, 1.0)], "b": [(0, 0.5)]}
    library.close()


def test_a_run_is_followed_while_it_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("agentrl.view.web.library._PATIENCE_S", 0)
    with RunDir.create(tmp_path / "run", {"recipe": {"name": "live"}}) as run:
        library = RunLibrary(tmp_path / "run", cache=tmp_path / "cache")
        before = ask(library, "updates")
        assert (before["state"], before["episodes"]) == ("running", 0)
        assert "episodes" not in ask(library, "updates", cursor=before["cursor"])["changed"]
        run.add(make_episode("first"))
        run.add_metrics({"iteration": 0, "reward": 0.5})
        after = ask(library, "updates", cursor=before["cursor"])
        assert {"episodes", "metrics"} <= set(after["changed"])
        assert (after["episodes"], after["iteration"]) == (1, 0)
        assert ids(library) == ["first"]
        run.add(make_episode("second"))
        assert set(ids(library)) == {"first", "second"}
        library.run("run").texts.finish()
        assert ask(library, "search", q="key")["total"]
    assert set(ids(library)) == {"first", "second"}
    assert ask(library, "updates")["state"] == "stopped"
    library.close()


def test_a_run_that_was_replaced_is_shown_anew(tmp_path, monkeypatch):
    monkeypatch.setattr("agentrl.view.web.library._PATIENCE_S", 0)
    path = make_run(tmp_path / "run")
    library = RunLibrary(path, cache=tmp_path / "cache")
    assert len(ids(library)) == 12
    shutil.rmtree(path)
    make_run(path, groups=1)
    assert len(ids(library)) == 4
    library.close()


def test_full_text_finds_words_phrases_and_beginnings(library):
    found = ask(library, "search", q='"</script> <b>not markup" room*')
    assert found["total"] == 0  # the rooms are in no text
    found = ask(library, "search", q='"not markup"', limit=5)
    assert found["total"] == 48
    assert len(found["hits"]) == 5
    assert found["hits"][0]["where"] == "result"
    assert "".join(text for text, _ in found["hits"][0]["snippet"]).count("not markup")
    assert ["not markup", True] in found["hits"][0]["snippet"]
    opening = ask(library, "search", q="explo* house")
    assert {(hit["turn"], hit["where"]) for hit in opening["hits"]} == {(None, "prompt")}
    assert set(ids(library, q="gone")) == {"g1/1"}


@pytest.mark.parametrize("typed", ['"', "AND", "NOT x", "a*b", "NEAR(", "body:x", "*", "-", "\0", "\ud800", "' OR 1"])
def test_nothing_typed_is_syntax(library, typed):
    ask(library, "search", q=typed)
    ask(library, "episodes", q=typed)


def test_a_query_is_words():
    assert match('find "red box" key*') == '"find" "red box" "key"*'
    assert match('"" * -') == ""


def test_a_snippet_shows_where_it_is():
    from agentrl.view.web.text_index import Passage

    where, pieces = snippet([Passage(0, "text", "nothing"), Passage(0, "result", "x" * 200 + " a Key here")], "key")
    assert where == "result"
    assert ("Key", True) in pieces
    assert pieces[0] == ("... ", False)


def test_the_index_is_built_between_requests(tmp_path, monkeypatch):
    monkeypatch.setattr("agentrl.view.web.text_index.TextIndex.begin", lambda index: None)
    library = RunLibrary(make_run(tmp_path / "run"), cache=tmp_path / "cache")
    seen, requests = [], library.requests
    monkeypatch.setitem(ENDPOINTS, "head", lambda library, ask: seen.append(requests.number))
    answer(library, "head", Query({}))
    assert (seen, requests.number) == ([1], 0)
    monkeypatch.setitem(ENDPOINTS, "head", lambda library, ask: library.run("none"))
    with pytest.raises(RequestError):
        answer(library, "head", Query({}))
    assert requests.number == 0
    monkeypatch.setattr(requests, "wait", lambda: seen.append("waits"))
    library.run("run").texts.finish()
    assert seen == [1, *["waits"] * 12]
    library.close()


def test_who_waits_for_requests_goes_on_when_the_last_is_answered(monkeypatch):
    monkeypatch.setattr("agentrl.view.web.text_index._YIELD_S", 1e6)
    requests = Requests()
    with requests:
        waiting = threading.Thread(target=requests.wait)
        waiting.start()
        with requests:
            pass
        assert waiting.is_alive()
    waiting.join()


def test_an_index_that_cannot_be_written_is_told_and_the_rest_works(tmp_path):
    path = make_run(tmp_path / "run")
    (tmp_path / "cache").write_text("a file")
    library = RunLibrary(path, cache=tmp_path / "cache")
    found = ask(library, "episodes")
    assert len(found["rows"]) == 12
    assert found["rows"][0]["components"] is None
    assert found["index"]["state"] == "failed"
    assert "cannot be written" in found["index"]["problem"]
    with pytest.raises(RequestError, match="needs the text index"):
        ask(library, "episodes", tool="look")
    assert ask(library, "head")["can"]["search"] is False
    library.close()


def test_a_folder_shows_its_runs(tmp_path):
    make_run(tmp_path / "runs" / "deep" / "one")
    make_run(tmp_path / "runs" / "two", finished=True)
    (tmp_path / "runs" / "two" / "inside").mkdir()
    make_run(tmp_path / "runs" / "two" / "inside" / "hidden")
    library = RunLibrary(tmp_path / "runs", cache=tmp_path / "cache")
    found = answer(library, "runs", Query({}))
    runs = {run["key"]: run for run in found["runs"]}
    assert set(runs) == {"deep/one", "two"}
    assert (runs["two"]["state"], runs["deep/one"]["state"]) == ("ended", "stopped")
    assert runs["two"]["last"] == 0.2
    assert found["single"] is False
    library.close()


def test_an_empty_run_and_an_empty_folder(tmp_path):
    (tmp_path / "runs").mkdir()
    library = RunLibrary(tmp_path / "runs", cache=tmp_path / "cache")
    assert answer(library, "runs", Query({}))["runs"] == []
    RunDir.create(tmp_path / "runs" / "run").close()
    for name in ("head", "metrics", "episodes", "facets", "failures", "updates"):
        ask(library, name)
    library.close()


def test_every_endpoint_is_in_the_documentation():
    from agentrl.view.web.endpoints import ENDPOINTS

    page = Path(__file__).parents[3].joinpath("docs", "viewer.md").read_text()
    assert [name for name in ENDPOINTS if f"`{name}`" not in page] == []


def test_the_last_iteration_is_that_of_the_reinforcement_learning():
    warm = [{"stage": "warm_start", "split": "sft", "iteration": step} for step in (10, 600)]
    assert last_iteration(warm) == 600
    trained = [
        {"split": "train", "iteration": 1},
        {"split": "eval", "iteration": 70},
        {"split": "train", "iteration": 60},
    ]
    assert last_iteration([*warm, *trained]) == 60
    assert last_iteration([]) is None
