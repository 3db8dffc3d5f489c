import json
from pathlib import Path

import msgspec
import pytest

from agentrl.store import RunDir, check
from agentrl.store.group_scores import GroupScores
from agentrl.store.rescored import Rescore
from agentrl.store.shards import Shards
from agentrl.types.episode import Branch, Context, Node, VersionSpan
from agentrl.types.errors import StoreError
from tests.store.make import make_episode


def with_node(episode, index, **change):
    nodes = list(episode.nodes)
    nodes[index] = msgspec.structs.replace(nodes[index], **change)
    return msgspec.structs.replace(episode, nodes=nodes)


def with_turn(episode, index, **change):
    turns = list(episode.turns)
    turns[index] = msgspec.structs.replace(turns[index], **change)
    return msgspec.structs.replace(episode, turns=turns)


def swapped(turns):
    """The first two turns name each other's tokens."""
    nodes = [turns[1].node, turns[0].node, *(turn.node for turn in turns[2:])]
    return [msgspec.structs.replace(turn, node=node) for turn, node in zip(turns, nodes, strict=True)]


VOICE = {"user": Context(role="user", prompt=[], policy="user")}
GOOD = make_episode("bad", branch=True)
COUNT = len(GOOD.nodes[1].token_ids)


def test_a_sound_run_is_sound(tmp_path: Path):
    ids = [f"e{i}" for i in range(6)]
    with RunDir.create(tmp_path / "run", {"planned": ids}) as run:
        for i, id in enumerate(ids[:5]):
            run.add(make_episode(id, branch=i % 2 == 0, blob=run.put_blob(b"long output")))
            run.add_credit(id, "grpo", [0.0] * 4)
        run.add_scores(GroupScores(group_id="g0", scores=[Rescore.of(run.get("e0"))]))
        run.add(make_episode("e5", status="infra_error"))
        run.update_info(finished=True)
    report = check(tmp_path / "run")
    assert report.exit_code == 0
    assert report.episodes == 6
    assert json.loads(json.dumps(report.as_dict()))["ok"] is True
    assert all(each.ok for each in report.invariants.values()), "every invariant saw a case"


@pytest.mark.parametrize(
    ("invariant", "episode"),
    [
        ("graph", with_node(GOOD, 3, parent=7)),
        ("graph", msgspec.structs.replace(GOOD, turns=GOOD.turns[:-1])),
        ("graph", with_turn(GOOD, 1, node=GOOD.turns[0].node)),
        ("contexts", with_turn(GOOD, 1, context="helper")),
        ("contexts", msgspec.structs.replace(GOOD, contexts={"helper": Context(role="helper", prompt=[])})),
        ("contexts", with_turn(msgspec.structs.replace(GOOD, contexts=VOICE), 3, context="user")),
        ("contexts", msgspec.structs.replace(GOOD, branches=[])),
        ("contexts", msgspec.structs.replace(GOOD, branches=[Branch(turn=4, reason="rewrite", at_token=0)])),
        ("contexts", msgspec.structs.replace(GOOD, branches=[Branch(turn=3, reason="rewrite", at_token=31)])),
        ("contexts", msgspec.structs.replace(GOOD, turns=swapped(GOOD.turns))),
        ("tokens", msgspec.structs.replace(GOOD, turns=GOOD.turns[:-1])),
        ("contexts", with_node(GOOD, 1, kind="spoken")),
        ("logprobs", with_node(GOOD, 1, logprobs=None)),
        ("logprobs", with_node(GOOD, 1, logprobs=[-0.1] * (COUNT - 1))),
        ("logprobs", with_node(GOOD, 1, logprobs=[0.5] * COUNT)),
        ("versions", with_node(GOOD, 1, versions=[])),
        ("versions", with_node(GOOD, 1, versions=[VersionSpan(0, 0, 1), VersionSpan(0, 2, COUNT)])),
        ("rewards", make_episode("bad", status="user_error", reward=0.0)),
        ("rewards", make_episode("bad", reward=None)),
        ("blobs", make_episode("bad", blob="ab" * 32)),
    ],
)
def test_a_broken_episode_is_named(tmp_path, invariant, episode):
    with RunDir.create(tmp_path / "run") as run:
        run.add(make_episode("fine"))
        run.add(episode)
    report = check(tmp_path / "run")
    assert report.exit_code == 1
    finding = report.invariants[invariant]
    assert finding.failed == 1
    assert "bad" in finding.offenders[0]
    assert "NOT SOUND" in report.as_text()


