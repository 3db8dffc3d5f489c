"""An agent with its own prompt, tool and loop. Any client of the API of OpenAI or Anthropic works as well."""

import json
import os
import sys
import urllib.request
from typing import Any

PRICES = dict(each.split("=") for each in os.environ["PRICES"].split())
PROMPT = "Look up the prices. Then say the name of the cheaper article alone."
TOOL = {
    "name": "price",
    "description": "The price of an article.",
    "parameters": {"type": "object", "properties": {"article": {"type": "string"}}, "required": ["article"]},
}


def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the model's reply."""
    body = {"model": "any", "messages": messages, "tools": [{"type": "function", "function": TOOL}]}
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as reply:
        message: dict[str, Any] = json.load(reply)["choices"][0]["message"]
        return message


messages: list[dict[str, Any]] = [{"role": "system", "content": PROMPT}, {"role": "user", "content": sys.stdin.read()}]
while (said := ask(messages)).get("tool_calls"):
    messages.append(said)
    for call in said["tool_calls"]:
        article = str(json.loads(call["function"]["arguments"]).get("article"))
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": PRICES.get(article, "not found")})
print(said["content"] or "")
