"""Chat templates of thirty and more families, each with a small tokenizer that has its control tokens.

The texts that trl carries (copies of the models' own) are read from its folder; the others are written down here, from
their published behaviour and no longer than what matters.
"""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path

from agentrl.chat.template import with_arguments
from agentrl.chat.tokenizer import HFTokenizer

# Family: what the template writes calls as, and the token that ends a reply.
IN_TRL: dict[str, tuple[str, str]] = {
    "qwen2_5": ("hermes", "<|im_end|>"),
    "qwen3": ("hermes", "<|im_end|>"),
    "qwen3_instruct_2507": ("hermes", "<|im_end|>"),
    "qwen3_vl": ("hermes", "<|im_end|>"),
    "qwen3_5_think": ("xml", "<|im_end|>"),
    "qwen3_5_nothink": ("xml", "<|im_end|>"),
    "qwen3_6": ("xml", "<|im_end|>"),
    "qwen3_8": ("xml", "<|im_end|>"),
    "nemotron_3_nano": ("xml", "<|im_end|>"),
    "nemotron_3_super": ("xml", "<|im_end|>"),
    "nemotron_3_ultra": ("xml", "<|im_end|>"),
    "nemotron_3_5_lightning": ("xml", "<|im_end|>"),
    "glm4moe": ("glm-4.5", "<|endoftext|>"),
    "gptoss": ("harmony", "<|return|>"),
    "llama3": ("hermes", "<|eot_id|>"),
    "llama3_1": ("llama3", "<|eot_id|>"),
    "llama3_2": ("llama3", "<|eot_id|>"),
    "lfm2": ("lfm2", "<|im_end|>"),
    "lfm2_v2": ("lfm2", "<|im_end|>"),
    "lfm2_2_5": ("lfm2", "<|im_end|>"),
    "gemma": ("hermes", "<eos>"),
    "gemma3": ("hermes", "<eos>"),
    "gemma4_v5": ("gemma4", "<eos>"),
    "muse_glimmer": ("atem", "<|eot|>"),
    "phi3": ("hermes", "<|endoftext|>"),
    "phi3_5": ("hermes", "<|endoftext|>"),
    "cohere": ("hermes", "<|END_OF_TURN_TOKEN|>"),
    "cohere2": ("hermes", "<|END_OF_TURN_TOKEN|>"),
}
REFUSED = {"deepseekv3": "<｜end▁of▁sentence｜>", "deepseek_r1_distill": "<｜end▁of▁sentence｜>"}
"""In trl's folder, too: those whose own template cannot be continued."""

# Ids of nine characters, results in one line of JSON, tools before the last message of the user; turns alternate, and
# calls and results are none.
_MISTRAL = """{{- bos_token }}
{%- if messages[0].role == 'system' %}{%- set system = messages[0].content %}{%- set messages = messages[1:] %}
{%- endif %}
{%- set ns = namespace(turns=0) %}
{%- for m in messages if m.role != 'tool' and not m.tool_calls %}
    {%- if (m.role == 'user') != (ns.turns % 2 == 0) %}
        {{- raise_exception('conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- set ns.turns = ns.turns + 1 %}
{%- endfor %}
{%- set asked = messages | selectattr('role', 'equalto', 'user') | list %}
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {%- if tools and m == asked[-1] %}{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}
        {{- '[INST]' }}{%- if loop.first and system is defined %}{{- system + '\\n\\n' }}{%- endif %}
        {{- m.content + '[/INST]' }}
    {%- elif m.tool_calls %}CALLS{{- eos_token }}
    {%- elif m.role == 'assistant' %}{{- m.content + eos_token }}
    {%- elif m.role == 'tool' %}
        {%- if m.tool_call_id | length != 9 %}
            {{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}
        {%- endif %}
        {{- '[TOOL_RESULTS]' + {'content': m.content, 'call_id': m.tool_call_id} | tojson + '[/TOOL_RESULTS]' }}
    {%- else %}{{- raise_exception('Only user, assistant and tool roles are supported') }}{%- endif %}
{%- endfor %}"""
_V3_CALLS = """{{- '[TOOL_CALLS][' }}{%- for c in m.tool_calls %}
    {{- {'name': c.function.name, 'arguments': c.function.arguments, 'id': c.id} | tojson }}
    {%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}{{- ']' }}"""
