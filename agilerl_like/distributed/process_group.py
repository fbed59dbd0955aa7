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

from agilerl_like.distributed.heartbeat import Unwatched, Watch, open_store
from agilerl_like.errors import ConfigurationError, ExitCode
from agilerl_like.learning.rollout import LastObservations, Rollout
from agilerl_like.learning.team import SOLO, Team

if TYPE_CHECKING:
    from accelerate import Accelerator

T = TypeVar("T")

COLLECTIVE_TIMEOUT = timedelta(hours=12)
"""The watch sees who is gone; how long one process trains while the others wait for it is nobody's business."""


class Share(NamedTuple):
    """What one process has of a run: members by their slots, and of their envs the part number `part` of `parts`."""

    slots: tuple[int, ...]
    part: int = 0
    parts: int = 1


STRIDE = 64
"""Bytes by which tensors in a message are aligned."""


class Parcel(NamedTuple):
    """A member on its way, as `Agent.to_documents` describes it."""

    document: Any
    tensors: Mapping[str, Tensor]


class Route(NamedTuple):
    """The way of one member from a process that has it to one that needs it."""

    slot: int
    source: int
    target: int


def deal(kinds: Sequence[Any], size: int) -> tuple[Share, ...]:
    """Deal members to so many processes: alike ones together, and as evenly as can be.

    `kinds` says for each slot what it can be computed together with. Where there are more processes than members, some
    members are had by several, who divide their envs. How many members a process has depends on its rank alone.
    """
    members = len(kinds)
    if size > members:
        owner = [rank * members // size for rank in range(size)]
        return tuple(
            Share((slot,), part=rank - owner.index(slot), parts=owner.count(slot)) for rank, slot in enumerate(owner)
        )
    order = sorted(range(members), key=lambda slot: (repr(kinds[slot]), slot))
    bounds = [members * rank // size for rank in range(size + 1)]
    return tuple(Share(tuple(sorted(order[bounds[rank] : bounds[rank + 1]]))) for rank in range(size))


def routes(wanted: Iterable[tuple[int, int]], shares: Sequence[Share]) -> list[Route]:
    """The ways by which each (slot, rank) that is wanted gets there; none where it is already."""
    source = {slot: rank for rank in reversed(range(len(shares))) for slot in shares[rank].slots}
    missing = {(slot, rank) for slot, rank in wanted if slot not in shares[rank].slots}
    return [Route(slot, source[slot], rank) for slot, rank in sorted(missing)]


class World(ABC):
    """The processes of a run."""

    rank: int
    size: int
    watch: Watch | Unwatched

    @property
    def is_main(self) -> bool:
        """Whether this is the process that reads, writes and prints."""
        return self.rank == 0

    @abstractmethod
    def device(self, wanted: torch.device) -> torch.device:
        """Where this process computes what should be computed on such a device."""

    @abstractmethod
    def team(self, shares: Sequence[Share]) -> Team:
        """With whom this process's member learns, all processes having such shares."""

    @abstractmethod
    def gather(self, document: Any) -> list[Any]:
        """What every process says, in the order of their ranks: JSON data, floats to the last bit, nan included."""

    @abstractmethod
    def move(self, ways: Sequence[Route], pack: Callable[[int], Parcel]) -> dict[int, Parcel]:
        """Send members on their ways, which all processes know; return those that came here, by slot."""

    def __enter__(self) -> World:
        self.watch.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.watch.__exit__(kind, error, at)

    def agree(self, document: T) -> T:
        """What the main process says."""
        return self.gather(document)[0]

    def share(self, own: Mapping[int, T], *, encode: Callable[[T], Any], decode: Callable[[Any], T]) -> dict[int, T]:
        """What every process has to say about slots, by slot; each keeps its own as it is."""
        if self.size == 1:
            return dict(own)
        told = self.gather({str(slot): encode(one) for slot, one in own.items()})
        found = {int(slot): one for others in told for slot, one in others.items()}
        return {slot: own[slot] if slot in own else decode(found[slot]) for slot in sorted(found)}


class Alone(World):
    """One process."""

    rank, size = 0, 1

    def __init__(self) -> None:
        self.watch = Unwatched()

    def device(self, wanted: torch.device) -> torch.device:
        return wanted

    def team(self, shares: Sequence[Share]) -> Team:
        return SOLO

    def gather(self, document: Any) -> list[Any]:
        return [document]

    def move(self, ways: Sequence[Route], pack: Callable[[int], Parcel]) -> dict[int, Parcel]:
        return {}


class Together(World):
    """The processes of an Accelerator."""

    def __init__(self, accelerator: Accelerator, *, cause: Callable[[int], str] = lambda rank: "") -> None:
        self.rank, self.size = accelerator.process_index, accelerator.num_processes
        self._local_rank = accelerator.local_process_index
        nccl = dist.get_backend() == "nccl"
        self._carrier = accelerator.device if nccl else torch.device("cpu")
        self.watch = self._watch(cause)

    def _watch(self, cause: Callable[[int], str]) -> Watch:
        host = os.environ.get("MASTER_ADDR", "127.0.0.1")
        kept = open_store(host, 0, self.rank, self.size) if self.is_main else None
        port = self.agree(0 if kept is None else kept.port)
        store = kept or open_store(host, port, self.rank, self.size)
        return Watch(store, self.rank, self.size, code=ExitCode.FAULT, cause=cause)

    def team(self, shares: Sequence[Share]) -> Team:
        mine = SOLO
        for slot in sorted({share.slots for share in shares if share.parts > 1}):
            ranks = [rank for rank, share in enumerate(shares) if share.slots == slot]
            group = dist.new_group(ranks)  # all processes must take part in making it, in the same order
            if self.rank in ranks:
                mine = Partners(group, shares[self.rank], self._carrier, self._mourning)
        return mine

    def device(self, wanted: torch.device) -> torch.device:
        return device_of_rank(wanted, self._local_rank, torch.cuda.device_count())

    def gather(self, document: Any) -> list[Any]:
        with self._mourning():
            return self._gather(document)

    def _gather(self, document: Any) -> list[Any]:
        text = torch.frombuffer(bytearray(json.dumps(document).encode()), dtype=torch.uint8).to(self._carrier)
        lengths = [torch.zeros(1, dtype=torch.int64, device=self._carrier) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(text)], device=self._carrier))
        longest = max(int(length) for length in lengths)
        texts = [torch.empty(longest, dtype=torch.uint8, device=self._carrier) for _ in range(self.size)]
        dist.all_gather(texts, torch.nn.functional.pad(text, (0, longest - len(text))))
        return [
            json.loads(bytes(text[: int(length)].cpu().numpy())) for text, length in zip(texts, lengths, strict=True)
        ]

    def move(self, ways: Sequence[Route], pack: Callable[[int], Parcel]) -> dict[int, Parcel]:
        if not ways:
            return {}
        leaving = {way.slot: pack(way.slot) for way in ways if way.source == self.rank}
        told = self.gather({str(slot): [parcel.document, _shapes(parcel.tensors)] for slot, parcel in leaving.items()})
        sent = {slot: _as_one(parcel.tensors).to(self._carrier) for slot, parcel in leaving.items()}
        got: dict[int, Tensor] = {}
        arriving: dict[int, Parcel] = {}
        transfers: list[dist.P2POp] = []
        for slot, source, target in ways:
            if source == self.rank:
                transfers.append(dist.P2POp(dist.isend, sent[slot], target))
            elif target == self.rank:
                document, shapes = told[source][str(slot)]
                got[slot], tensors = _room_for(shapes, self._carrier)
                arriving[slot] = Parcel(document, tensors)
                transfers.append(dist.P2POp(dist.irecv, got[slot], source))
        with self._mourning():
            for work in dist.batch_isend_irecv(transfers) if transfers else ():
                work.wait()
        return arriving

    @contextlib.contextmanager
    def _mourning(self) -> Iterator[None]:
        """Where another process ended, let the watch say so: what is heard here is a broken connection."""
        try:
            yield
        except RuntimeError:
            self.watch.find_cause()
            raise


