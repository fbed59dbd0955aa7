"""The processes of a run, one or many, behind one interface: collectives for JSON data, transfers for agents.

The processes are those of HuggingFace Accelerate, over torch.distributed. They exchange plain JSON (fitness, genomes,
offspring) and agents as safetensors bytes. Nothing is pickled, so `dist.all_gather_object` is not used. Only the main
process (rank 0) reads, writes and prints.
"""

from __future__ import annotations

import contextlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor

from agilerl_like.distributed.heartbeat import HeartbeatMonitor, NullMonitor, open_store
from agilerl_like.errors import ConfigurationError, ExitCode
from agilerl_like.learning.gradient_sync import NO_SYNC, GradientSync
from agilerl_like.learning.rollout_buffer import STEP_FIELDS, FinalObservations, Rollout
from agilerl_like.storage.safe_folder import serialize_tensors

if TYPE_CHECKING:
    from accelerate import Accelerator

T = TypeVar("T")

COLLECTIVE_TIMEOUT = timedelta(hours=12)
"""The heartbeats detect failures, so a collective may wait as long as another process trains."""


class Shard(NamedTuple):
    """The part of a run that one process has: members by slot, and part number `part` of `parts` of their envs."""

    slots: tuple[int, ...]
    part: int = 0
    parts: int = 1


class SerializedAgent(NamedTuple):
    """An agent as `to_documents` describes it."""

    document: Any
    tensors: Mapping[str, Tensor]


class Transfer(NamedTuple):
    """A member that one process sends to another."""

    slot: int
    source: int
    target: int


def shard_members(kinds: Sequence[Any], size: int) -> tuple[Shard, ...]:
    """Divide members evenly among so many processes, equal `kinds` (architectures, by slot) together.

    With more processes than members, some members are replicated, and their replicas divide the envs. How many members
    a process has depends on its rank alone.
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
    """Return the transfers that bring each wanted (slot, rank) there, if the rank has not that member already."""
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
        """Return the device of this process for a device that is wanted for all."""

    @abstractmethod
    def gradient_sync(self, shards: Sequence[Shard]) -> GradientSync:
        """Return the group of processes that have replicas of this process's member."""

    @abstractmethod
    def all_gather(self, document: Any) -> list[Any]:
        """Return the document of every process, by rank: JSON data; floats are exact, nan included."""

    @abstractmethod
    def send_recv(
        self, transfers: Sequence[Transfer], serialize: Callable[[int], SerializedAgent]
    ) -> dict[int, SerializedAgent]:
        """Carry out transfers, which are the same on all processes; return the agents received, by slot."""

    def __enter__(self) -> ProcessGroup:
        self.monitor.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.monitor.__exit__(kind, error, at)

    def broadcast(self, document: T) -> T:
        """Return the document of the main process."""
        return self.all_gather(document)[0]

    def all_gather_dict(
        self, own: Mapping[int, T], *, encode: Callable[[T], Any], decode: Callable[[Any], T]
    ) -> dict[int, T]:
        """Return the values of all processes by slot, the same on each.

        Of replicas the first process's value holds, because an env may return other numbers on each of them. A value of
        this process that holds is returned as it is.
        """
        if self.size == 1:
            return dict(own)
        encoded = self.all_gather({str(slot): encode(value) for slot, value in own.items()})
        first: dict[int, int] = {}
        for rank, values in enumerate(encoded):
            for slot in values:
                first.setdefault(int(slot), rank)
        return {
            slot: own[slot] if rank == self.rank else decode(encoded[rank][str(slot)])
            for slot, rank in sorted(first.items())
        }


class SingleProcess(ProcessGroup):
    """The only process of a run."""

    rank, size = 0, 1

    def __init__(self) -> None:
        self.monitor = NullMonitor()

    def device(self, wanted: torch.device) -> torch.device:
        return wanted

    def gradient_sync(self, shards: Sequence[Shard]) -> GradientSync:
        return NO_SYNC

    def all_gather(self, document: Any) -> list[Any]:
        return [document]

    def send_recv(
        self, transfers: Sequence[Transfer], serialize: Callable[[int], SerializedAgent]
    ) -> dict[int, SerializedAgent]:
        return {}


