"""Checks an environment with an oracle, trivial policies and reward hackers; stores the findings."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentrl.api.certify import findings, probes
from agentrl.api.certify.certificate import Certificate, environment_of
from agentrl.api.certify.findings import Finding
from agentrl.api.recipes import AnyRecipe, Overrides, given_recipe
from agentrl.api.rescore import rescore
from agentrl.api.rollout import rollout
from agentrl.config.credit import CreditSettings
from agentrl.config.recipe import Recipe
from agentrl.curriculum.task_source import load_tasks
from agentrl.rollouts.builder import build
from agentrl.store.rescored import load
from agentrl.types.distribution import __version__
from agentrl.types.episode import Episode, planned_id
from agentrl.types.errors import AgentRLError, RecipeError
from agentrl.types.reporter import Reporter

ALONE = 10
"""Number of tasks that run without concurrent episodes, twice each."""
FORGED = 4
"""Tasks that each forger plays."""
FORGES = "forge_"
"""Prefix of the recipe's own reward-hacking scripts, which use exploits that its verifier once rewarded."""
ENDED = "ended"
"""File in the folder of the runs that marks the check as complete."""
ABOUT = "environment"
"""File in the folder of the runs with the hash of the environment."""
GROUP = 8
"""Size of the groups in which rewards must differ."""


def check_environment(
    recipe: AnyRecipe,
    n: int = 50,
    *,
    overrides: Overrides = (),
    threshold: float = 1.0,
    policy: bool = False,
    out: str | Path | None = None,
    note: Callable[[Finding], None] = lambda finding: None,
    reporters: Sequence[Reporter] = (),
) -> Certificate:
    """Checks whether an environment can be trained on.

    Args:
        recipe: as `rollout` takes it; it needs a script `oracle`.
        n: number of tasks; all of them if there are fewer.
        threshold: the reward, or value of the component `success`, from which an episode counts as a success.
        policy: play groups of the recipe's policy, too.
        out: folder of the runs; default: `runs/NAME-env-check`. `runs_folder` says which subfolder of it the version of
            the environment has. An interrupted check continues there; a complete one starts again.
        note: receives each finding.
        reporters: are told of the episodes that are played.

    Raises:
        RecipeError: the recipe has an error, or no script `oracle`.
    """
    loaded = given_recipe(recipe, overrides)
    if "oracle" not in loaded.scripts:
        raise RecipeError(
            f"{loaded.name} has no script 'oracle'",
            place="scripts",
            remedy="scripts: {oracle: ./task.py:oracle}, a generator function that solves every task",
        )
    about = environment_of(loaded)
    folder = runs_folder(loaded, out)
    if (folder / ENDED).exists():  # files outside the recipe's folder may have changed, and episodes are random
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ABOUT).write_text(about)
    known = load_tasks(loaded.tasks, loaded.base, loaded.seed)
    n = min(n, len(known))
    states = loaded.model_copy(update={"credit": CreditSettings(use="gigpo")})  # which records state keys
    plays = _Plays(states, folder, reporters)
    found = []
    for finding in _findings(plays, n, threshold, policy):
        found.append(finding)
        note(finding)
    (folder / ENDED).touch()
    return Certificate(
        recipe=loaded.name,
        certified=all(finding.state != "fail" for finding in found),
        tasks=n,
        threshold=threshold,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        environment=about,
        findings=found,
    )


def runs_folder(recipe: Recipe, out: str | Path | None = None) -> Path:
    """Returns the folder of the runs of a check, `version-1` for the first version of the environment that is checked
    below `out`, `version-2` for the next one.

    Args:
        out: as that of `check_environment`.
    """
    parent = Path(out) if out is not None else Path("runs") / f"{recipe.name}-env-check"
    about, number = environment_of(recipe), 1
    while (folder := parent / f"version-{number}").exists() and _about(folder) != about:
        number += 1
    return folder


def _about(folder: Path) -> str:
    """Returns the hash of the environment whose runs a folder holds; "" for an unknown one."""
    return (folder / ABOUT).read_text() if (folder / ABOUT).exists() else ""