def test_an_episode_that_is_stored_twice(tmp_path):
    path = tmp_path / "run"
    with RunDir.create(path) as run:
        run.add(make_episode("e"))
    (path / "episodes" / "00001.jsonl.zst").write_bytes((path / "episodes" / "00000.jsonl.zst").read_bytes())
    assert check(path).invariants["exactly_once"].offenders == ["e: stored again at 00001.jsonl.zst@0"]


def test_missing_episodes_count_once_the_run_is_finished(tmp_path):
    with RunDir.create(tmp_path / "run", {"planned": ["a", "b", "c"]}) as run:
        run.add(make_episode("a"))
    report = check(tmp_path / "run")
    assert report.ok
    assert report.notes == ["2 planned episodes are not stored yet"]
    with RunDir.open(tmp_path / "run") as run:
        run.update_info(finished=True)
    assert check(tmp_path / "run").invariants["exactly_once"].offenders == ["b: missing", "c: missing"]
    with RunDir.open(tmp_path / "run") as run:
        run.update_info(planned=2)
    assert check(tmp_path / "run").invariants["exactly_once"].failed == 1


def test_blobs_of_episodes_that_were_never_stored_are_swept(tmp_path):
    path = tmp_path / "run"
    run = RunDir.create(path)
    run.add(make_episode("e", blob=run.put_blob(b"kept")))
    run.put_blob(b"of a cancelled episode")
    assert check(path).ok, "while the run is written, its episode may still come"
    run.close()
    with RunDir.read(path) as run:
        assert [path.read_bytes() for path in path.glob("blobs/*/*")] == [b"kept"]
    assert check(path).ok


def test_blobs_that_are_foreign_or_changed(tmp_path):
    path = tmp_path / "run"
    with RunDir.create(path) as run:
        sha = run.put_blob(b"x")
        run.add(make_episode("e", blob=sha))
        assert run.get_blob(sha) == b"x"
    (path / "blobs" / sha[:2] / sha).write_bytes(b"y")
    (path / "blobs" / "00").mkdir()
    (path / "blobs" / "00" / ("00" * 32)).write_bytes(b"z")
    offenders = check(path).invariants["blobs"].offenders
    assert offenders == [f"{sha}: its content has another hash", f"{'00' * 32}: named by no episode"]
    with RunDir.read(path) as run, pytest.raises(StoreError, match="no blob"):
        run.get_blob("11" * 32)


def test_credit_must_fit(tmp_path):
    with RunDir.create(tmp_path / "run") as run:
        run.add(make_episode("e", turns=2))
        run.add_credit("e", "grpo", [0.0])
        run.add_credit("x", "grpo", [0.0])
    offenders = check(tmp_path / "run").invariants["credit"].offenders
    assert offenders == ["e: [1] numbers for 2 turns", "x: no such episode"]


def test_an_index_that_lies_is_found(tmp_path):
    path = tmp_path / "run"
    with RunDir.create(path) as run:
        run.add(make_episode("e"))
        run._select("1")
        run._index._db.execute("UPDATE episodes SET reward = 9")
        run._index._db.commit()
    assert check(path).invariants["index"].failed == 1


def test_a_record_of_another_kind_is_not_readable(tmp_path):
    path = tmp_path / "run"
    with RunDir.create(path) as run:
        run.add(make_episode("e"))
    foreign = Shards(path / "episodes")
    foreign.append(b'{"id": 3}')
    foreign.close()
    assert check(path).invariants["readable"].failed == 1
    with RunDir.open(path) as run:
        assert run.damage == ["episodes/00001.jsonl.zst@0"]
        assert run.ids() == {"e"}


def test_text_only_nodes_need_no_tokens(tmp_path):
    bare = msgspec.structs.replace(make_episode("e"), nodes=[])
    with RunDir.create(tmp_path / "run") as run:
        run.add(bare)
    assert check(tmp_path / "run").ok
    assert Node(parent=-1, kind="prompt", token_ids=[]).logprobs is None


def test_scores_of_groups_belong_to_episodes(tmp_path: Path):
    with RunDir.create(tmp_path / "run") as run:
        run.add(make_episode("a"))
        score = Rescore.of(run.get("a"))
        run.add_scores(GroupScores(group_id="g0", scores=[msgspec.structs.replace(score, turns=[])]))
        run.add_scores(GroupScores(group_id="g0", scores=[msgspec.structs.replace(score, episode_id="b")]))
    offenders = check(tmp_path / "run").invariants["scores"].offenders
    assert offenders == ["a: 0 turns of 4", "b: no such episode"]
