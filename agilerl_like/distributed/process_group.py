"""Where a run's members live: in this process alone, or dealt to many that exchange decisions and little else.

Processes are those of HuggingFace Accelerate, with torch.distributed below it. What they tell each other is plain JSON
(fitness, genomes, births), and members that move travel tensor by tensor, in memory: no files, no pickles. A run asks
the same of one process as of many, and only the main one (rank 0) reads, writes and prints.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from agilerl_like.distributed.heartbeat import HeartbeatMonitor, NullMonitor, open_store
from agilerl_like.errors import ConfigurationError, ExitCode
from agilerl_like.learning.rollout import LastObservations, Rollout
from agilerl_like.learning.team import SOLO, Team

if TYPE_CHECKING:
    from accelerate import Accelerator

T = TypeVar("T")

COLLECTIVE_TIMEOUT = timedelta(hours=12)
"""The watch sees who is gone; how long one process trains while the others wait for it is nobody's business."""


class Shard(NamedTuple):
    """What one process has of a run: members by their slots, and of their envs the part number `part` of `parts`."""

    slots: tuple[int, ...]
    part: int = 0
    parts: int = 1


ALIGNMENT = 64
"""Bytes by which tensors in a message are aligned."""


class SerializedAgent(NamedTuple):
    """A member on its way, as `Agent.to_documents` describes it."""

    document: Any
    tensors: Mapping[str, Tensor]


class Transfer(NamedTuple):
    """The way of one member from a process that has it to one that needs it."""

    slot: int
    source: int
    target: int