_V11_CALLS = """{%- for c in m.tool_calls %}
    {{- '[TOOL_CALLS]' + c.function.name + '[ARGS]' + c.function.arguments | tojson }}{%- endfor %}"""

_KIMI = """{%- if tools %}{{- '<|im_system|>tool_declare<|im_middle|>' + tools | tojson + '<|im_end|>' }}{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'user' %}{{- '<|im_user|>user<|im_middle|>' }}
    {%- elif m.role == 'assistant' %}{{- '<|im_assistant|>assistant<|im_middle|>' }}
    {%- else %}{{- '<|im_system|>' + m.role + '<|im_middle|>' }}{%- endif %}
    {%- if m.role == 'tool' %}{{- '## Return of ' + m.tool_call_id + '\\n' }}{%- endif %}
    {{- m.content }}
    {%- if m.tool_calls %}{{- '<|tool_calls_section_begin|>' }}{%- for c in m.tool_calls %}
        {{- '<|tool_call_begin|>functions.' + c.function.name + ':0<|tool_call_argument_begin|>' }}
        {{- c.function.arguments | tojson + '<|tool_call_end|>' }}{%- endfor %}
        {{- '<|tool_calls_section_end|>' }}
    {%- endif %}
    {{- '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_assistant|>assistant<|im_middle|>' }}{%- endif %}"""

# The tools stand in the system message; calls are written by the model only.
_PHI4 = """{%- for m in messages %}
    {%- if m.role == 'system' and tools %}
        {{- '<|system|>' + m.content + '<|tool|>' + tools | tojson + '<|/tool|><|end|>' }}
    {%- else %}{{- '<|' + m.role + '|>' + m.content }}
        {%- if m.tool_calls %}{{- '<|tool_call|>[' }}{%- for c in m.tool_calls %}{{- c.function | tojson }}{%- endfor %}
            {{- ']<|/tool_call|>' }}{%- endif %}
        {{- '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"""

_GRANITE = """{%- if tools %}
    {{- '<|start_of_role|>available_tools<|end_of_role|>' + tools | tojson + '<|end_of_text|>\\n' }}
{%- endif %}
{%- for m in messages %}
    {{- '<|start_of_role|>' + ('tool_response' if m.role == 'tool' else m.role) + '<|end_of_role|>' + m.content }}
    {%- if m.tool_calls %}{{- '<|tool_call|>[' }}{%- for c in m.tool_calls %}{{- c.function | tojson }}{%- endfor %}
        {{- ']' }}{%- endif %}
    {{- '<|end_of_text|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_of_role|>assistant<|end_of_role|>' }}{%- endif %}"""

_MINIMAX = """{{- ']~!b[]~b]system\\nYou are helpful.' }}
{%- if tools %}{{- '\\n<tools>' + tools | tojson + '</tools>\\n<minimax:tool_call>...' }}{%- endif %}{{- '[e~[\\n' }}
{%- for m in messages %}
    {%- if m.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- ']~b]tool' }}{%- endif %}
        {{- '\\n<response>' + m.content + '</response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '[e~[\\n' }}{%- endif %}
    {%- else %}
        {{- ']~b]' + ('ai' if m.role == 'assistant' else m.role) + '\\n' + m.content.split('</think>')[-1] }}
        {%- if m.tool_calls %}{{- '\\n<minimax:tool_call>\\n' }}{%- for c in m.tool_calls %}
            {{- '<invoke name="' + c.function.name + '">\\n' }}
            {%- for k, v in c.function.arguments.items() %}
                {{- '<parameter name="' + k + '">' + v + '</parameter>\\n' }}{%- endfor %}
            {{- '</invoke>\\n' }}{%- endfor %}{{- '</minimax:tool_call>' }}
        {%- endif %}
        {{- '[e~[\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- ']~b]ai\\n<think>\\n' }}{%- endif %}"""

