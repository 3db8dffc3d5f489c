"""Templates of other people's models: what is found out of them, what they append, and which of them are refused."""

from __future__ import annotations

import pytest

from agentrl.chat.proof import check
from agentrl.chat.recognise import parser_for
from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import HFTokenizer
from agentrl.config.agent import FormatSettings
from agentrl.types.errors import RenderError
from tests.chat.families import small, tokenizer_of, trl_folder

from .cases import Case, played
from .test_histories import ACT, renderer_of

TURN = ("reply", "ends", "cut", "new", "appended")
FAMILY = ("file", "template", "eos", "format", "notes", "system", "refused")


@pytest.mark.parametrize(("file", "case"), played("templates", [], ["family", *TURN, *FAMILY]))
def test_a_template(file: str, case: Case) -> None:
    assert sum(key in case for key in ("family", "file", "template")) == 1, "a case has one template"
    if "appended" in case:
        assert set(case) <= {"name", "from", "family", *TURN}
        append(case)
    else:
        assert set(case) <= {"name", "from", "family", *FAMILY}
        assert set(case) & {"format", "refused"}, "a case says what is right"
        found_out(case)


def append(case: Case) -> None:
    """Compares what is appended to a reply, and how the reply ends."""
    renderer = renderer_of(case["family"])
    opening = renderer.start([{"role": "user", "content": "Begin."}])
    ids = renderer.demonstrate(case["reply"], opening)
    end = renderer.tokenizer.decode(ids[-1:])
    assert end == case.get("ends", end)
    shown = renderer.tokenizer.decode(renderer.extend(ids[:-1] if case.get("cut") else ids, case["new"]))
    assert shown == case["appended"]


def found_out(case: Case) -> None:
    """Compares what is known of a template before a run."""
    tokenizer = tokenizer_in(case)
    parser = parser_for(FormatSettings(use="auto"), tokenizer, [ACT])
    assert parser.name == case.get("format", parser.name)
    if "refused" in case:
        with pytest.raises(RenderError) as refused:
            opened(tokenizer, case)
        assert case["refused"] in str(refused.value)
        assert refused.value.remedy
        return
    renderer = opened(tokenizer, case)
    if "notes" in case:
        assert len(renderer.notes) == len(case["notes"]), renderer.notes
        assert all(said in note for said, note in zip(case["notes"], renderer.notes, strict=True)), renderer.notes
    # The tools are described in the prompt, wherever.
    assert "Act." in renderer.tokenizer.decode(renderer.start([{"role": "user", "content": "Go."}]))
    assert (not renderer._in_template) == case.get("system", not renderer._in_template)


def opened(tokenizer: HFTokenizer, case: Case) -> Renderer:
    renderer = Renderer(tokenizer, parser_for(FormatSettings(use="auto"), tokenizer, [ACT]), [ACT])
    check(renderer)
    renderer.start([{"role": "user", "content": "Go."}])
    return renderer


def tokenizer_in(case: Case) -> HFTokenizer:
    if "family" in case:
        return tokenizer_of(case["family"])
    text = case["template"] if "template" in case else (trl_folder() / f"{case['file']}.jinja").read_text()
    return small(text, case["eos"], case["name"])
