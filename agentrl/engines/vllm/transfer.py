"""Weight transfer to vLLM servers: the step between `/start_weight_update` and `/finish_weight_update`."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agentrl.engines.replicas import Replica
from agentrl.engines.vllm.settings import VLLMSettings
from agentrl.registry.registry import Registry, any_class
from agentrl.types.errors import EngineError, needs

if TYPE_CHECKING:
    from torch import Tensor

Post = Callable[[Sequence[Replica], str, Any], Awaitable[list[Replica]]]
"""Posts a body to servers. Returns the servers that succeeded; `ServerControl` records the errors of the others."""


class Transfer(Protocol):
    """A backend of weight transfer.

    The constructor takes the backend's settings, and `folder` (`engine.weights_dir` or None) if it has this parameter.

    Attributes:
        backend: name of the receiving side, for `--weight-transfer-config` of the servers.
    """

    backend: str

    async def prepare(self, weights: Mapping[str, Tensor]) -> None:
        """Prepares the transfer while the servers still sample. `weights` must not change until `send` returns."""
        ...

    async def send(self, replicas: Sequence[Replica], post: Post) -> list[Replica]:
        """Sends all weights. Returns the servers that received them."""
        ...

    async def close(self) -> None:
        """Frees all resources."""
        ...


class FileTransfer:
    """Transfers weights through a .safetensors file. The servers need the plug-in in `tools/vllm`.

    Args:
        folder: shared folder, for servers on other machines; default: this machine's shared memory.
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
                remedy="set engine.weights_dir to a folder with enough space",
            ) from error

    async def send(self, replicas: Sequence[Replica], post: Post) -> list[Replica]:
        """Makes the servers read the file, then removes it."""
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
    """Broadcasts weights between GPUs with NCCL, in vLLM's packed format. This process is rank 0.

    Needs vLLM in this process, and CUDA on both sides. Written for the protocol of vLLM 0.32. The tests do not run it,
    because it needs two GPUs.
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
        """Broadcasts every tensor to the servers. If a member of the group is missing, no server receives weights."""
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
        """Destroys the process group."""
        if self._group is not None:
            self._group.destroy()
            self._group = None

    async def _open(self, replicas: Sequence[Replica], post: Post) -> None:
        """Opens the process group: this process listens, and every worker of every server joins with its own rank."""
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
        raise TypeError("has no attribute 'backend', vLLM's name of the receiving side")
    return any_class(found)


TRANSFERS: Registry[type] = Registry(
    kind="weight transfer",
    group="transfers",
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


def backend_of(settings: VLLMSettings, base: Path) -> str:
    """The servers' name for the recipe's weight transfer.

    Raises:
        RecipeError: the transfer does not exist, the class is not one, or a setting is wrong.
    """
    backend: str = TRANSFERS.chosen(settings.transfer, base).plug_in.backend  # type: ignore[attr-defined]
    return backend


def transfer_of(settings: VLLMSettings, base: Path) -> Transfer:
    """Makes the recipe's weight transfer.

    Raises:
        RecipeError: see `backend_of`.
    """
    folder = Path(settings.weights_dir) if settings.weights_dir else None
    transfer: Transfer = TRANSFERS.chosen(settings.transfer, base).make(folder=folder)
    return transfer


def shared_parent(folder: Path | None) -> Path:
    """Parent folder of files for servers: `folder` (created if missing), or this machine's shared memory."""
    shared = Path("/dev/shm")
    parent = (folder or (shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir()))).absolute()
    parent.mkdir(parents=True, exist_ok=True)
    return parent


def _unshared(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Keeps one name for tensors that share memory (a tied head), as checkpoints do."""
    seen: set[tuple[int, tuple[int, ...]]] = set()
    kept = {}
    for name, tensor in weights.items():
        key = (tensor.data_ptr(), tuple(tensor.shape))
        if key not in seen:
            seen.add(key)
            kept[name] = tensor
    return kept


def _own_address() -> str:
    """This machine's address for other machines, from the routing table. Sends no packet."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address