@dataclass
class _Plays:
    """Runs of probes, below one folder."""

    recipe: Recipe
    folder: Path
    reporters: Sequence[Reporter] = ()

    def play(
        self, name: str, script: str | None, n: int, group_size: int = 1, changes: Mapping[str, Any] | None = None
    ) -> list[Episode]:
        """Runs a script on `n` tasks, `group_size` times each. Returns the episodes, including failed ones."""
        recipe = given_recipe(self.recipe, {**_NO_STOP, **(changes or {})})
        run = rollout(
            recipe,
            n * group_size,
            group_size=group_size,
            script=script,
            out=self.folder / name,
            reporters=self.reporters,
        )
        planned = set(run.dir.info["planned"])  # an earlier check of more tasks may have played others
        return [episode for episode in run.dir.episodes() if planned_id(episode.id) in planned]

    def probe(self, script: str, n: int, changes: Mapping[str, Any] | None = None) -> list[Episode]:
        """The episodes of a script of `probes`."""
        own = {f"scripts.env_check_{script}": f"{_PROBES}:{script}", **(changes or {})}
        return self.play(script, f"env_check_{script}", n, changes=own)


_PROBES = probes.__name__
_NO_STOP = {"limits.user_errors": 1_000_000, "limits.service_failures": 1_000_000}
"""Failures of the environment, its games and servers among them, are findings; a dead engine or backend is none."""
_ONCE = {"limits.retries": 0}
"""What breaks under odd calls is a finding. In a run it would be tried again, and then be a truncated episode."""


def _findings(plays: _Plays, n: int, threshold: float, policy: bool) -> Iterator[Finding]:
    gold = plays.play("oracle", "oracle", n, group_size=2)
    yield findings.gold_passes(gold, threshold)
    yield findings.fails("empty fails", plays.probe("empty", n), threshold)
    yield findings.fails("junk fails", plays.probe("junk", n, _ONCE), threshold)
    chance = plays.play("random", "random", min(n, GROUP), group_size=GROUP, changes=_ONCE)
    yield findings.random_runs(chance, threshold)
    alone = plays.play("oracle-alone", "oracle", min(n, ALONE), group_size=2, changes={"concurrency": 1})
    pairs = [(members[0], members[1]) for members in _by_group(alone) if len(members) > 1]
    yield findings.repeats(pairs)
    yield findings.keys_repeat(pairs)
    steady = {first.id: first for first, second in pairs if not findings.difference(first, second)}
    yield findings.undisturbed([(steady[each.id], each) for each in gold if each.id in steady])
    yield _regraded(plays, "oracle", gold)
    yield from _forged(plays, min(n, FORGED), threshold, [tool for each in gold for tool in each.tools or []])
    yield findings.has_signal(chance, "the random agent")
    if policy:
        yield findings.has_signal(plays.play("policy", None, min(n, GROUP), group_size=GROUP), "the policy")


def _by_group(episodes: Sequence[Episode]) -> list[list[Episode]]:
    groups = defaultdict(list)
    for episode in sorted(episodes, key=lambda episode: episode.id):
        groups[episode.group_id].append(episode)
    return list(groups.values())


def _regraded(plays: _Plays, name: str, episodes: Sequence[Episode]) -> Finding:
    try:
        rescore(plays.folder / name, plays.recipe, name="env-check")
    except AgentRLError as error:
        return Finding("grader repeats", "unknown", error.message)
    again = load(plays.folder / name, "env-check")
    return findings.grader_repeats(episodes, {id: score.reward for id, score in again.items()})


def _forged(plays: _Plays, n: int, threshold: float, tools: list[dict[str, Any]]) -> Iterator[Finding]:
    check = "grade cannot be forged"
    parts = build(plays.recipe)
    if attacks := probes.attacks([*parts.definitions, *tools]):
        for attack in attacks:
            yield findings.withstands(f"{check}: {attack.replace('_', ' ')}", plays.probe(attack, n), threshold)
    elif parts.recipe.agent.needs_sandbox or any(entry.needs_sandbox for entry in parts.tools.entries):
        yield Finding(check, "unknown", "the tools may write in the sandbox, and no attack is known with them")
    else:
        yield Finding(check, "not applicable", "no tool runs commands or writes files in a sandbox")
    for script in sorted(plays.recipe.scripts):
        if script.startswith(FORGES):
            yield findings.fails(f"{check}: {script}", plays.play(script, script, n), threshold)