class Partners(Team):
    """Processes that share the envs of one member, as many each."""

    def __init__(
        self, group: Any, share: Share, carrier: torch.device, mourning: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self.part, self.parts, self._group, self._carrier = share.part, share.parts, group, carrier
        self._mourning = mourning

    def sum_(self, x: Tensor) -> Tensor:
        carried = x.to(self._carrier)
        with self._mourning():
            dist.all_reduce(carried, group=self._group)
        return x if carried is x else x.copy_(carried)

    def whole(self, rollout: Rollout) -> Rollout:
        envs = rollout.rewards.shape[2]
        columns = {name: self._beside(getattr(rollout, name), 2) for name in Rollout._fields[:6]}
        last = rollout.last_observations
        theirs = last._replace(env=last.env + envs * self.part)
        return rollout._replace(
            **columns,
            next_observations=self._beside(rollout.next_observations, 1),
            last_observations=LastObservations(*(self._behind(x) for x in theirs)),
            masks=None if rollout.masks is None else self._beside(rollout.masks, 2),
            state=self._beside(rollout.state, 1),
        )

    def _beside(self, x: Tensor, dim: int) -> Tensor:
        """What all have, in the order of their envs; of equal shapes."""
        mine = x.contiguous().to(self._carrier)
        parts = [torch.empty_like(mine) for _ in range(self.parts)]
        with self._mourning():
            dist.all_gather([_bytes_of(part) for part in parts], _bytes_of(mine), group=self._group)
        return torch.cat(parts, dim).to(x.device)

    def _behind(self, x: Tensor) -> Tensor:
        """What all have, however much that is."""
        counts = self._beside(torch.tensor([len(x)], device=x.device), 0).tolist()
        padded = x.new_zeros(max(counts), *x.shape[1:])
        padded[: len(x)] = x
        parts = self._beside(padded, 0).split(max(counts)) if max(counts) else [x]
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=False)])


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[str, list[int]]]:
    return {name: (str(x.dtype).removeprefix("torch."), list(x.shape)) for name, x in tensors.items()}


