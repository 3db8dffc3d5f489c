"""A run that holds all an episode may: pictures, clicks, thinking, contexts, drift, gates, credit, hostile text."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

import msgspec

from agentrl.store import RunDir
from agentrl.store.tokens import TokenRecord, TurnTokens
from agentrl.types.episode import Context, Drift, Episode, GateVerdict, SpanReward
from tests.store.make import make_episode

LOOK = "<think>First the screen.</think>\nLet me look."
EVIL = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "<a href=\"javascript:document.title='owned'\">x</a> \x1b[31mred\x1b]0;owned\x07 \u202eevil"
)


def make_everything(path: Path, iterations: int = 12) -> Path:
    """A training of so many iterations; without any, an empty run."""
    recipe = {"name": "maze", "agent": {"max_turns": 8}}
    with RunDir.create(path, {"recipe": recipe, "command": "train", "versions": {"agentrl": "0"}}) as run:
        draw = random.Random(0)
        for iteration in range(iterations):
            for group in range(2):
                for member in range(4):
                    _add(run, iteration, group, member, draw)
            figures = {
                "success": iteration / 12,
                "reward": iteration / 14,
                "entropy": 1 - iteration / 20,
                "grad_norm": 1.0,
            }
            run.add_metrics({"iteration": iteration, "split": "train", **figures})
            run.add_tokens("rl", iteration, [_trained(f"train/{iteration:06d}-maze1#2")])
            if iteration % 5 == 0:
                run.add_metrics({"iteration": iteration, "split": "eval", "success": iteration / 12})
        if iterations:
            run.add(_desk(run.put_blob(_png(64, 36))))
            run.add_failure(
                {"kind": "SandboxLost", "message": EVIL, "stage": "tools", "episode": "train/000001-maze0#3"}
            )
    return path


def _trained(id: str) -> TokenRecord:
    numbers = {
        "advantage": [0.5, 0.5, 0.2],
        "logprob": [-0.1] * 3,
        "ratio": [1.0, 1.4, 0.7],
        "entropy": [0.1, 0.9, 0.3],
    }
    turns = [TurnTokens(turn=turn, **numbers, clipped=[False, True, False]) for turn in range(4)]
    return TokenRecord(episode_id=id, group_id=id.partition("#")[0], branch_id=0, turns=turns)


def _add(run: RunDir, iteration: int, group: int, member: int, draw: random.Random) -> None:
    name = f"train/{iteration:06d}-maze{group}"
    failed = iteration == 1 and member == 3
    gate = GateVerdict(on="format", value=0.0, threshold=0.5, strict=False, open=False, shuts=["found"])
    scored = {} if failed else {"reward": member / 4, "components": {"found": member / 4, "judge": None}}
    notes = {} if failed else {"notes": {"judge": "7 of 10: it looked twice."}, "gates": [gate]}
    run.add(
        make_episode(
            f"{name}#{member}",
            group=name,
            iteration=iteration,
            status="infra_error" if failed else "done",
            branch=member == 2,
            created_at=1_790_000_000.0 + 60 * iteration + 10 * group + member,
            **scored,
            **notes,
        )
    )
    if not failed:
        step = [round(draw.uniform(-0.5, 0.5), 3) for _ in range(4)]
        outcome = member / 4 - 0.4
        run.add_credit(
            f"{name}#{member}", "gigpo", [outcome + s for s in step], {"episode": [outcome] * 4, "step": step}
        )


def _desk(blob: str) -> Episode:
    """An episode on a desktop: a picture, a click on it, thinking, a critic, drift, and text that would act."""
    picture = {"type": "image", "blob": blob, "width": 64, "height": 36, "format": "png"}
    made = make_episode(
        "train/000099-desk#0",
        turns=3,
        group="train/000099-desk",
        iteration=11,
        created_at=1_790_009_000.0,
        components={"found": 0.1},
    )
    look, click, judge = made.turns
    replace = msgspec.structs.replace
    looked = replace(look.calls[0], name="screenshot", arguments={"note": EVIL}, result="The screen:", images=[picture])
    clicked = replace(click.calls[0], name="click", arguments={"x": 20}, points=[(20.0, 9.0)], result=EVIL)
    seen = {"role": "tool", "name": "screenshot", "content": [{"type": "text", "text": "The screen:"}, picture]}
    marked = [SpanReward("steps", len(LOOK) - 12, len(LOOK), 0.75), SpanReward(EVIL, 0, 7, -1.0, weight=0.5)]
    turns = [
        replace(look, text=LOOK, calls=[looked], observations=[seen], spans=marked),
        replace(click, text=EVIL, calls=[clicked], observations=[]),
        replace(judge, context="critic", agent="critic", calls=[], observations=[], text="word " * 30_000 + "THE END"),
    ]
    critic = Context(role="critic", prompt=[{"role": "user", "content": "Judge."}], policy="frozen", version=3)
    drift = [Drift(turn=1, kind="retokenisation", at_token=40)]
    return replace(made, turns=turns, contexts={"critic": critic}, drift=drift, answer=EVIL, notes={"judge": EVIL})


def _png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes([230, 235, 245]) * width for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
