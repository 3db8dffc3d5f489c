"""The token graph: what is shared, what is a branch, and what is left when nodes go."""

from __future__ import annotations

from agentrl.types.engine import Completion
from agentrl.types.trajectory import ROOT, Trajectory


def said(*ids: int) -> Completion:
    return Completion(token_ids=list(ids), logprobs=[-0.5] * len(ids), finish="stop", versions=[])


def grown() -> tuple[Trajectory, int, int, int]:
    """A prompt, a reply, and two replies behind two results."""
    trajectory = Trajectory()
    first = trajectory.append_sampled(trajectory.append_rendered(ROOT, [1, 2]), said(3))
    one = trajectory.append_sampled(trajectory.append_rendered(first, [4, 5]), said(6))
    two = trajectory.append_sampled(trajectory.append_rendered(first, [4, 7]), said(8))
    return trajectory, first, one, two


def test_a_prompt_is_the_path_and_rendered_tokens_are_there_once() -> None:
    trajectory, first, one, two = grown()
    assert trajectory.before(one) == [1, 2, 3, 4, 5]
    assert trajectory.tokens(two) == [1, 2, 3, 4, 7, 8]
    count = len(trajectory.nodes)
    assert trajectory.append_rendered(first, [4, 5]) == trajectory.nodes[one].parent
    assert trajectory.append_rendered(ROOT, [1, 2]) == 0
    assert len(trajectory.nodes) == count
    assert [node.kind for node in trajectory.nodes[:3]] == ["prompt", "sampled", "observation"]


def test_sampled_tokens_are_never_taken_for_rendered_ones() -> None:
    trajectory = Trajectory()
    at = trajectory.append_rendered(ROOT, [1])
    reply = trajectory.append_sampled(at, said(2))
    assert trajectory.append_rendered(at, [2]) != reply
    assert trajectory.append_sampled(at, said(2)) != reply


def test_branches_name_every_reply_once_with_the_last_that_continues_it() -> None:
    trajectory, first, one, two = grown()
    assert trajectory.branches([first, one, two]) == [[first, two], [one]]
    assert Trajectory(trajectory.nodes).branches([first, one, two]) == [[first, two], [one]]


def test_shared_prefix_ends_at_the_first_other_token_or_with_the_shorter() -> None:
    trajectory, _, one, _ = grown()
    assert trajectory.shared_prefix(one, [1, 2, 3, 9]) == 3
    assert trajectory.shared_prefix(one, [1, 2]) == 2
    assert trajectory.shared_prefix(one, [*trajectory.tokens(one), 9]) == 6
    assert trajectory.shared_prefix(ROOT, [1]) == 0


def test_what_goes_leaves_the_rest_connected() -> None:
    trajectory, first, one, two = grown()
    nodes, moved = trajectory.without({one})
    left = Trajectory(nodes)
    assert left.tokens(moved[two]) == trajectory.tokens(two)
    assert left.tokens(moved[first]) == trajectory.tokens(first)
    assert len(nodes) == len(trajectory.nodes) - 1