def shard_members(kinds: Sequence[Any], size: int) -> tuple[Shard, ...]:
    """Deal members to so many processes: alike ones together, and as evenly as can be.

    `kinds` says for each slot what it can be computed together with. Where there are more processes than members, some
    members are had by several, who divide their envs. How many members a process has depends on its rank alone.
    """
    members = len(kinds)
    if size > members:
        owner = [rank * members // size for rank in range(size)]
        return tuple(
            Shard((slot,), part=rank - owner.index(slot), parts=owner.count(slot)) for rank, slot in enumerate(owner)
        )
    order = sorted(range(members), key=lambda slot: (repr(kinds[slot]), slot))
    bounds = [members * rank // size for rank in range(size + 1)]
    return tuple(Shard(tuple(sorted(order[bounds[rank] : bounds[rank + 1]]))) for rank in range(size))


def plan_transfers(wanted: Iterable[tuple[int, int]], shards: Sequence[Shard]) -> list[Transfer]:
    """The ways by which each (slot, rank) that is wanted gets there; none where it is already."""
    source = {slot: rank for rank in reversed(range(len(shards))) for slot in shards[rank].slots}
    missing = {(slot, rank) for slot, rank in wanted if slot not in shards[rank].slots}
    return [Transfer(slot, source[slot], rank) for slot, rank in sorted(missing)]


class ProcessGroup(ABC):
    """The processes of a run."""

    rank: int
    size: int
    monitor: HeartbeatMonitor | NullMonitor

    @property
    def is_main(self) -> bool:
        """Whether this is the process that reads, writes and prints."""
        return self.rank == 0

    @abstractmethod
    def device(self, wanted: torch.device) -> torch.device:
        """Where this process computes what should be computed on such a device."""

    @abstractmethod
    def team(self, shards: Sequence[Shard]) -> Team:
        """With whom this process's member learns, all processes having such shares."""

    @abstractmethod
    def all_gather(self, document: Any) -> list[Any]:
        """What every process says, in the order of their ranks: JSON data, floats to the last bit, nan included."""

    @abstractmethod
    def send_recv(
        self, transfers: Sequence[Transfer], pack: Callable[[int], SerializedAgent]
    ) -> dict[int, SerializedAgent]:
        """Send members on their ways, which all processes know; return those that came here, by slot."""

    def __enter__(self) -> ProcessGroup:
        self.monitor.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.monitor.__exit__(kind, error, at)

    def broadcast(self, document: T) -> T:
        """What the main process says."""
        return self.all_gather(document)[0]

    def all_gather_dict(
        self, own: Mapping[int, T], *, encode: Callable[[T], Any], decode: Callable[[Any], T]
    ) -> dict[int, T]:
        """What every process has to say about slots, by slot; each keeps its own as it is."""
        if self.size == 1:
            return dict(own)
        told = self.all_gather({str(slot): encode(one) for slot, one in own.items()})
        found = {int(slot): one for others in told for slot, one in others.items()}
        return {slot: own[slot] if slot in own else decode(found[slot]) for slot in sorted(found)}


class SingleProcess(ProcessGroup):
    """One process."""

    rank, size = 0, 1

    def __init__(self) -> None:
        self.monitor = NullMonitor()

    def device(self, wanted: torch.device) -> torch.device:
        return wanted

    def team(self, shards: Sequence[Shard]) -> Team:
        return SOLO

    def all_gather(self, document: Any) -> list[Any]:
        return [document]

    def send_recv(
        self, transfers: Sequence[Transfer], pack: Callable[[int], SerializedAgent]
    ) -> dict[int, SerializedAgent]:
        return {}


class MultiProcess(ProcessGroup):
    """The processes of an Accelerator."""

    def __init__(self, accelerator: Accelerator, *, describe_exit: Callable[[int], str] = lambda rank: "") -> None:
        self.rank, self.size = accelerator.process_index, accelerator.num_processes
        self._local_rank = accelerator.local_process_index
        nccl = dist.get_backend() == "nccl"
        self._transport_device = accelerator.device if nccl else torch.device("cpu")
        self.monitor = self._make_monitor(describe_exit)

    def _make_monitor(self, describe_exit: Callable[[int], str]) -> HeartbeatMonitor:
        host = os.environ.get("MASTER_ADDR", "127.0.0.1")
        kept = open_store(host, 0, self.rank, self.size) if self.is_main else None
        port = self.broadcast(0 if kept is None else kept.port)
        store = kept or open_store(host, port, self.rank, self.size)
        return HeartbeatMonitor(store, self.rank, self.size, code=ExitCode.TEMPFAIL, describe_exit=describe_exit)

    def team(self, shards: Sequence[Shard]) -> Team:
        mine = SOLO
        for slot in sorted({shard.slots for shard in shards if shard.parts > 1}):
            ranks = [rank for rank, shard in enumerate(shards) if shard.slots == slot]
            group = dist.new_group(ranks)  # all processes must take part in making it, in the same order
            if self.rank in ranks:
                mine = ReplicaGroup(group, shards[self.rank], self._transport_device, self._diagnosed)
        return mine

    def device(self, wanted: torch.device) -> torch.device:
        return device_of_rank(wanted, self._local_rank, torch.cuda.device_count())

    def all_gather(self, document: Any) -> list[Any]:
        with self._diagnosed():
            return self._all_gather_json(document)

    def _all_gather_json(self, document: Any) -> list[Any]:
        text = torch.frombuffer(bytearray(json.dumps(document).encode()), dtype=torch.uint8).to(self._transport_device)
        lengths = [torch.zeros(1, dtype=torch.int64, device=self._transport_device) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(text)], device=self._transport_device))
        longest = max(int(length) for length in lengths)
        texts = [torch.empty(longest, dtype=torch.uint8, device=self._transport_device) for _ in range(self.size)]
        dist.all_gather(texts, torch.nn.functional.pad(text, (0, longest - len(text))))
        return [
            json.loads(bytes(text[: int(length)].cpu().numpy())) for text, length in zip(texts, lengths, strict=True)
        ]

    def send_recv(
        self, transfers: Sequence[Transfer], pack: Callable[[int], SerializedAgent]
    ) -> dict[int, SerializedAgent]:
        if not transfers:
            return {}
        leaving = {way.slot: pack(way.slot) for way in transfers if way.source == self.rank}
        told = self.all_gather(
            {str(slot): [serialized.document, _metadata(serialized.tensors)] for slot, serialized in leaving.items()}
        )
        sent = {slot: _flatten(serialized.tensors).to(self._transport_device) for slot, serialized in leaving.items()}
        got: dict[int, Tensor] = {}
        arriving: dict[int, SerializedAgent] = {}
        operations: list[dist.P2POp] = []
        for slot, source, target in transfers:
            if source == self.rank:
                operations.append(dist.P2POp(dist.isend, sent[slot], target))
            elif target == self.rank:
                document, shapes = told[source][str(slot)]
                got[slot], tensors = _empty_like_metadata(shapes, self._transport_device)
                arriving[slot] = SerializedAgent(document, tensors)
                operations.append(dist.P2POp(dist.irecv, got[slot], source))
        with self._diagnosed():
            for work in dist.batch_isend_irecv(operations) if operations else ():
                work.wait()
        return arriving

    @contextlib.contextmanager
    def _diagnosed(self) -> Iterator[None]:
        """Where another process ended, let the watch say so: what is heard here is a broken connection."""
        try:
            yield
        except RuntimeError:
            self.monitor.wait_for_diagnosis()
            raise