def _as_one(tensors: Mapping[str, Tensor]) -> Tensor:
    """The bytes of tensors in one row, for a message takes its time whatever is in it."""
    rows = [_bytes_of(tensor).cpu() for tensor in tensors.values()]
    return torch.cat([torch.nn.functional.pad(row, (0, -len(row) % STRIDE)) for row in rows])


def _room_for(shapes: Mapping[str, tuple[str, list[int]]], device: torch.device) -> tuple[Tensor, dict[str, Tensor]]:
    """A row for tensors of these shapes, and the tensors in it."""
    kinds = {name: (getattr(torch, dtype), shape) for name, (dtype, shape) in shapes.items()}
    sizes = {name: dtype.itemsize * math.prod(shape) for name, (dtype, shape) in kinds.items()}
    strides = [-(-size // STRIDE) * STRIDE for size in sizes.values()]
    row = torch.empty(sum(strides), dtype=torch.uint8, device=device)
    parts = zip(kinds.items(), row.split(strides), sizes.values(), strict=True)
    return row, {name: part[:size].view(dtype).view(shape) for (name, (dtype, shape)), part, size in parts}


def _bytes_of(tensor: Tensor) -> Tensor:
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


def world_of(accelerator: Accelerator | None) -> World:
    """The world of a script's Accelerator; without one, or if it is the only process, this process alone.

    Raises:
        ConfigurationError: `accelerator` is something else.
    """
    if accelerator is None:
        return Alone()
    from accelerate import Accelerator

    if not isinstance(accelerator, Accelerator):
        raise ConfigurationError(f"accelerator={accelerator!r} must be an accelerate.Accelerator")
    return Alone() if accelerator.num_processes == 1 else Together(accelerator)


def is_launched() -> bool:
    """Whether `accelerate launch` or torchrun started this process together with others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def join_processes(*, cpu: bool) -> Accelerator:
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


def part_processes(accelerator: Accelerator) -> None:
    """Undo `join_processes`, so that this process is one by itself again."""
    from accelerate.state import AcceleratorState

    accelerator.end_training()
    AcceleratorState._reset_state(reset_partial_state=True)  # the public end leaves its singletons as they were