# Calls without the marks that stand around what is said; the generation prompt is always there.
_COMMAND_R7B = """{{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Act by <|START_ACTION|>, answer by <|START_RESPONSE|>.' }}
{%- if tools %}{{- tools | tojson }}{%- endif %}{{- '<|END_OF_TURN_TOKEN|>' }}
{%- for m in messages %}{{- '<|START_OF_TURN_TOKEN|>' }}
    {%- if m.role == 'assistant' and m.tool_calls %}
        {{- '<|CHATBOT_TOKEN|><|START_THINKING|>' ~ m.reasoning_content ~ '<|END_THINKING|><|START_ACTION|>[' }}
        {%- for c in m.tool_calls %}
            {{- {'tool_call_id': '0', 'tool_name': c.function.name, 'parameters': c.function.arguments} | tojson }}
            {%- if not loop.last %}{{- ',' }}{%- endif %}{%- endfor %}{{- ']<|END_ACTION|>' }}
    {%- elif m.role == 'assistant' %}{{- '<|CHATBOT_TOKEN|><|START_RESPONSE|>' + m.content + '<|END_RESPONSE|>' }}
    {%- elif m.role == 'tool' %}
        {{- '<|SYSTEM_TOKEN|><|START_TOOL_RESULT|>[' + {'0': m.content} | tojson + ']<|END_TOOL_RESULT|>' }}
    {%- else %}{{- '<|' + m.role | upper + '_TOKEN|>' + m.content }}{%- endif %}
    {{- '<|END_OF_TURN_TOKEN|>' }}
{%- endfor %}
{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_THINKING|><|END_THINKING|>' }}"""

