"""Chat templates of model families, written down from their published behaviour, and small tokenizers to run them."""

from __future__ import annotations

from agentrl.chat.tokenizer import HFTokenizer

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Tools in the system message, and results as user messages that hold a run of <tool_response>.
_QWEN_TOOLS = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content }}{%- else %}{{- DEFAULT }}{%- endif %}
    {{- "\\n\\n# Tools\\n\\nYou are provided with function signatures within <tools></tools> XML tags:\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\n\\nFor each call:\\n<tool_call>\\n" }}
    {{- "{\\"name\\": <function-name>, \\"arguments\\": <args>}\\n</tool_call><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- elif DEFAULT %}
    {{- '<|im_start|>system\\n' + DEFAULT + '<|im_end|>\\n' }}
{%- endif %}"""
_QWEN_RESULTS = """
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- message.content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

QWEN25 = (
    "{%- set DEFAULT = 'You are Qwen.' %}"
    + _QWEN_TOOLS
    + """
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first)
           or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"""
    + _QWEN_RESULTS
)

# Drops the thinking of replies before the last user message, and rewrites the white space around the rest.
QWEN3 = (
    "{%- set DEFAULT = '' %}"
    + _QWEN_TOOLS
    + """
{%- set ns = namespace(last_query_index=0) %}
{%- for message in messages %}{%- if message.role == "user" %}{%- set ns.last_query_index = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set reasoning = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning) %}
            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}"""
    + _QWEN_RESULTS
)

# Trims every content; quotes tool results as JSON.
LLAMA31 = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = '' %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nCutting Knowledge Date: December 2023\\n\\n' }}
{{- system_message }}{{- '<|eot_id|>' }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif message.role == 'tool' or message.role == 'ipython' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}
        {{- '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""

# No tool role, no system role, strict alternation, and a space before a reply that the prompt lacks.
MISTRAL = """{{- bos_token }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}{{- '[INST] ' + message['content'] + '[/INST]' }}
    {%- elif message['role'] == 'assistant' %}{{- ' ' + message['content'] | trim + eos_token }}
    {%- else %}{{- raise_exception('Only user and assistant roles are supported!') }}{%- endif %}
{%- endfor %}"""

GEMMA = """{{ bos_token }}{% for message in messages %}
{%- if message['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

# A base model's template: the turn ends with text.
ALPACA = (
    "{% for m in messages %}### {{ m.role }}:\n{{ m.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}### assistant:\n{% endif %}"
)

CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
HEADERS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"]
FAMILIES: dict[str, tuple[str, list[str], list[str], str]] = {
    # name: template, special tokens, tokens that are added but not special, eos
    "smollm2": (SMOLLM2, CHATML, [], "<|im_end|>"),
    "qwen2.5": (QWEN25, CHATML, ["<tool_call>", "</tool_call>"], "<|im_end|>"),
    "qwen3": (QWEN3, CHATML, ["<tool_call>", "</tool_call>", "<think>", "</think>"], "<|im_end|>"),
    "llama-3.1": (LLAMA31, HEADERS, [], "<|eot_id|>"),
    "mistral": (MISTRAL, ["<s>", "</s>", "[INST]", "[/INST]"], [], "</s>"),
    "gemma": (GEMMA, ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"], [], "<eos>"),
    "alpaca": (ALPACA, ["<s>", "</s>"], [], "</s>"),
}

_TEXTS = [
    "The quick brown fox jumps over the lazy dog.\n\nAnd then, room 7: nothing there.\n",
    '{"name": "search", "arguments": {"query": "capital of France"}}\n</tool_call>\n<tool_call>\n',
    "user\nassistant\nsystem\ntool\n\n<tool_response>\n</tool_response>",
    " Done. Two at once. Looking further. Six.",
] * 4


def tokenizer_of(family: str, *, pieces: bool = False) -> HFTokenizer:
    """A small trained tokenizer with the template of `family`.

    Args:
        pieces: SentencePiece-like (spaces as `▁`, one put before a text) instead of byte-level.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    template, special, added, eos = FAMILIES[family]
    if pieces:
        bpe = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
        bpe.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        bpe.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
        bytes_ = [f"<0x{value:02X}>" for value in range(256)]
        trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=["<unk>", *bytes_], show_progress=False)
        bpe.train_from_iterator(_TEXTS, trainer)
    else:
        bpe = Tokenizer(models.BPE())
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        bpe.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        bpe.train_from_iterator(
            _TEXTS, trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
        )
    bpe.add_special_tokens(special)
    bpe.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    hf = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=special[0], eos_token=eos, name_or_path=family)
    hf.chat_template = template
    return HFTokenizer(hf)
