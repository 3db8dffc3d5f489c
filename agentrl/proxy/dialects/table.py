"""The supported dialects."""

from __future__ import annotations

from agentrl.proxy.dialects.anthropic import Messages
from agentrl.proxy.dialects.chat import ChatCompletions
from agentrl.proxy.dialects.dialect import Dialect
from agentrl.proxy.dialects.responses import Responses

DIALECTS: tuple[Dialect, ...] = (ChatCompletions(), Responses(), Messages())