class ReplicaGroup(Team):
    """Processes that share the envs of one member, as many each."""

    def __init__(
        self,
        group: Any,
        shard: Shard,
        transport_device: torch.device,
        diagnosed: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.part, self.parts, self._group, self._transport_device = shard.part, shard.parts, group, transport_device
        self._diagnosed = diagnosed

    def sum_(self, x: Tensor) -> Tensor:
        carried = x.to(self._transport_device)
        with self._diagnosed():
            dist.all_reduce(carried, group=self._group)
        return x if carried is x else x.copy_(carried)

    def whole(self, rollout: Rollout) -> Rollout:
        envs = rollout.rewards.shape[2]
        columns = {name: self._all_gather_cat(getattr(rollout, name), 2) for name in Rollout._fields[:6]}
        last = rollout.last_observations
        theirs = last._replace(env=last.env + envs * self.part)
        return rollout._replace(
            **columns,
            next_observations=self._all_gather_cat(rollout.next_observations, 1),
            last_observations=LastObservations(*(self._all_gather_ragged(x) for x in theirs)),
            masks=None if rollout.masks is None else self._all_gather_cat(rollout.masks, 2),
            state=self._all_gather_cat(rollout.state, 1),
        )

    def _all_gather_cat(self, x: Tensor, dim: int) -> Tensor:
        """What all have, in the order of their envs; of equal shapes."""
        mine = x.contiguous().to(self._transport_device)
        parts = [torch.empty_like(mine) for _ in range(self.parts)]
        with self._diagnosed():
            dist.all_gather([_as_bytes(part) for part in parts], _as_bytes(mine), group=self._group)
        return torch.cat(parts, dim).to(x.device)

    def _all_gather_ragged(self, x: Tensor) -> Tensor:
        """What all have, however much that is."""
        counts = self._all_gather_cat(torch.tensor([len(x)], device=x.device), 0).tolist()
        padded = x.new_zeros(max(counts), *x.shape[1:])
        padded[: len(x)] = x
        parts = self._all_gather_cat(padded, 0).split(max(counts)) if max(counts) else [x]
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=False)])


def _metadata(tensors: Mapping[str, Tensor]) -> dict[str, tuple[str, list[int]]]:
    return {name: (str(x.dtype).removeprefix("torch."), list(x.shape)) for name, x in tensors.items()}


def _flatten(tensors: Mapping[str, Tensor]) -> Tensor:
    """The bytes of tensors in one row, for a message takes its time whatever is in it."""
    rows = [_as_bytes(tensor).cpu() for tensor in tensors.values()]
    return torch.cat([torch.nn.functional.pad(row, (0, -len(row) % ALIGNMENT)) for row in rows])