class MultiProcess(ProcessGroup):
    """The processes of an Accelerator."""

    def __init__(self, accelerator: Accelerator, *, describe_exit: Callable[[int], str] = lambda rank: "") -> None:
        self.rank, self.size = accelerator.process_index, accelerator.num_processes
        self._local_rank = accelerator.local_process_index
        nccl = dist.get_backend() == "nccl"
        self._transport_device = accelerator.device if nccl else torch.device("cpu")
        self._group: Any = dist.new_group(timeout=COLLECTIVE_TIMEOUT)  # that of a script's Accelerator has torch's own
        self.monitor = NullMonitor()  # of the broadcast of the store's port, which may fail
        self.monitor = self._make_monitor(describe_exit)

    def _make_monitor(self, describe_exit: Callable[[int], str]) -> HeartbeatMonitor:
        host = os.environ.get("MASTER_ADDR", "127.0.0.1")
        hosted = open_store(host, 0, self.rank, self.size) if self.is_main else None
        port = self.broadcast(0 if hosted is None else hosted.port)
        store = hosted or open_store(host, port, self.rank, self.size)
        return HeartbeatMonitor(store, self.rank, self.size, code=ExitCode.TEMPFAIL, describe_exit=describe_exit)

    def gradient_sync(self, shards: Sequence[Shard]) -> GradientSync:
        mine = NO_SYNC
        for slot in sorted({shard.slots for shard in shards if shard.parts > 1}):
            ranks = [rank for rank, shard in enumerate(shards) if shard.slots == slot]
            # collective: all processes must call it, in the same order
            group = dist.new_group(ranks, timeout=COLLECTIVE_TIMEOUT)
            if self.rank in ranks:
                mine = ReplicaGroup(group, shards[self.rank], self._transport_device, self._diagnosed)
        return mine

    def device(self, wanted: torch.device) -> torch.device:
        return device_of_rank(wanted, self._local_rank, torch.cuda.device_count())

    def all_gather(self, document: Any) -> list[Any]:
        with self._diagnosed():
            return self._all_gather_json(document)

    def _all_gather_json(self, document: Any) -> list[Any]:
        text = _to_bytes(json.dumps(document).encode()).to(self._transport_device)
        lengths = [torch.zeros(1, dtype=torch.int64, device=self._transport_device) for _ in range(self.size)]
        own_length = torch.tensor([len(text)], device=self._transport_device)
        dist.all_gather(lengths, own_length, group=self._group)
        longest = max(int(length) for length in lengths)
        texts = [torch.empty(longest, dtype=torch.uint8, device=self._transport_device) for _ in range(self.size)]
        dist.all_gather(texts, torch.nn.functional.pad(text, (0, longest - len(text))), group=self._group)
        return [
            json.loads(bytes(text[: int(length)].cpu().numpy())) for text, length in zip(texts, lengths, strict=True)
        ]

    def send_recv(
        self, transfers: Sequence[Transfer], serialize: Callable[[int], SerializedAgent]
    ) -> dict[int, SerializedAgent]:
        if not transfers:
            return {}
        agents = {slot: serialize(slot) for slot, source, _ in transfers if source == self.rank}
        sent = {slot: _to_bytes(serialize_tensors(agent.tensors)) for slot, agent in agents.items()}
        announced = self.all_gather({str(slot): [agents[slot].document, len(sent[slot])] for slot in agents})
        received: dict[int, Tensor] = {}
        operations: list[dist.P2POp] = []
        for slot, source, target in transfers:
            if source == self.rank:
                sending = sent[slot].to(self._transport_device)
                operations.append(dist.P2POp(dist.isend, sending, target, self._group))
            elif target == self.rank:
                size = announced[source][str(slot)][1]
                received[slot] = torch.empty(size, dtype=torch.uint8, device=self._transport_device)
                operations.append(dist.P2POp(dist.irecv, received[slot], source, self._group))
        with self._diagnosed():
            for work in dist.batch_isend_irecv(operations) if operations else ():
                work.wait()
        documents = {slot: announced[source][str(slot)][0] for slot, source, _ in transfers}
        return {
            slot: SerializedAgent(documents[slot], safetensors.torch.load(bytes(data.cpu().numpy())))
            for slot, data in received.items()
        }

    @contextlib.contextmanager
    def _diagnosed(self) -> Iterator[None]:
        """Let the monitor report another process's failure, which appears here as a broken connection."""
        try:
            yield
        except RuntimeError:
            self.monitor.wait_for_diagnosis()
            raise


