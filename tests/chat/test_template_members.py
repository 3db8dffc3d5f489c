"""The compiled chat template: it renders what transformers renders."""

from __future__ import annotations

import pickle
from typing import Any, ClassVar

import jinja2
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from agentrl.chat.tokenizer import _compiled, _Template

MESSAGES = [
    {"role": "user", "content": "a", "keys": "mine", "items": [1], "parts": [{"type": "text", "text": "b"}]},
    {"role": "tool", "name": "n", "content": None},
]


@pytest.mark.parametrize(
    "text",
    [
        "{% for m in messages %}{{ m.role }} {{ m['content'] }} {{ m.name }};{% endfor %}",
        "{% for m in messages %}{{ m.keys() | list }} {{ m.items() | list | length }}{% endfor %}",
        "{% for m in messages %}{{ m.get('name', 'none') }}{{ m.absent is defined }}{% endfor %}",
        "{% for p in messages[0].parts %}{{ p.type }}{{ p.text }}{{ p.text.upper() }}{% endfor %}",
        "{% generation %}{{ messages[0].role }}{% endgeneration %}{% for m in messages %}{% continue %}{% endfor %}",
        "{{ tools[0].function.name }} {{ tools | tojson }} {{ bos_token }}",
        "{% set s = namespace(n=0) %}{% set s.n = 2 %}{{ s.n }}{{ loop is defined }}",
    ],
)
def test_it_renders_as_transformers_does(text: str) -> None:
    given: dict[str, Any] = {"tools": [{"function": {"name": "f", "parameters": {}}}], "bos_token": "<s>"}
    ((theirs,), _) = render_jinja_template([MESSAGES], chat_template=text, add_generation_prompt=True, **given)
    assert _compiled(text).render(messages=MESSAGES, documents=None, add_generation_prompt=True, **given) == theirs


@pytest.mark.parametrize(
    "text", ["{{ messages[0].__class__.mro() }}", "{{ messages[0].pop('role') }}", "{{ messages.append(1) }}"]
)
def test_it_keeps_the_sandbox(text: str) -> None:
    compiled = _compiled(text)
    with pytest.raises(jinja2.exceptions.SecurityError):
        compiled.render(messages=[dict(MESSAGES[0])])


class Chats:
    """A tokenizer with a template."""

    special_tokens_map: ClassVar[dict[str, str]] = {"bos_token": "<s>"}

    def get_chat_template(self, name: str | None, tools: Any) -> str:
        return "{{ bos_token }}{{ messages[0].role }}"


def test_a_used_template_goes_to_a_worker() -> None:
    template = _Template(Chats())
    said = template(MESSAGES, tools=None, add_generation_prompt=True)
    assert pickle.loads(pickle.dumps(template))(MESSAGES, tools=None, add_generation_prompt=True) == said == "<s>user"


def test_the_template_may_stop_with_a_message() -> None:
    with pytest.raises(jinja2.exceptions.TemplateError, match="no system"):
        _compiled("{{ raise_exception('no system') }}").render(messages=MESSAGES)