def _empty_like_metadata(
    shapes: Mapping[str, tuple[str, list[int]]], device: torch.device
) -> tuple[Tensor, dict[str, Tensor]]:
    """A row for tensors of these shapes, and the tensors in it."""
    kinds = {name: (getattr(torch, dtype), shape) for name, (dtype, shape) in shapes.items()}
    sizes = {name: dtype.itemsize * math.prod(shape) for name, (dtype, shape) in kinds.items()}
    strides = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes.values()]
    row = torch.empty(sum(strides), dtype=torch.uint8, device=device)
    parts = zip(kinds.items(), row.split(strides), sizes.values(), strict=True)
    return row, {name: part[:size].view(dtype).view(shape) for (name, (dtype, shape)), part, size in parts}


def _as_bytes(tensor: Tensor) -> Tensor:
    """A tensor's bytes, in place if it is contiguous: not every backend carries every dtype."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def check_shared_device(wanted: torch.device) -> None:
    """Raise ConfigurationError if several processes cannot divide such a device: "cuda:1" is one GPU."""
    if wanted.type == "cuda" and wanted.index is not None:
        raise ConfigurationError(
            f"device={str(wanted)!r} is a single GPU; allowed for several processes are 'cpu', and 'cuda': process r "
            "of a machine then computes on cuda:r"
        )


def device_of_rank(wanted: torch.device, local_rank: int, gpus: int) -> torch.device:
    """Return the device of one of the processes of a machine with so many GPUs: of "cuda", process r has cuda:r.

    Raises:
        ConfigurationError: one GPU is named for all of them, or there are fewer GPUs than processes.
    """
    if wanted.type != "cuda":
        return wanted
    check_shared_device(wanted)
    if local_rank >= gpus:
        raise ConfigurationError(
            f"device='cuda' for process {local_rank} of this machine, which has {gpus} GPUs; allowed are as many "
            "processes as GPUs, and 'cpu'"
        )
    return torch.device("cuda", local_rank)


def process_group_of(accelerator: Accelerator | None) -> ProcessGroup:
    """The world of a script's Accelerator; without one, or if it is the only process, this process alone.

    Raises:
        ConfigurationError: `accelerator` is something else.
    """
    if accelerator is None:
        return SingleProcess()
    from accelerate import Accelerator

    if not isinstance(accelerator, Accelerator):
        raise ConfigurationError(f"accelerator={accelerator!r} must be an accelerate.Accelerator")
    return SingleProcess() if accelerator.num_processes == 1 else MultiProcess(accelerator)


def is_launched() -> bool:
    """Whether `accelerate launch` or torchrun started this process together with others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def init_process_group(*, cpu: bool) -> Accelerator:
    """Join the process group of the processes that were started together with this one; torch keeps its threads.

    Raises:
        ConfigurationError: rank 0 cannot listen on the group's port, or the others cannot reach it.
    """
    from accelerate import Accelerator, InitProcessGroupKwargs  # here, for most runs need not wait for it

    threads = torch.get_num_threads()
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # Accelerate would choose a number of its own
    group = InitProcessGroupKwargs(timeout=COLLECTIVE_TIMEOUT)
    try:
        accelerator = Accelerator(cpu=cpu, kwargs_handlers=[group])
    except dist.DistNetworkError as error:
        place = [f"{name}={os.environ.get(name)!r}" for name in ("MASTER_ADDR", "MASTER_PORT")]
        reason = "it is in use" if "EADDRINUSE" in str(error) else f"{error!s:.200}"
        raise ConfigurationError(
            f"{', '.join(place)}: the processes cannot meet there ({reason}); allowed is a free port, as in "
            "accelerate launch --main_process_port PORT"
        ) from error
    torch.set_num_threads(threads)
    return accelerator


def destroy_process_group(accelerator: Accelerator) -> None:
    """Undo `init_process_group`, so that this process is one by itself again."""
    from accelerate.state import AcceleratorState

    accelerator.end_training()
    AcceleratorState._reset_state(reset_partial_state=True)  # the public end leaves its singletons as they were