class ReplicaGroup(GradientSync):
    """Processes that have replicas of one member, with an equal part of its envs each."""

    def __init__(
        self,
        group: Any,
        shard: Shard,
        transport_device: torch.device,
        diagnosed: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.rank, self.num_ranks, self._group, self._transport_device = (
            shard.part,
            shard.parts,
            group,
            transport_device,
        )
        self._diagnosed = diagnosed

    def all_reduce_(self, x: Tensor) -> Tensor:
        carried = x.to(self._transport_device)
        with self._diagnosed():
            dist.all_reduce(carried, group=self._group)
        return x if carried is x else x.copy_(carried)

    def all_gather(self, rollout: Rollout) -> Rollout:
        envs = rollout.rewards.shape[2]
        steps = {name: getattr(rollout, name) for name in STEP_FIELDS}
        last = rollout.final_observations
        return rollout.replace(
            **{name: self._all_gather_cat(x, 2) for name, x in steps.items() if x is not None and name != "masks"},
            masks=self._all_gather_masks(rollout),
            next_observations=self._all_gather_cat(rollout.next_observations, 1),
            state=self._all_gather_cat(rollout.state, 1),
            waiting=self._all_gather_waiting(rollout),
            final_observations=FinalObservations(
                time=self._all_gather_ragged(last.time),
                env=self._all_gather_ragged(last.env + envs * self.rank),
                observations=self._all_gather_ragged(last.observations),
                batch_size=last.batch_size,
            ),
        )

    def _all_gather_masks(self, rollout: Rollout) -> Tensor | None:
        """Gather the action masks; in a process whose envs have had none yet, every action was legal."""
        masks = rollout.masks
        has_some, choices = self.all_reduce_(
            torch.tensor([0.0, 0.0] if masks is None else [1.0, masks.shape[-1]])
        ).tolist()
        if not has_some:
            return None
        if masks is None:
            masks = rollout.rewards.new_ones(*rollout.rewards.shape, round(choices / has_some), dtype=torch.bool)
        return self._all_gather_cat(masks, 2)

    def _all_gather_waiting(self, rollout: Rollout) -> Tensor | None:
        """Gather the flags of agents that wait; a process may have none although another one has."""
        has_some = self.all_reduce_(torch.tensor([float(rollout.waiting is not None)]))
        if not bool(has_some):
            return None
        none = torch.stack([torch.zeros_like(rollout.rewards)] * 2, 1)
        return self._all_gather_cat(none if rollout.waiting is None else rollout.waiting, 3)

    def _all_gather_cat(self, x: Tensor, dim: int) -> Tensor:
        """Concatenate equally shaped tensors of all processes, in the order of their envs."""
        mine = x.contiguous().to(self._transport_device)
        parts = [torch.empty_like(mine) for _ in range(self.num_ranks)]
        with self._diagnosed():
            dist.all_gather([_as_bytes(part) for part in parts], _as_bytes(mine), group=self._group)
        return torch.cat(parts, dim).to(x.device)

    def _all_gather_ragged(self, x: Tensor) -> Tensor:
        """Concatenate tensors `[P, n, …]` of any n along their second axis."""
        counts = self._all_gather_cat(torch.tensor([x.shape[1]], device=x.device), 0).tolist()
        padded = x.new_zeros(len(x), max(counts), *x.shape[2:])
        padded[:, : x.shape[1]] = x
        parts = self._all_gather_cat(padded, 1).split(max(counts), 1) if max(counts) else [x]
        return torch.cat([part[:, :count] for part, count in zip(parts, counts, strict=False)], 1)


def _as_bytes(tensor: Tensor) -> Tensor:
    """View a tensor as bytes, in place if it is contiguous: not every backend carries every dtype."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _to_bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def check_shared_device(wanted: torch.device) -> None:
    """Raise ConfigurationError if several processes cannot use such a device: "cuda:1" is one GPU."""
    if wanted.type == "cuda" and wanted.index is not None:
        raise ConfigurationError(
            f"device={str(wanted)!r} is a single GPU; allowed for several processes are 'cpu', and 'cuda': process r "
            "of a machine then computes on cuda:r"
        )


def device_of_rank(wanted: torch.device, local_rank: int, gpus: int) -> torch.device:
    """Return the device of one of the processes of a machine: for "cuda", process r computes on cuda:r.

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
    """Return the process group of a script's Accelerator; a SingleProcess without one, or if there is one process.

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
    """Join the process group of the processes that were started together with this one; torch's threads stay as set.

    Raises:
        ConfigurationError: rank 0 cannot listen on the group's port, or the others cannot reach it.
    """
    from accelerate import Accelerator, InitProcessGroupKwargs  # slow to import, and most runs do not need it
    from accelerate.state import AcceleratorState

    threads = torch.get_num_threads()
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # Accelerate would choose a number of its own
    group = InitProcessGroupKwargs(timeout=COLLECTIVE_TIMEOUT)
    try:
        accelerator = Accelerator(cpu=cpu, kwargs_handlers=[group])
    except BaseException as error:
        AcceleratorState._reset_state(reset_partial_state=True)  # it would count as that of the script
        if not isinstance(error, dist.DistNetworkError):
            raise
        place = [f"{name}={os.environ.get(name)!r}" for name in ("MASTER_ADDR", "MASTER_PORT")]
        reason = "it is in use" if "EADDRINUSE" in str(error) else f"{error!s:.200}"
        raise ConfigurationError(
            f"{', '.join(place)}: the processes cannot connect there ({reason}); allowed is a free port, as in "
            "accelerate launch --main_process_port PORT"
        ) from error
    torch.set_num_threads(threads)
    return accelerator


def destroy_process_group(accelerator: Accelerator) -> None:
    """Undo `init_process_group`."""
    from accelerate.state import AcceleratorState

    accelerator.end_training()
    AcceleratorState._reset_state(reset_partial_state=True)  # `end_training` leaves its singletons
