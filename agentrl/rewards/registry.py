"""The registry of reward functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from agentrl.registry.registry import Registry, any_function
from agentrl.rewards.declare import About, about, scores_turns

OF_EPISODE = ("episode", "turn", "sandbox", "fresh_sandbox", "open_sandbox", "env", "tools", "info")
"""Inputs that belong to one episode: a function that takes the group cannot have them."""

GIVEN = ("task", "group", "component", "read_blob", "beliefs", *OF_EPISODE)
"""The inputs of reward functions, by parameter name; all other parameters are settings.

`turn`: the function is called for every turn. `sandbox`: the sandbox as the episode left it. `fresh_sandbox`: a sandbox
of the task's spec that the agent has not used. `open_sandbox`: an async function that starts one, for functions that
need two, or do not always need one. `component`: the component's name in the recipe. `env`: the first environment of
the episode, still open. `tools`: its tool instances, environments among them. `info`: that of its environments.
`group`: the episodes of the group, in order, once all of them have ended; the function returns a list over them.
`read_blob`: gives the bytes of an image or of a long output by its hash. `beliefs`: an async function that gives the
policy's probabilities of answers in the course of an episode (`rewards.declare.Beliefs`); for functions of the group.
"""


def _about(function: Callable[..., Any]) -> dict[str, Any]:
    said = about(function)
    return {
        "turns": scores_turns(function),
        "group": "group" in inspect.signature(function).parameters,
        "costs": list(said.costs),
        "origin": None if said.source == About.source else said.source,
    }


REWARDS: Registry[Callable[..., Any]] = Registry(
    kind="reward",
    group="rewards",
    key="rewards",
    built_in={
        "exact_match": "agentrl.rewards.functions.verifiers:exact_match",
        "accepted": "agentrl.rewards.functions.synthesis:accepted",
        "f1": "agentrl.rewards.functions.verifiers:f1",
        "format_f1": "agentrl.rewards.functions.verifiers:format_f1",
        "numeric": "agentrl.rewards.functions.verifiers:numeric",
        "maths": "agentrl.rewards.functions.maths:maths",
        "code_tests": "agentrl.rewards.functions.code:code_tests",
        "state_check": "agentrl.rewards.functions.state:state_check",
        "harbor": "agentrl.integrations.harbor.verifier:harbor",
        "swe_tests": "agentrl.integrations.swe.verifier:swe_tests",
        "guest": "agentrl.integrations.guests:guest",
        "trl_environment": "agentrl.integrations.trl_environment:trl_environment",
        "sql_execution": "agentrl.rewards.functions.sql:sql_execution",
        "sql_partial": "agentrl.rewards.functions.sql:sql_partial",
        "sql_syntax": "agentrl.rewards.functions.sql:sql_syntax",
        "sql_schema": "agentrl.rewards.functions.sql:sql_schema",
        "sql_ngrams": "agentrl.rewards.functions.sql:sql_ngrams",
        "patch_similarity": "agentrl.rewards.functions.patch:patch_similarity",
        "format": "agentrl.rewards.functions.verifiers:format",
        "turn_format": "agentrl.rewards.functions.verifiers:turn_format",
        "tool_success": "agentrl.rewards.functions.verifiers:tool_success",
        "tool_reward": "agentrl.rewards.functions.verifiers:tool_reward",
        "gui_type": "agentrl.rewards.functions.gui:gui_type",
        "gui_point": "agentrl.rewards.functions.gui:gui_point",
        "gui_text": "agentrl.rewards.functions.gui:gui_text",
        "gui_format": "agentrl.rewards.functions.gui:gui_format",
        "gui_success": "agentrl.rewards.functions.gui:gui_success",
        "gui_action": "agentrl.rewards.functions.gui:gui_action",
        "box_iou": "agentrl.rewards.functions.boxes:box_iou",
        "box_look": "agentrl.rewards.functions.boxes:box_look",
        "box_distance": "agentrl.rewards.functions.boxes:box_distance",
        "evidence_judgement": "agentrl.rewards.functions.reseek:evidence_judgement",
        "retrieval_recall": "agentrl.rewards.functions.retrieval:retrieval_recall",
        "retrieval_utility": "agentrl.rewards.functions.retrieval:retrieval_utility",
        "base_routing": "agentrl.rewards.functions.retrieval:base_routing",
        "answer_recall": "agentrl.rewards.functions.retrieval:answer_recall",
        "brier": "agentrl.rewards.functions.calibration:brier",
        "router_cost": "agentrl.rewards.functions.cost:router_cost",
        "frugal_search": "agentrl.rewards.functions.cost:frugal_search",
        "search_planning": "agentrl.rewards.functions.cost:search_planning",
        "laser": "agentrl.rewards.functions.length:laser",
        "laser_d": "agentrl.rewards.functions.length:laser_d",
        "cosine_length": "agentrl.rewards.functions.length:cosine_length",
        "overlong": "agentrl.rewards.functions.length:overlong",
        "unary_feedback": "agentrl.rewards.functions.feedback:unary_feedback",
        "tries": "agentrl.rewards.functions.tries:tries",
        "majority_vote": "agentrl.rewards.functions.siblings:majority_vote",
        "relative_length": "agentrl.rewards.functions.siblings:relative_length",
        "diversity": "agentrl.rewards.functions.siblings:diversity",
        "frequency": "agentrl.rewards.functions.siblings:frequency",
        "answer_entropy": "agentrl.rewards.functions.siblings:answer_entropy",
        "contrast": "agentrl.rewards.functions.siblings:contrast",
        "long_reply": "agentrl.rewards.functions.length:long_reply",
        "mean_advantage": "agentrl.rewards.functions.siblings:mean_advantage",
        "lexical_diversity": "agentrl.rewards.functions.siblings:lexical_diversity",
        "token_confidence": "agentrl.rewards.functions.calibration:token_confidence",
        "bleu": "agentrl.rewards.functions.translation:bleu",
        "chrf": "agentrl.rewards.functions.translation:chrf",
        "group_bleu": "agentrl.rewards.functions.batch_bleu:group_bleu",
        "criteria_judge": "agentrl.rewards.functions.judges.criteria:criteria_judge",
        "reward_model": "agentrl.rewards.functions.judges.scalar:reward_model",
        "supported_facts": "agentrl.rewards.functions.judges.facts:supported_facts",
        "rubric_judge": "agentrl.rewards.functions.judges.grading:rubric_judge",
        "pairwise_judge": "agentrl.rewards.functions.judges.pairwise:pairwise_judge",
        "dynamic_rubric": "agentrl.rewards.functions.judges.dynamic:dynamic_rubric",
        "cited_quality": "agentrl.rewards.functions.judges.dynamic:cited_quality",
        "outcome_potential": "agentrl.rewards.functions.potential:outcome_potential",
        "counterfactual": "agentrl.rewards.functions.counterfactual:counterfactual",
        "win_rate": "agentrl.rewards.functions.judges.pairwise:win_rate",
        "critique": "agentrl.rewards.functions.judges.critique:critique",
    },
    wanted="a function",
    accept=any_function,
    filled=GIVEN,
    about=_about,
)
