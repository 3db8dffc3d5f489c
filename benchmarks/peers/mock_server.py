"""A model server that answers at once, or after a fixed time: what is left is the client's own cost.

Speaks the parts of vLLM's API that agentrl and its peers use, and chat completions. The reply depends on the number of
turns so far: a thought and a tool call, and in the last turn an answer. Written on a bare asyncio protocol with replies
encoded beforehand, so that the server takes as little as possible of the machine that it shares with the client.

    python -m benchmarks.peers.mock_server --tokenizer FOLDER --turns 5 --latency 0.05

prints its port and runs until its standard input closes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from benchmarks.peers.lookup import LOGPROB, call, final, thought

MODEL = "mock"
CONTEXT = 1 << 20
OPENING_ENDS = 2
"""Messages that open a conversation (system and user): each ends with a turn-end token, and so does every later one."""


class _Tokens(msgspec.Struct):
    token_ids: list[int]


class _Chat(msgspec.Struct):
    messages: list[dict[str, Any]]


class Model:
    """The replies of one script, as bytes that are ready to be sent.

    Args:
        turns: the last of them is the answer.
    """

    def __init__(self, tokenizer: Tokenizer, turns: int) -> None:
        self.tokenizer, self.turns = tokenizer, turns
        self.turn_end: int = tokenizer.token_to_id("<|im_end|>")
        self._tokens = [_response(self._token_reply(turn)) for turn in range(turns)]
        self._chats = [_response(self._chat_reply(turn)) for turn in range(turns)]
        self._read_tokens = msgspec.json.Decoder(_Tokens).decode
        self._read_chat = msgspec.json.Decoder(_Chat).decode
        self.routes: dict[str, tuple[Callable[[bytes], bytes], bool]] = {  # path: (reply, whether it takes a while)
            "/inference/v1/generate": (self._generate, True),
            "/v1/chat/completions": (self._chat, True),
            "/v1/models": (lambda body: _response({"data": [{"id": MODEL, "max_model_len": CONTEXT}]}), False),
            "/health": (lambda body: _response({}), False),
            "/tokenize": (self._tokenize, False),
            "/detokenize": (self._detokenize, False),
            "/v1/completions": (self._one_token, False),
        }

    def _generate(self, body: bytes) -> bytes:
        ids = self._read_tokens(body).token_ids
        # Since the opening, a turn has added two messages: the reply and the observation.
        turn = (ids.count(self.turn_end) - OPENING_ENDS) // 2
        return self._tokens[min(max(turn, 0), self.turns - 1)]

    def _chat(self, body: bytes) -> bytes:
        turn = sum(message["role"] == "assistant" for message in self._read_chat(body).messages)
        return self._chats[min(turn, self.turns - 1)]

    def _tokenize(self, body: bytes) -> bytes:
        ids = self.tokenizer.encode(json.loads(body)["prompt"], add_special_tokens=False).ids
        return _response({"tokens": ids})

    def _detokenize(self, body: bytes) -> bytes:
        return _response({"prompt": self.tokenizer.decode(json.loads(body)["tokens"], skip_special_tokens=False)})

    def _one_token(self, body: bytes) -> bytes:
        """Only asked by a client that looks whether the server fits."""
        return _response({"choices": [{"index": 0, "token_ids": [0], "logprobs": {"token_logprobs": [0.0]}}]})

    def _token_reply(self, turn: int) -> dict[str, Any]:
        last = turn == self.turns - 1
        written = json.dumps(call(turn))
        text = final() if last else f"{thought(turn)}\n<tool_call>\n{written}\n</tool_call>"
        ids = [*self.tokenizer.encode(text, add_special_tokens=False).ids, self.turn_end]
        content = [{"token": f"token_id:{id}", "token_id": id, "logprob": LOGPROB, "top_logprobs": []} for id in ids]
        choice = {"index": 0, "token_ids": ids, "logprobs": {"content": content}, "finish_reason": "stop"}
        return {"request_id": "r", "choices": [choice]}

    def _chat_reply(self, turn: int) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": final()}
        if turn < self.turns - 1:
            wanted = call(turn)
            function = {"name": wanted["name"], "arguments": json.dumps(wanted["arguments"])}
            message["content"] = thought(turn)
            message["tool_calls"] = [{"id": f"call_{turn}", "type": "function", "function": function}]
        finish = "tool_calls" if "tool_calls" in message else "stop"
        return {
            "id": "c",
            "object": "chat.completion",
            "created": 0,
            "model": MODEL,
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": {"prompt_tokens": 300, "completion_tokens": 60, "total_tokens": 360},
        }


class Connection(asyncio.Protocol):
    """One keep-alive connection: requests one after another."""

    def __init__(self, model: Model, latency_s: float) -> None:
        self.model, self.latency_s = model, latency_s
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Answers every request that is whole."""
        self.buffer += data
        while (head_end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:head_end]
            end = head_end + 4 + _content_length(head)
            if len(self.buffer) < end:
                return
            body, self.buffer = self.buffer[head_end + 4 : end], self.buffer[end:]
            self._answer(head.split(b" ", 2)[1].decode(), body)

    def _answer(self, path: str, body: bytes) -> None:
        reply, slow = self.model.routes.get(path, (None, False))
        data = _response({"error": f"no {path}"}, "404 Not Found") if reply is None else reply(body)
        if slow and self.latency_s:
            asyncio.get_running_loop().call_later(self.latency_s, self._write, data)
        else:
            self._write(data)

    def _write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)


async def serve(tokenizer: Path, turns: int, latency_s: float) -> None:
    """Prints the port; ends when standard input does."""
    model = Model(Tokenizer.from_file(str(tokenizer / "tokenizer.json")), turns)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(model, latency_s), "127.0.0.1", 0, backlog=16384)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def _response(reply: Any, status: str = "200 OK") -> bytes:
    body = json.dumps(reply).encode()
    return f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _content_length(head: bytes) -> int:
    at = head.lower().find(b"content-length:")
    return int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--latency", type=float, default=0.0)
    args = parser.parse_args()
    asyncio.run(serve(args.tokenizer, args.turns, args.latency))


if __name__ == "__main__":
    main()
