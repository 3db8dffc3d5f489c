"""Bodies of HTTP replies: what is packed costs no more than what may come of it."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from agentrl.types.http.body import Body, BodyRefused, Bounds, BrokenOff, TooLarge, whole

MIB = 1 << 20
USUAL = Bounds()


async def parts(body: bytes, size: int = 1 << 16) -> AsyncIterator[bytes]:
    for at in range(0, len(body), size):
        yield body[at : at + size]


async def beginning(sent: AsyncIterator[bytes], encoding: str, most: int) -> tuple[bytes, bool]:
    """What is given of a body that may have `most` bytes, and whether there is more."""
    body, found = Body(encoding, Bounds(most=most)), bytearray()
    try:
        async for part in sent:
            for piece in body.take(part):
                found += piece
            if body.over:
                break
        body.end()
    except (TooLarge, BrokenOff):
        return bytes(found), True
    return bytes(found), False


def raw(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


PACKERS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("", bytes), ("identity", bytes), ("gzip", gzip.compress), (" GZip ", gzip.compress), ("x-gzip", gzip.compress),
    ("deflate", zlib.compress), ("deflate", raw),
]  # fmt: skip


@pytest.mark.parametrize(("encoding", "pack"), PACKERS)
async def test_what_was_packed_is_unpacked(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    data = bytes(range(256)) * 5000
    for size in (1, 7, 1 << 16) if len(pack(data)) < 20_000 else (777, 1 << 20):
        assert await whole(parts(pack(data), size), encoding, USUAL) == data
    assert await beginning(parts(pack(data)), encoding, 3) == (data[:3], True)
    assert await beginning(parts(pack(data)), encoding, len(data)) == (data, False)
    assert await whole(parts(pack(b"")), encoding, USUAL) == b""


BOMBS = {
    "zeros": lambda: bytes(64 * MIB), "objects": lambda: b"[" + b"{}," * (5 << 20) + b"{}]",
    "numbers": lambda: b"[" + b"1," * (7 << 20) + b"1]", "a text": lambda: b'"' + b"x" * (15 << 20) + b'"',
    "deep": lambda: b"[" * (15 << 20),
}  # fmt: skip


def packed(make: Callable[[], bytes], bits: int = zlib.MAX_WBITS | 16) -> bytes:
    packer = zlib.compressobj(9, wbits=bits)
    return packer.compress(make()) + packer.flush()


@pytest.mark.parametrize("bomb", BOMBS)
async def test_a_bomb_costs_little(bomb: str) -> None:
    body = packed(BOMBS[bomb])
    assert len(body) < MIB
    tracemalloc.start()
    try:
        data = await whole(parts(body), "gzip", USUAL)
        msgspec.json.decode(data)
    except (BodyRefused, msgspec.DecodeError, RecursionError):
        pass
    finally:
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert most < 50 * MIB, most / MIB


async def test_every_part_is_small() -> None:
    sent = packed(lambda: bytes(64 * MIB))
    body = Body("gzip", None)
    sizes = [len(piece) async for part in parts(sent, MIB) for piece in body.take(part)]
    assert body.over
    assert sum(sizes) == 64 * MIB
    assert max(sizes) <= MIB // 4


async def test_what_unpacks_to_nothing_is_bounded_too() -> None:
    read = 0

    async def endless(part: bytes) -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += len(part)
            yield part

    nothing = b"\x00\x00\x00\xff\xff" * 20_000  # stored blocks of no bytes
    with pytest.raises(BodyRefused, match="more than 1 MiB"):
        await whole(endless(nothing), "deflate", Bounds(most=MIB))
    assert read < 2 * MIB
    _, more = await beginning(endless(nothing), "deflate", MIB)
    assert more
    with pytest.raises(BodyRefused, match="more than 1 MiB"):
        await whole(endless(bytes(1000)), "", Bounds(most=MIB))


async def test_what_follows_a_packed_body_is_left() -> None:
    assert await whole(parts(gzip.compress(b"{}") + bytes(MIB)), "gzip", USUAL) == b"{}"


@pytest.mark.parametrize(("encoding", "said"), [("br", "'br'"), ("gzip, gzip", "not asked for"), ("zstd" * 99, "zstd")])
async def test_what_nobody_asked_for_is_refused(encoding: str, said: str) -> None:
    with pytest.raises(BodyRefused, match=said) as error:
        await whole(parts(b"x"), encoding, USUAL)
    assert len(str(error.value)) < 200


async def test_damage_is_named() -> None:
    text = bytes(range(256)) * 9
    with pytest.raises(BodyRefused, match="breaks off"):
        await whole(parts(gzip.compress(text)[:-9]), "gzip", USUAL)
    assert await beginning(parts(gzip.compress(text)[:-9]), "gzip", 4000) == (text, True)
    with pytest.raises(BodyRefused, match="damaged"):
        await whole(parts(gzip.compress(text)[:-8] + bytes(8)), "gzip", USUAL)
    with pytest.raises(BodyRefused, match="damaged"):
        await whole(parts(b"no gzip"), "gzip", USUAL)


async def test_values_are_counted_as_they_come() -> None:
    text = b"[" + b"1," * 100 + b"1]"
    assert await whole(parts(gzip.compress(text)), "gzip", Bounds(values=101)) == text
    with pytest.raises(TooLarge, match="more than 100 values"):
        await whole(parts(gzip.compress(text)), "gzip", Bounds(values=100))
    assert await whole(parts(text), "", Bounds(values=100)) == text, "what it cost to send bounds it"
    assert await beginning(parts(b"".join([b"x" * 5, b"y" * 5]), 5), "", 7) == (b"xxxxxyy", True)
    with pytest.raises(TooLarge, match="more than 0.001 MB"):
        await whole(parts(bytes(1001)), "", Bounds(most=1000))


async def test_a_deflated_body_may_begin_with_nothing() -> None:
    body = Body("deflate", USUAL)
    assert [*body.take(b"")] == []
    assert b"".join(body.take(raw(b"tea"))) == b"tea"