_SMOLLM2 = """{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\nYou are SmolLM.<|im_end|>\n' }}{%- endif %}
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""

# Tools are read from arguments of its own; results come from the user; `/no_think` writes an empty thought.
_SMOLLM3 = """{%- set system = messages[0].content if messages[0].role == 'system' else '' %}
{%- set empty = '<think>\n\n</think>\n' if '/no_think' in system or enable_thinking is false else '' %}
{{- '<|im_start|>system\nReasoning Mode: ' + ('/no_think' if empty else '/think') + '\n\n' }}
{{- system.replace('/no_think', '').replace('/think', '').rstrip() }}
{%- if xml_tools %}{{- xml_tools | tojson }}{%- endif %}{{- '<|im_end|>\n' }}
{%- for m in messages %}
    {%- if m.role in ('user', 'tool') %}{{- '<|im_start|>user\n' + m.content + '<|im_end|>\n' }}
    {%- elif m.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' + empty + m.content.lstrip('\n') + '<|im_end|>\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' + empty }}{%- endif %}"""

_SEED = """{%- if tools %}{{- '<seed:bos>system\n' + tools | tojson + '\n<seed:tool_call>...<seed:eos>' }}{%- endif %}
{%- for m in messages %}{{- '<seed:bos>' + m.role + '\n' + m.content }}
    {%- for c in m.tool_calls %}{{- '\n<seed:tool_call>\n<function=' + c.function.name + '>\n' }}
        {%- for k, v in c.function.arguments.items() %}
            {{- '<parameter=' + k + '>' + v + '</parameter>\n' }}{%- endfor %}
        {{- '</function>\n</seed:tool_call>' }}
    {%- endfor %}
    {{- '<seed:eos>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<seed:bos>assistant\n' }}{%- endif %}"""

_OLMO3 = """{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\nYou are Olmo.' }}
    {%- if tools %}{{- ' <functions>' + tools | tojson + '</functions>' }}{%- endif %}{{- '<|im_end|>\n' }}{%- endif %}
{%- for m in messages %}
    {{- '<|im_start|>' + ('environment' if m.role == 'tool' else m.role) + '\n' + m.content }}
    {%- if m.role == 'system' and tools %}{{- ' <functions>' + tools | tojson + '</functions>' }}{%- endif %}
    {%- if m.tool_calls %}{{- '<function_calls>' }}{%- for c in m.tool_calls %}
        {{- c.function.name + '(' }}{%- for k, v in c.function.arguments.items() %}{{- k + '=' + v | tojson }}
            {%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}{{- ')' }}
        {%- if not loop.last %}{{- '\n' }}{%- endif %}{%- endfor %}{{- '</function_calls>' }}{%- endif %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""

# The generation prompt opens or closes the thought; a result is a turn of its own.
_LAGUNA = """{{- '〈|EOS|〉<system>' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content.rstrip() }}{%- endif %}
{%- if tools %}{{- '### Tools\n<available_tools>\n' }}{%- for t in tools %}{{- t | tojson + '\n' }}{%- endfor %}
    {{- '</available_tools>' }}{%- endif %}{{- '</system>\n' }}
{%- set think = enable_thinking | default(false) %}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {{- '<assistant>' + ('<think>' + (m.reasoning_content or '') if think else '') + '</think>' + m.content }}
        {%- for c in m.tool_calls or [] %}{{- '<tool_call>' + c.function.name }}
            {%- for k, v in c.function.arguments.items() %}
                {{- '<arg_key>' + k + '</arg_key><arg_value>' + (v if v is string else v | tojson) + '</arg_value>' }}
            {%- endfor %}{{- '</tool_call>' }}{%- endfor %}{{- '</assistant>\n' }}
    {%- elif m.role == 'tool' %}{{- '<tool_response>' + m.content + '</tool_response>\n' }}
    {%- elif not loop.first or m.role != 'system' %}{{- '<' + m.role + '>' + m.content + '</' + m.role + '>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<assistant>' + ('<think>' if think else '</think>') }}{%- endif %}"""

# Arguments as text; a reply ends when the user speaks, and the prompt behind results opens a second one.
_APERTUS = """{{- bos_token + '<|developer_start|>Deliberation: disabled\n' }}
{%- if tools %}{{- 'Tool Capabilities:\n' }}{%- for t in tools %}{{- 'type ' + t.name + ' = () => any;' }}{%- endfor %}
{%- endif %}{{- '<|developer_end|>' }}{%- set ns = namespace(replying=false, results=false) %}
{%- for m in messages %}
    {%- if ns.results and m.role != 'tool' %}{{- ']' }}{%- set ns.results = false %}{%- endif %}
    {%- if m.role == 'assistant' %}
        {%- if not ns.replying %}{{- '<|assistant_start|>' }}{%- set ns.replying = true %}{%- endif %}{{- m.content }}
        {%- if m.tool_calls %}{{- '<|tools_prefix|>[' }}{%- for c in m.tool_calls %}
            {{- '{"' + c.function.name + '": ' + c.function.arguments + '}' }}{%- endfor %}{{- ']<|tools_suffix|>' }}
        {%- endif %}
    {%- elif m.role == 'tool' %}{{- (', ' if ns.results else '[') + m.content }}{%- set ns.results = true %}
    {%- else %}
        {%- if ns.replying %}{{- '<|assistant_end|>' }}{%- set ns.replying = false %}{%- endif %}
        {{- '<|' + m.role + '_start|>' + m.content + '<|' + m.role + '_end|>' }}
    {%- endif %}
{%- endfor %}
{%- if ns.results %}{{- ']' }}{%- endif %}{%- if add_generation_prompt %}{{- '<|assistant_start|>' }}{%- endif %}"""
APERTUS_END = "<|assistant_end|>"

# No tools, no other roles, turns that alternate.
_MIXTRAL = """{{- bos_token }}
{%- for m in messages %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('roles must alternate') }}{%- endif %}
    {{- ' [INST] ' + m.content + ' [/INST]' if m.role == 'user' else ' ' + m.content + eos_token }}
{%- endfor %}"""

_ERNIE = """{{- '<|begin_of_sentence|>' }}
{%- for m in messages %}
    {%- if m.role == 'user' %}{{- 'User: ' + m.content + '\n' }}
    {%- elif m.role == 'assistant' %}{{- 'Assistant: ' + m.content + '<|end_of_sentence|>' }}
    {%- elif m.role == 'system' %}{{- m.content + '\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- 'Assistant: ' }}{%- endif %}"""

_HUNYUAN = """{%- for m in messages %}
    {%- if m.role == 'user' %}{{- '<｜hy_User｜>' + m.content }}
    {%- elif m.role == 'assistant' %}{{- '<｜hy_Assistant｜>' + m.content + '<｜hy_place▁holder▁no▁2｜>' }}
    {%- elif m.role == 'system' %}{{- m.content + '<｜hy_place▁holder▁no▁3｜>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<｜hy_Assistant｜>' }}{%- endif %}"""

# Results come from the user, in the order of the calls; a message without tools ends in an empty thought.
_DEEPSEEK_V41 = """{{- '<｜begin▁of▁sentence｜><｜System｜>' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content }}{%- endif %}
{%- if tools %}{{- '\n\n## Tools\n\n<｜DSML｜ calls>\n' }}
    {%- for t in tools %}{{- t.function | tojson + '\n' }}{%- endfor %}
{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}{{- '<｜Assistant｜></think>' + m.content }}
        {%- if m.tool_calls %}{{- '\n\n<｜DSML｜ calls>\n' }}{%- for c in m.tool_calls %}
            {{- '<｜DSML｜ invoke name="' + c.function.name + '">\n' }}{%- for k, v in c.function.arguments.items() %}
                {{- '<｜DSML｜ parameter name="' + k + '" string="' + ('true' if v is string else 'false') + '">' }}
                {{- (v if v is string else v | tojson) + '</｜DSML｜ parameter>\n' }}{%- endfor %}
            {{- '</｜DSML｜ invoke>\n' }}{%- endfor %}{{- '</｜DSML｜ calls>' }}{%- endif %}
        {{- '<｜end▁of▁sentence｜>' }}
    {%- elif m.role == 'tool' %}{{- '<｜User｜><tool_result>' + m.content + '</tool_result>' }}
    {%- elif m.role == 'user' %}{{- '<｜User｜>' + m.content }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<｜Assistant｜></think>' }}{%- endif %}"""

_GLM53 = """{{- '[gMASK]<sop><|system|>Reasoning Effort: Max' }}
{%- if tools %}{{- '<|system|>\n# Tools\n<tools>\n' }}
    {%- for t in tools %}{{- t.function | tojson + '\n' }}{%- endfor %}
    {{- '</tools>\n<tool_call>{function-name}<arg_key>{arg-key}</arg_key>' }}{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}{{- '<|assistant|><think></think>' + m.content }}
        {%- for c in m.tool_calls or [] %}{{- '<tool_call>' + c.function.name }}
            {%- for k, v in c.function.arguments.items() %}
                {{- '<arg_key>' + k + '</arg_key><arg_value>' + (v if v is string else v | tojson) + '</arg_value>' }}
            {%- endfor %}{{- '</tool_call>' }}{%- endfor %}
    {%- elif m.role == 'tool' %}
        {%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|observation|>' }}{%- endif %}
        {{- '<tool_response>' + m.content + '</tool_response>' }}
    {%- else %}{{- '<|' + m.role + '|>' + m.content }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|><think>' }}{%- endif %}"""

# The model opens its own message; the end of sampling is a token of its own.
_INKLING = """{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {%- if m.content %}{{- '<|message_model|><|content_text|>' + m.content + '<|end_message|>' }}{%- endif %}
        {%- for c in m.tool_calls or [] %}
            {{- '<|message_model|>' + c.function.name + '<|content_invoke_tool_json|>' }}
            {{- {'name': c.function.name, 'args': c.function.arguments} | tojson + '<|end_message|>' }}{%- endfor %}
        {{- '<|content_model_end_sampling|>' }}
    {%- else %}{{- '<|message_' + m.role + '|><|content_text|>' + m.content + '<|end_message|>' }}{%- endif %}
    {%- if loop.first and tools %}
        {{- '<|message_system|><|content_text|>' + tools | tojson + '<|end_message|>' }}{%- endif %}
{%- endfor %}"""

WRITTEN: dict[str, tuple[str, str, str]] = {
    "deepseek-v4.1": ("deepseek-v4.1", "<｜end▁of▁sentence｜>", _DEEPSEEK_V41),
    "glm-5.3": ("glm-4.5", "<|endoftext|>", _GLM53),
    "inkling": ("inkling", "<|content_model_end_sampling|>", _INKLING),
    "mistral-v3": ("mistral-v3", "</s>", _MISTRAL.replace("CALLS{{", _V3_CALLS + "{{")),
    "mistral-v11": ("mistral", "</s>", _MISTRAL.replace("CALLS{{", _V11_CALLS + "{{")),
    "kimi-k2": ("kimi-k2", "<|im_end|>", _KIMI),
    "phi-4": ("phi-4", "<|end|>", _PHI4),
    "granite-3": ("granite", "<|end_of_text|>", _GRANITE),
    "minimax-m2": ("minimax", "[e~[", _MINIMAX),
    "smollm2": ("hermes", "<|im_end|>", _SMOLLM2),
    "smollm3": ("hermes", "<|im_end|>", _SMOLLM3),
    "seed-oss": ("seed-oss", "<seed:eos>", _SEED),
    "olmo3": ("olmo3", "<|im_end|>", _OLMO3),
    "laguna": ("glm-4.5", "</assistant>", _LAGUNA),
    "mixtral": ("hermes", "</s>", _MIXTRAL),
    "ernie-4.5": ("hermes", "<|end_of_sentence|>", _ERNIE),
    "hunyuan": ("hermes", "<｜hy_place▁holder▁no▁2｜>", _HUNYUAN),
    "command-r7b": ("cohere", "<|END_OF_TURN_TOKEN|>", _COMMAND_R7B),
}

FAMILIES = {**{name: format for name, (format, _) in IN_TRL.items()}, **{n: f for n, (f, _, _) in WRITTEN.items()}}
"""Families whose own template works, and the format that is recognised in it."""

_CONTROLS = re.compile(
    r"<\|[^|<>\n]{1,40}\|>|<[|｜][^<>\n]{1,40}[|｜]>|</?s>|\[/?(?:INST|AVAILABLE_TOOLS|TOOL_RESULTS|TOOL_CALLS|ARGS)\]"
    r"|</?think>|</?assistant>|〈\|EOS\|〉|</?tool_call>|</?tool_response>"
    r"|<(?:start|end)_of_turn>|\[gMASK\]|<sop>|<bos>|<eos>|\[e~\[|\]~b\]"
    r"|<\|(?:tool_response|tool_call|tool|turn|channel|think)>|<(?:tool_response|tool_call|tool|turn|channel)\|>"
)
_SOFT = {"<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"}


def trl_folder() -> Path:
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "chat_templates"


def template_of(family: str) -> str:
    if family == "apertus":
        return _APERTUS
    return WRITTEN[family][2] if family in WRITTEN else (trl_folder() / f"{family}.jinja").read_text()


def tokenizer_of(family: str) -> HFTokenizer:
    """A small tokenizer with the family's template and control tokens."""
    known = {**{n: e for n, (_, e) in IN_TRL.items()}, **{n: e for n, (_, e, _) in WRITTEN.items()}, **REFUSED}
    return small(template_of(family), known[family], family)


@cache
def small(template: str, eos: str, name: str) -> HFTokenizer:
    """A small tokenizer that has the control tokens of a template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    controls = {eos, *_CONTROLS.findall(template)} | ({"<|call|>", "<|return|>"} if eos == "<|return|>" else set())
    controls |= {"<|observation|>", "<|user|>"} if "[gMASK]" in controls else set()
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    texts = ["The quick brown fox jumps over the lazy dog.\n\nroom 7: two at once. Looking further."] * 4
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False))
    bpe.add_special_tokens(sorted(controls - _SOFT))
    bpe.add_tokens([AddedToken(text, special=False, normalized=False) for text in sorted(controls & _SOFT)])
    bos = "<s>" if eos == "</s>" else eos
    hf = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=bos, eos_token=eos, name_or_path=name)
    hf.chat_template = template
    return HFTokenizer(hf)


def gemma4_thinking() -> HFTokenizer:
    """Gemma 4's, whose prompts open a thought behind results, and nowhere else."""
    return small(with_arguments(template_of("gemma4_v5"), {"enable_thinking": True}), "<eos>", "gemma4-thinking")
