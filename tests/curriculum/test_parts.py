"""The rules of the parts, by hand and against the scalar tables."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from agentrl.config.credit import CreditSettings
from agentrl.curriculum import Correction, CreditedEpisode, Curriculum, CurriculumContext, Filter, Group, GroupPlan
from agentrl.curriculum.methods.budget import ExpertBudget
from agentrl.curriculum.methods.dart import DartRollouts, DartSuccesses, DartTurns
from agentrl.curriculum.methods.difficulty import Vade, Vas
from agentrl.curriculum.methods.hints import Seele, rate_for
from agentrl.curriculum.methods.horizon import ScalingInter
from agentrl.curriculum.methods.last_try import LastTry
from agentrl.curriculum.methods.limr import Limr
from agentrl.curriculum.methods.noise import ZeroSearch
from agentrl.curriculum.methods.prof import Prof
from agentrl.curriculum.methods.relift import Relift
from agentrl.curriculum.methods.rorecomp import RoRecomp
from agentrl.curriculum.methods.sources import Dads, Dump, softmax
from agentrl.curriculum.methods.stepwise import Stepwise
from agentrl.curriculum.methods.zero_variance import DynamicSampling, ZeroVariance
from agentrl.curriculum.task_source import TaskSource
from agentrl.estimators.registry import EpisodeCredit, load_credit
from agentrl.types.episode import Context as Context_
from agentrl.types.episode import Episode, Node, Turn
from agentrl.types.errors import CreditError, TaskError, TrainError
from agentrl.types.task import Task

TABLES = json.loads((Path(__file__).parents[1] / "golden" / "scalar_tables.json").read_text())["expected"]


def context(iteration: int = 0, iterations: int = 200, past: dict[str, Episode] | None = None) -> CurriculumContext:
    return CurriculumContext(iteration, iterations, random.Random(iteration), (past or {}).__getitem__)


def episode(
    id: str, reward: float, *, turns: int = 1, logprob: float = -1.0, rewards=None, group: str = "g"
) -> Episode:
    nodes = [Node(parent=-1, kind="prompt", token_ids=[1])]
    nodes += [Node(parent=k, kind="sampled", token_ids=[2, 3], logprobs=[logprob] * 2) for k in range(turns)]
    said = [Turn(index=k, node=k + 1, text="", finish="stop", rewards=rewards or {}) for k in range(turns)]
    task = Task.of("t", "go")
    return Episode(id=id, group_id=group, task=task, status="done", nodes=nodes, turns=said, reward=reward)


def group(task: str | Task, *rewards: float, advantages: list[float] | None = None) -> Group:
    task = Task.of(task, "go", source=task) if isinstance(task, str) else task
    members = [episode(f"{task.id}#{k}", reward) for k, reward in enumerate(rewards)]
    return Group(f"g-{task.id}", task, members, advantages or [])


def source(*ids: str) -> TaskSource:
    return TaskSource([Task.of(id, "go", source=id) for id in ids], shuffle=False, seed=0)


def credited(of: Episode) -> CreditedEpisode:
    return CreditedEpisode(of, EpisodeCredit(episode_id=of.id, estimator="grpo", turn_advantages=[0.5] * len(of.turns)))


def test_dump_against_the_table() -> None:
    (case,) = TABLES["dump_ucb"]
    part = Dump()
    part.state = {"seen": {str(k): {"n": n, "recent": [a]} for k, (n, a) in
                           enumerate(zip(case["n"], case["mean_abs_advantage"], strict=True))}}  # fmt: skip
    assert part.weights(["0", "1", "2"]) == pytest.approx(case["weights"], abs=1e-6)
    assert softmax(case["scores"], 0.1) == pytest.approx(case["weights"], abs=1e-6)


def test_dump_counts_episodes_and_forgets_beyond_its_window() -> None:
    part = Dump(Dump.Settings(window=3))
    part.observe([group("a", 1, 0, advantages=[1.0, 1.0]), group("b", 0, 0)], context())
    part.observe([group("a", 1, 0, advantages=[0.5, 0.5])], context(1))
    assert part.state["seen"] == {"a": {"n": 4, "recent": [1.0, 0.5, 0.5]}, "b": {"n": 2, "recent": [0.0, 0.0]}}


def test_dads_against_the_table() -> None:
    (case,) = TABLES["ruleeasoner_dads"]
    part = Dads(Dads.Settings(every=1, memory=1))
    part.observe([group(str(k), mean) for k, mean in enumerate(case["mean_reward"])], context())
    weights = part.weights(["0", "1", "2"])
    assert [w / sum(weights) for w in weights] == pytest.approx(case["weights_without_history"], abs=1e-6)


def test_dads_decays_old_iterations_and_its_target_alike() -> None:
    """Rewards 1 then 0: mean (0/1 + 1/2) / 2 = 0.25, target (1 + 1/2) / 2 = 0.75, gap 0.5."""
    part = Dads(Dads.Settings(every=2))
    part.observe([group("a", 1.0)], context(0))
    assert "gaps" not in part.state
    part.observe([group("a", 0.0)], context(1))
    assert part.state["gaps"] == {"a": pytest.approx(0.5)}


def test_sources_keep_their_own_order() -> None:
    tasks = TaskSource([Task.of(f"{s}{k}", "go", source=s) for k in range(3) for s in "ab"], shuffle=False, seed=0)
    part = Dump()
    drawn = [task.id for task in part.draw(tasks, 12, context())]
    for name in "ab":
        mine = [id for id in drawn if id[0] == name]
        assert mine == [f"{name}{k % 3}" for k in range(len(mine))]
    with pytest.raises(TaskError, match="'t' has no data 'source'"):
        Dump().draw(TaskSource([Task.of("t", "go")], shuffle=False, seed=0), 1, context())


def test_vas_prefers_what_is_sometimes_solved() -> None:
    part = Vas(Vas.Settings(every=1, weighted=1.0))
    part.observe([group("easy", 1, 1), group("mixed", 1, 0), group("hard", 0, 0)], context())
    assert part.state["rates"] == {"easy": 1.0, "mixed": 0.5, "hard": 0.0}
    assert {task.id for task in part.draw(source("easy", "mixed", "hard"), 20, context())} == {"mixed"}
    half = Vas(Vas.Settings(weighted=0.5))
    half.state = part.state
    counts = Counter(task.id for task in half.draw(source("easy", "mixed", "hard"), 12, context()))
    assert counts == {"mixed": 8, "easy": 2, "hard": 2}  # 6 by weight, 6 uniformly


def test_vade_updates_and_decays_its_posteriors() -> None:
    part = Vade(Vade.Settings(decay=0.5))
    part.observe([group("a", 1, 1, 0)], context())
    assert part.state["a"] == [3.0, 2.0]
    part.observe([group("a", 0)], context(1))
    assert part.state["a"] == [2.0, 2.5]
    part.state = {"easy": [900, 1], "third": [300, 600], "hard": [1, 900]}
    drawn = part.draw(source("easy", "third", "hard"), 4, context())
    assert drawn[0].id == "third"
    assert len(drawn) == 4


def test_limr_keeps_the_tasks_that_move_with_the_whole() -> None:
    """Curves (0, 1), (0, 1) and (1, 0); mean (1/3, 2/3). Scale 4/9 + 1/9 = 5/9. The first two: 1 - (2/9) / (5/9) =
    0.6; the third 1 - (8/9) / (5/9) = -0.6."""
    part = Limr(Limr.Settings(passes=2, threshold=0.5))
    tasks = source("a", "b", "c")
    for rewards in ((0, 0, 1), (1, 1, 0)):
        assert [task.id for task in part.draw(tasks, 3, context())] == ["a", "b", "c"]
        part.observe([group(task, reward) for task, reward in zip("abc", rewards, strict=True)], context())
    assert [task.id for task in part.draw(tasks, 3, context())] == ["a", "b", "a"]
    strict = Limr(Limr.Settings(passes=2, threshold=0.9))
    strict.state = {"curves": part.state["curves"], "drawn": 6}
    with pytest.raises(TrainError, match=r"above 0\.9; the best is 0\.600"):
        strict.draw(tasks, 3, context())


def plan(part, iteration: int, task: Task | None = None, size: int = 8, max_turns: int = 10) -> GroupPlan:
    return part.plan(GroupPlan(task or Task.of("t", "go"), size, max_turns), context(iteration))


def test_scaling_inter_against_the_table() -> None:
    case = TABLES["scaling_inter_rounds"]
    part = ScalingInter(ScalingInter.Settings(max_turns=case["rounds"], every=case["interval"]))
    for step, turns in case["step_to_max_rounds"].items():
        assert plan(part, int(step)).max_turns == turns


def test_zerosearch_against_the_table() -> None:
    case = TABLES["zerosearch_noise_probability"]
    part = ZeroSearch(ZeroSearch.Settings(start=case["ps"], end=case["pe"], over=case["total_steps"]))
    for step, noise in case["values"].items():
        assert plan(part, int(step)).task.data["noise"] == pytest.approx(noise, abs=1e-6)
    assert plan(part, 999).task.data["noise"] == 0.5


def test_stepwise_takes_the_next_value_after_each_share() -> None:
    """Of 40 iterations the first 4 are a tenth, the first 10 a quarter."""
    part = Stepwise(Stepwise.Settings(key="least", values=[0.85, 0.95, 0.99], until=[0.1, 0.25]))
    found = [part.plan(GroupPlan(Task.of("t", "go"), 8, 10), context(at, 40)).task.data["least"] for at in range(40)]
    assert found == [0.85] * 4 + [0.95] * 6 + [0.99] * 30
    for settings in ({"values": [1.0], "until": [0.5]}, {"values": [1.0, 2.0, 3.0], "until": [0.5, 0.2]}):
        with pytest.raises(ValueError, match="in rising order"):
            Stepwise.Settings(key="least", **settings)


def test_the_budget_of_an_expert() -> None:
    part = ExpertBudget(ExpertBudget.Settings(times=1.5, least=2))
    found = [plan(part, 0, Task.of("t", "go", expert_turns=turns)).max_turns for turns in (0, 1, 2, 3, 9)]
    assert found == [2, 2, 3, 5, 10]  # ceil(4.5) = 5; 10 is the limit of the recipe
    for data in ({}, {"expert_turns": "long"}, {"expert_turns": -1}, {"expert_turns": math.nan}):
        with pytest.raises(TaskError, match="expert_turns"):
            plan(part, 0, Task(id="t", instruction=[], data=data))


def test_seele_finds_the_rate_of_the_target() -> None:
    def accuracy(rate: float) -> float:
        return 1 / (1 + math.exp(-8 * (rate - 0.3)))

    history = [[rate, accuracy(rate)] for rate in (0.0, 0.2, 0.5, 1.0)]
    assert rate_for(0.5, history) == pytest.approx(0.3, abs=0.03)
    assert rate_for(0.5, [[0.0, 1.0]] * 4) == 0.0
    assert rate_for(0.5, [[1.0, 0.0]] * 4) == 1.0


def test_seele_shows_a_share_of_the_hint_and_learns_from_it() -> None:
    part, task = Seele(), Task.of("t", "Solve.", hint="first second third fourth")
    first = plan(part, 0, task).task
    assert first.instruction[-1]["content"] == "Solve."
    part.observe([group(first, 0, 0)], context())
    second = plan(part, 1, task).task
    shown = second.instruction[-1]["content"].removeprefix("Solve.\n\nHint: ").split()
    assert len(shown) == math.ceil(second.data["hint_rate"] * 4) > 0
    assert task.instruction[-1]["content"] == "Solve."
    with pytest.raises(TaskError, match="no data 'hint'"):
        plan(part, 0)


def test_dart_gives_easy_tasks_fewer_and_shorter_episodes() -> None:
    part = DartRollouts()
    assert plan(part, 0) == GroupPlan(Task.of("t", "go"), 8, 10)
    task = Task.of("t", "go")
    part.observe([Group("g", task, [episode(str(k), float(k > 0), turns=3) for k in range(5)])], context())
    # Rate 0.8: (1 - 0.8) / (1 - 0.6) = half the episodes; longest success 3 turns + 2.
    assert plan(part, 1) == GroupPlan(task, 4, 5)


def test_the_turns_before_the_last_try_do_not_train() -> None:
    tries = [{"score": 0.0, "turns": [0, 1]}, {"score": 0.0, "turns": [2]}, {"score": 1.0, "turns": [3]}]
    again = msgspec.structs.replace(episode("again", 1, turns=4), info={"tries": tries})
    once = msgspec.structs.replace(episode("once", 1, turns=1), info={"tries": tries[-1:]})
    each = [credited(again), credited(once), credited(episode("none", 1, turns=1))]
    assert [sorted(x.masked_turns) for x in LastTry().refine(each, context())] == [[0, 1, 2], [], []]
    assert [x.episode.id for x in LastTry(LastTry.Settings(retried=True)).refine(each, context())] == ["again"]


def test_only_filters_with_corrected_turns_ask_for_a_step_on_them() -> None:
    class Corrects(Filter):
        name = "corrects"

        def correct(self, context: CurriculumContext) -> tuple[float, list[Correction]] | None:
            return 0.1, [Correction(episode("a", 0, turns=2), 1, "better")] if context.iteration else []

    curriculum = Curriculum([LastTry(), Corrects()], iterations=2, seed=0)
    assert list(curriculum.corrections(0)) == []
    ((name, lr, (each,)),) = curriculum.corrections(1)
    assert (name, lr, each.turn, each.text) == ("corrects", 0.1, 1, "better")


def test_dart_masks_the_turns_of_least_entropy() -> None:
    part = DartTurns(DartTurns.Settings(keep=0.5))
    out = part.refine(
        [credited(episode("sure", 1, turns=2, logprob=-0.1)), credited(episode("open", 0, turns=2))], context()
    )
    assert [sorted(x.masked_turns) for x in out] == [[0, 1], []]


def beside(one: Episode, *speakers: int, taken: int = 0) -> Episode:
    """The episode with turns of another speaker, which have no tokens, and `taken` that its parent sampled."""
    turns = [msgspec.structs.replace(turn, context="critic") if turn.index in speakers else turn for turn in one.turns]
    nodes = [
        msgspec.structs.replace(node, kind="spoken", logprobs=None) if at - 1 in (*speakers, *range(taken)) else node
        for at, node in enumerate(one.nodes)
    ]
    contexts = {"critic": Context_(role="critic", prompt=[], policy="critic")}
    return msgspec.structs.replace(one, turns=turns, nodes=nodes, contexts=contexts)


@pytest.mark.parametrize("taken", [0, 1])
def test_dart_ranks_the_turns_that_train_alone(taken: int) -> None:
    part = DartTurns(DartTurns.Settings(keep=0.5))
    sure = beside(episode("sure", 1, turns=4, logprob=-0.1), 1, 3, taken=taken)
    out = part.refine([credited(sure), credited(beside(episode("open", 0, turns=4), 1, 3, taken=taken))], context())
    assert [sorted(x.masked_turns) for x in out] == [[0, 2][taken:], []]


def test_prof_ranks_by_the_policys_own_turns() -> None:
    alone = episode("alone", 1.0, turns=1, rewards={"process": 0.5})
    talks = beside(episode("talks", 1.0, turns=4, rewards={"process": 0.6}), 1, 2, 3)
    (kept,) = Prof().select([Group("g", alone.task, [alone, talks])], 1, context())
    assert [e.id for e in kept.episodes] == ["talks"]
    noisy = beside(episode("noisy", 1.0, turns=4, rewards={"process": 0.1}), 1, 2, 3)
    (kept,) = Prof().select([Group("g", alone.task, [alone, noisy])], 1, context())
    assert [e.id for e in kept.episodes] == ["alone"]


def test_dart_joins_a_success_to_a_group_that_failed() -> None:
    part = DartSuccesses()
    won = episode("old", 1.0)
    part.observe([Group("then", won.task, [won])], context())
    failed = Group("now", won.task, [episode("a", 0.0), episode("b", 0.0)])
    (joined,) = part.select([failed], 1, context(past={"old": won}))
    assert [(e.id, e.group_id) for e in joined.episodes][-1] == ("old", "now")
    assert part.select([group("t", 1, 0)], 1, context()) == [group("t", 1, 0)]


def test_a_success_joins_one_group_of_an_iteration() -> None:
    """Two groups of one task that both failed: an episode in both would be credited, and train, twice."""
    part = DartSuccesses()
    won = episode("old", 1.0)
    part.observe([Group("then", won.task, [won])], context())
    failed = [Group(g, won.task, [episode(f"{g}{k}", 0.0, group=g) for k in range(2)]) for g in ("g1", "g2")]
    selected = part.select(failed, 2, context(past={"old": won}))
    assert [len(g.episodes) for g in selected] == [3, 2]
    credits, _ = load_credit(CreditSettings(use="grpo")).assign([e for g in selected for e in g.episodes])
    assert [any(credit.turn_advantages) for credit in credits] == [True, True, True, False, False]


@pytest.mark.parametrize("kind", [ZeroVariance, DynamicSampling])
def test_zero_variance_is_that_of_a_named_metric(kind: type[ZeroVariance]) -> None:
    """A penalty of length in the sum makes every group differ; turn rewards differ where outcomes do not."""

    def group_of(id: str, acc: tuple[float, ...], reward: tuple[float, ...], turns: tuple[float, ...]) -> Group:
        members = [
            msgspec.structs.replace(episode(f"{id}{k}", r, rewards={"step": t}), components={"acc": a})
            for k, (a, r, t) in enumerate(zip(acc, reward, turns, strict=True))
        ]
        return Group(id, members[0].task, members)

    groups = [
        group_of("long", (1, 1), (1.0, 0.8), (0, 0)),
        group_of("steps", (1, 1), (1.0, 1.0), (0, 1)),
        group_of("mixed", (1, 0), (1.0, 0.0), (0, 0)),
    ]
    kept = {None: ["long", "mixed"], "acc": ["mixed"], "total": ["long", "steps", "mixed"], "step": ["steps"]}
    for metric, ids in kept.items():
        part = kind(kind.Settings.model_validate({"metric": metric}))
        assert [g.id for g in part.select(groups, 3, context())] == ids
        assert part.more(groups, 3, 1) == (3 - len(ids) if kind is DynamicSampling else 0)
    with pytest.raises(CreditError, match="no episode has a reward component 'accuracy'"):
        kind(kind.Settings.model_validate({"metric": "accuracy"})).select(groups, 3, context())


def test_zero_variance_groups_are_dropped_and_made_up_for() -> None:
    groups = [group("a", 1, 1), group("b", 1, 0), group("c", 1), group("d", 0, 1), group("e", 0, 1)]
    assert [g.task.id for g in ZeroVariance().select(groups, 2, context())] == ["b", "d", "e"]
    part = DynamicSampling(DynamicSampling.Settings(rounds=2))
    assert [g.task.id for g in part.select(groups, 2, context())] == ["b", "d"]
    assert part.more(groups, 5, rounds=1) == 2
    assert part.more(groups, 5, rounds=2) == 0
    assert part.more(groups, 2, rounds=1) == 0


def test_prof_balances_and_ranks_by_process() -> None:
    members = [episode(f"r{k}", 1.0, rewards={"process": k / 10}) for k in range(4)]
    members += [episode(f"w{k}", 0.0, rewards={"process": k / 10}) for k in range(4)]
    (kept,) = Prof().select([Group("g", members[0].task, members)], 1, context())
    assert [e.id for e in kept.episodes] == ["r2", "r3", "w0", "w1"]
    (kept,) = Prof().select([Group("g", members[0].task, members[:5])], 1, context())
    assert [e.id for e in kept.episodes] == ["r2", "r3", "w0"]  # one failure; its place goes to a success
    with pytest.raises(CreditError, match="no turn of iteration 0 has a reward 'other'"):
        Prof(Prof.Settings(process="other")).select([Group("g", members[0].task, members)], 1, context())


def test_rorecomp_takes_short_successes_and_long_failures_first() -> None:
    members = [episode(f"r{n}", 1.0, turns=n) for n in (1, 2)] + [episode(f"w{n}", 0.0, turns=n) for n in (1, 2)]
    part = RoRecomp(RoRecomp.Settings(every=2))
    now = part.refine([credited(e) for e in members], context(0))
    assert [x.episode.id for x in now] == ["r1", "w2"]
    assert part.metrics() == {"waiting": 2.0}
    later = part.refine([], context(1, past={e.id: e for e in members}))
    assert [(x.episode.id, x.credit.turn_advantages) for x in later] == [("r2", [0.5, 0.5]), ("w1", [0.5])]
    assert part.metrics() == {"waiting": 0.0}


def test_relift_asks_once_its_buffer_is_full() -> None:
    part = Relift(Relift.Settings(script="oracle", buffer=2, lr=0.1))
    part.observe([group("a", 0, 0), group("b", 0, 1)], context())
    assert part.demonstrate() is None
    part.observe([group("a", 0, 0), group("c", 0)], context())
    assert part.demonstrate() == ("oracle", 0.1, ["a", "c"])
    assert part.demonstrate() is None


def test_state_continues_a_curriculum_exactly() -> None:
    tasks = source("a", "b", "c", "d")

    def walk(curriculum: Curriculum, iterations: range) -> list[list[str]]:
        seen = []
        for iteration in iterations:
            drawn = curriculum.draw(tasks, 3, 2, 5, iteration)
            seen.append([plan.task.id for plan in drawn])
            curriculum.observe([group(plan.task, iteration % 2, 1) for plan in drawn], iteration)
        return seen

    for kind in (Dump, Dads, Vas, Vade, Limr):
        settings = Limr.Settings(passes=2, threshold=-9) if kind is Limr else None
        straight, first, second = (Curriculum([kind(settings)], seed=1, iterations=9) for _ in range(3))
        whole = walk(straight, range(8))
        start = walk(first, range(5))
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert start + walk(second, range(5, 8)) == whole
