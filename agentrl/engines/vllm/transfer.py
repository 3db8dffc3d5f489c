"""How new weights reach vLLM servers, between its `/start_weight_update` and `/finish_weight_update`."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agentrl.config.engine import EngineSettings
from agentrl.engines.replicas import Replica
from agentrl.registry.registry import Registry, any_class
from agentrl.types.errors import EngineError, needs

if TYPE_CHECKING:
    from torch import Tensor

Post = Callable[[Sequence[Replica], str, Any], Awaitable[list[Replica]]]
"""Posts a body to servers; returns those that agreed. `VLLMEngine` notes why the others did not."""


class Transfer(Protocol):
    """A backend of weight transfer.

    Its constructor takes its own settings, and `folder` (that of `engine.weights_dir`, or None) if it asks for it.

    Attributes:
        backend: its other side, as `--weight-transfer-config` of the servers names it.
    """

    backend: str

    async def prepare(self, weights: Mapping[str, Tensor]) -> None:
        """What can be done while the servers still sample. The weights must not change until `send` returns."""
        ...

    async def send(self, replicas: Sequence[Replica], post: Post) -> list[Replica]:
        """Sends all weights; returns the servers that have them."""
        ...

    async def close(self) -> None:
        """Frees everything."""
        ...


class FileTransfer:
    """Through a .safetensors file that both sides see; the servers need the plug-in in `tools/vllm`.

    Args:
        folder: a shared one, for servers on other machines; default: in this machine's shared memory.
    """

    backend = "file"

    def __init__(self, folder: Path | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="agentrl-weights-", dir=shared_parent(folder))) / "weights.safetensors"

    async def prepare(self, weights: Mapping[str, Tensor]) -> None:
        """Writes the file.

        Raises:
            EngineError: the folder is full or cannot be written.
        """
        try:
            await asyncio.to_thread(self._write, weights)
        except (OSError, RuntimeError) as error:
            raise EngineError(
                f"the weights cannot be written: {error}",
                place=str(self.path),
                remedy="engine.weights_dir names a folder that has the room",
            ) from error

    async def send(self, replicas: Sequence[Replica], post: Post) -> list[Replica]:
        """Has the servers read the file."""
        try:
            return await post(replicas, "/update_weights", {"update_info": {"path": str(self.path)}})
        finally:
            self.path.unlink(missing_ok=True)

    async def close(self) -> None:
        """Removes the folder."""
        shutil.rmtree(self.path.parent, ignore_errors=True)

    def _write(self, weights: Mapping[str, Tensor]) -> None:
        from safetensors.torch import save_file

        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in _unshared(weights).items()}
        save_file(plain, self.path)


class NcclTransfer:
    """By broadcast between GPUs, in vLLM's packed format: this process is rank 0, the servers' workers follow.

    Needs vLLM importable here, and CUDA on both sides. Written to vLLM 0.32's protocol; the tests, which have no two
    GPUs, do not run it.
    """

    backend = "nccl"

    def __init__(self) -> None:
        self._group: Any = None
        self._weights: Mapping[str, Tensor] = {}
        self._members: list[Replica] = []

    async def prepare(self, weights: Mapping[str, Tensor]) -> None:
        """Keeps the tensors for `send`."""
        self._weights = _unshared(weights)

    async def send(self, replicas: Sequence[Replica], post: Post) -> list[Replica]:
        """Broadcasts every tensor, while the servers receive. It takes all members: with one less, none gets it."""
        with needs("vllm"):
            from vllm.distributed.weight_transfer import packed_tensor
        if self._group is None:
            await self._open(replicas, post)
        if list(replicas) != self._members:
            return []
        weights, self._weights = self._weights, {}
        described = {
            "names": list(weights),
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for tensor in weights.values()],
            "shapes": [list(tensor.shape) for tensor in weights.values()],
        }

        def broadcast() -> None:
            packed_tensor.packed_nccl_broadcast_producer(
                iterator=iter(weights.items()),
                group=self._group,
                src=0,
                post_iter_func=lambda item: item[1].detach().contiguous(),
                buffer_size_bytes=packed_tensor.DEFAULT_PACKED_BUFFER_SIZE_BYTES,
                num_buffers=packed_tensor.DEFAULT_PACKED_NUM_BUFFERS,
            )

        received, _ = await asyncio.gather(
            post(replicas, "/update_weights", {"update_info": described}), asyncio.to_thread(broadcast)
        )
        return received

    async def close(self) -> None:
        """Leaves the group."""
        if self._group is not None:
            self._group.destroy()
            self._group = None

    async def _open(self, replicas: Sequence[Replica], post: Post) -> None:
        """The rendezvous: this process listens, every worker of every server joins under a rank of its own."""
        from vllm.distributed.weight_transfer import packed_tensor
        from vllm.distributed.weight_transfer.nccl_common import trainer_init

        sizes = [replica.world_size for replica in replicas]
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        meeting = {"master_address": _own_address(), "master_port": port, "world_size": 1 + sum(sizes)}
        joining = [
            post(
                [replica],
                "/init_weight_transfer_engine",
                {
                    "init_info": {
                        **meeting,
                        "rank_offset": 1 + sum(sizes[:index]),
                        "packed": True,
                        "packed_buffer_size_bytes": packed_tensor.DEFAULT_PACKED_BUFFER_SIZE_BYTES,
                        "packed_num_buffers": packed_tensor.DEFAULT_PACKED_NUM_BUFFERS,
                    }
                },
            )
            for index, replica in enumerate(replicas)
        ]
        self._group, *joined = await asyncio.gather(asyncio.to_thread(trainer_init, meeting), *joining)
        self._members = [replica for agreed in joined for replica in agreed]


def _with_backend(found: Any) -> type | None:
    if isinstance(found, type) and not isinstance(getattr(found, "backend", None), str):
        raise TypeError("has no attribute 'backend', vLLM's name for the other side")
    return any_class(found)


TRANSFERS: Registry[type] = Registry(
    kind="weight transfer",
    key="engine.transfer",
    built_in={
        "file": "agentrl.engines.vllm.transfer:FileTransfer",
        "nccl": "agentrl.engines.vllm.transfer:NcclTransfer",
    },
    wanted="a class with the methods of agentrl.engines.vllm.transfer.Transfer, and its 'backend'",
    accept=_with_backend,
    contracts=[Transfer],
    filled=("folder",),
)


def backend_of(settings: EngineSettings, base: Path) -> str:
    """What servers call the other side of the transfer.

    Raises:
        RecipeError: there is no such transfer, it is none, or a setting does not fit.
    """
    backend: str = TRANSFERS.chosen(settings.transfer, base).plug_in.backend  # type: ignore[attr-defined]
    return backend


def transfer_of(settings: EngineSettings, base: Path) -> Transfer:
    """A new one.

    Raises:
        RecipeError: as `backend_of`.
    """
    folder = Path(settings.weights_dir) if settings.weights_dir else None
    transfer: Transfer = TRANSFERS.chosen(settings.transfer, base).make(folder=folder)
    return transfer


def shared_parent(folder: Path | None) -> Path:
    """Where files for servers go: `folder`, made if need be; without one, this machine's shared memory."""
    shared = Path("/dev/shm")
    parent = (folder or (shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir()))).absolute()
    parent.mkdir(parents=True, exist_ok=True)
    return parent


def _unshared(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One name for tensors that share their memory (a tied head): a checkpoint holds each once."""
    seen: set[tuple[int, tuple[int, ...]]] = set()
    kept = {}
    for name, tensor in weights.items():
        key = (tensor.data_ptr(), tuple(tensor.shape))
        if key not in seen:
            seen.add(key)
            kept[name] = tensor
    return kept


def _own_address() -> str:
    """The address under which other machines reach this one; no packet is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address
