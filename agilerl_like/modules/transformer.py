"""The evolvable transformer memory: causal self-attention over the last steps of an episode.

Layers are those of a pre-norm transformer with the output gates of GTrXL (Parisotto et al. 2020, "Stabilizing
Transformers for Reinforcement Learning"): `x + sigmoid(gate(x)) * f(norm(x))`, with f attention or a two-layer MLP. A
layer whose last map is zero changes nothing, so a new layer or head changes no output. Each query attends to its own
step and the `context - 1` steps before it in the same episode; a learned bias for each head and distance gives the
order of the steps (Raffel et al. 2020).

The hidden state is the key-value cache: a vector whose first entry is the number of cached steps, then for each layer
its `context - 1` keys and as many values, oldest first. Acting is a sequence of one step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.modules.evolvable_module import UnitAxes, UnitChange, UnitMaps
from agilerl_like.modules.inplace_mutation import mutation_method
from agilerl_like.modules.layers import LayerNorm, Linear, Residual, affine, default_weights, draw_weights_
from agilerl_like.modules.memory_module import MemoryModule, MemorySpec, UnrolledStates, no_autocast, with_members
from agilerl_like.modules.spec import Arguments, OperatorKind, check_limits, check_range, size_steps

NODE_STEPS = (16, 32, 64)
"""How many units of the MLPs a mutation adds or removes."""
MASKED = -1e9
"""Score of a step that a query does not attend to; finite, because a row of the padding has no other."""
GATE_BIAS = -1.0
"""Initial bias of the gates: each part of a new network adds about a quarter of its output."""


@dataclass(frozen=True)
class TransformerSpec(MemorySpec):
    """The architecture of an `EvolvableTransformer`; sizes are in units."""

    d_model: int = 64
    """Width of the residual stream, and number of outputs; DecisionTransformerInterpretability has 128, and d_mlp 256.
    No mutation changes it."""
    num_heads: int = 4
    """Attention heads of each layer."""
    head_dim: int = 0
    """Units of a head; 0 means d_model / num_heads."""
    d_mlp: int = 128
    """Hidden units of each layer's MLP."""
    num_layers: int = 2
    """Number of layers."""
    context: int = 32
    """Steps that a query attends to, its own included, whatever max_seq_len is; DecisionTransformerInterpretability has
    2 (n_ctx). No mutation changes it."""
    min_heads: int = 1
    """Fewest heads that a mutation may leave."""
    max_heads: int = 8
    """Most heads that a mutation may make."""
    min_d_mlp: int = 16
    """Fewest units of an MLP that a mutation may leave."""
    max_d_mlp: int = 512
    """Most units of an MLP that a mutation may make."""
    min_layers: int = 1
    """Fewest layers that a mutation may leave."""
    max_layers: int = 4
    """Most layers that a mutation may make."""
    init_layers: bool = True
    """Orthogonal initial weights; otherwise uniform in +-1/sqrt(inputs)."""

    OPERATORS: ClassVar[Mapping[str, OperatorKind]] = {
        "add_layer": "layer",
        "remove_layer": "layer",
        "add_head": "node",
        "remove_head": "node",
        "add_node": "node",
        "remove_node": "node",
    }
    BOUNDS: ClassVar[Mapping[str, tuple[str, str]]] = {
        "num_heads": ("min_heads", "max_heads"),
        "d_mlp": ("min_d_mlp", "max_d_mlp"),
        "num_layers": ("min_layers", "max_layers"),
    }
    STACK_FIELDS = ("d_model", "head_dim", "context")
    UNION_FIELDS = ("num_heads", "d_mlp", "num_layers", "max_heads", "max_d_mlp", "max_layers")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_heads", "context"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name}={getattr(self, name)!r} must be at least 1")
        if self.d_model < 2:
            raise ConfigurationError(f"d_model={self.d_model!r} must be at least 2: one normalised number is constant")
        for field, (low, high) in self.BOUNDS.items():
            check_limits(self, low, high)
            check_range(self, field, getattr(self, field), low, high)
        if not self.head_dim:
            if self.d_model % self.num_heads:
                raise ConfigurationError(
                    f"d_model={self.d_model!r} must be a multiple of num_heads={self.num_heads!r}; or set head_dim"
                )
            object.__setattr__(self, "head_dim", self.d_model // self.num_heads)
        if self.head_dim < 1:
            raise ConfigurationError(f"head_dim={self.head_dim!r} must be at least 1")

    @property
    def hidden_state_size(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]  # read-only here
        """Number of outputs."""
        return self.d_model

    @property
    def state_shape(self) -> tuple[int, int]:
        """Vectors K and units H of the key-value cache: the number of steps, then keys and values of each layer."""
        return 1 + self.num_layers * 2 * (self.context - 1), self.num_heads * self.head_dim

    def choices(self, operator: str) -> tuple[Arguments, ...]:
        if operator == "add_layer":
            return ({"layer": self.num_layers},) if self.num_layers < self.max_layers else ()
        if operator == "remove_layer":
            return ({"layer": self.num_layers - 1},) if self.num_layers > self.min_layers else ()
        if operator.endswith("head"):
            limits = self.num_heads, self.min_heads, self.max_heads
            return tuple({"heads": heads} for heads in size_steps(operator, *limits, (1,)))
        limits = self.d_mlp, self.min_d_mlp, self.max_d_mlp
        return tuple({"nodes": nodes} for nodes in size_steps(operator, *limits, NODE_STEPS))

    def apply(self, operator: str, **arguments: int | float | str) -> TransformerSpec:
        if operator not in self.OPERATORS:
            raise unknown_name("operator", operator, self.OPERATORS)
        sign = 1 if operator.startswith("add") else -1
        if operator.endswith("layer"):
            return self.evolve(num_layers=self.num_layers + sign)
        if operator.endswith("head"):
            return self.evolve(num_heads=self.num_heads + sign * int(arguments["heads"]))
        return self.evolve(d_mlp=self.d_mlp + sign * int(arguments["nodes"]))

    def multiply_adds(self, padded: TransformerSpec, inputs: int, num_outputs: int) -> int:
        """Of one step; members without a layer compute it too."""
        width, attention = self.d_model, padded.num_heads * self.head_dim
        layer = 4 * width * attention + 2 * self.context * attention + 2 * width * padded.d_mlp + 2 * width * width
        return inputs * width + padded.num_layers * layer

    @property
    def depth(self) -> int:
        return self.num_layers

    def describe(self) -> str:
        return f"transformer {self.num_layers}x{self.d_model} ({self.num_heads} heads, {self.d_mlp})"


class QKVProjection(nn.Module):
    """Queries, keys and values of all heads: `[P, B, in] -> [P, B, 3 * heads * head_dim]`."""

    def __init__(self, num_inputs: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(default_weights(3, heads, head_dim, num_inputs, fan_in=num_inputs))
        self.bias = nn.Parameter(torch.zeros(3, heads, head_dim))

    @torch.no_grad()
    def reset_(self, generator: torch.Generator, *, orthogonal: bool) -> None:
        """Draw the weights of queries, keys and values, a matrix each; set the biases to zero."""
        for matrix in self.weight:
            draw_weights_(matrix.flatten(0, 1), 1.0, generator, orthogonal=orthogonal)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        *_, heads, units, inputs = self.weight.shape
        rows = 3 * heads * units
        return affine(x, self.weight.reshape(-1, rows, inputs), self.bias.reshape(-1, rows))

    def extra_repr(self) -> str:
        """Return the sizes, for `print`."""
        heads, units, inputs = self.weight.shape[-3:]
        return f"num_inputs={inputs}, {heads=}, head_dim={units}"


class OutputProjection(Residual):
    """The linear map from all heads' outputs to the stream: `[P, B, heads * head_dim] -> [P, B, out]`."""

    def __init__(self, heads: int, head_dim: int, num_outputs: int) -> None:
        super().__init__(heads * head_dim, num_outputs)
        self.weight = nn.Parameter(self.weight.detach().unflatten(-1, (heads, head_dim)))

    def matrix(self) -> Tensor:
        return self.weight.flatten(1)

    def reset_(self, gain: float, generator: torch.Generator, *, orthogonal: bool = True) -> None:
        draw_weights_(self.matrix(), gain, generator, orthogonal=orthogonal)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return affine(x, self.weight.flatten(-2), self.bias * self.present)


class Window(NamedTuple):
    """Which steps each query attends to, the same for all layers: those of its episode."""

    mask: Tensor  # [P, S, 1, N, B, K], 0 or MASKED; N blocks of B queries, each with K = context - 1 + B keys
    length: int  # L

    @classmethod
    def of(cls, begins: Tensor, context: int) -> Window:
        """Return the window of steps `[P, S, L]`, given the step at which the episode of each began.

        The first step has the number 0, and the oldest cached step `1 - context`.
        """
        length, past = begins.shape[-1], context - 1
        block = min(length, context)
        count = -(-length // block)
        keys = torch.arange(-past, count * block, device=begins.device).unfold(0, past + block, block)  # [N, K]
        begins = _padded(begins, -1, count * block).unflatten(-1, (count, block))
        mask = (keys.unsqueeze(1) < begins.unsqueeze(-1)) * MASKED
        return cls(mask.unsqueeze(2), length)


def _padded(x: Tensor, axis: int, length: int) -> Tensor:
    """Return a tensor with zeros at the end of an axis, which has this length then."""
    missing = length - x.shape[axis]
    if not missing:
        return x
    shape = [*x.shape]
    shape[axis] = missing
    return torch.cat([x, x.new_zeros(shape)], axis)


class CachedStates(UnrolledStates):
    """Key-value caches after each step, taken from the keys and values of all steps."""

    def __init__(self, keys_values: Sequence[Tensor], begins: Tensor, past: int, lead: torch.Size) -> None:
        self.keys_values = keys_values  # of each layer, [P, S, 2, past + L, H], from the oldest step of the first cache
        self.past, self.lead = past, lead
        self.counts = (1 + torch.arange(begins.shape[-1], device=begins.device) - begins).clamp(max=past)  # [P, S, L]

    def after(self, steps: Sequence[int]) -> Tensor:
        found = []
        for step in steps:
            recent = [layer[:, :, :, step + 1 : step + 1 + self.past] for layer in self.keys_values]
            found.append(self._joined(self.counts[:, :, step], recent))
        states = torch.stack(found, 2) if len(found) > 1 else found[0].unsqueeze(2)
        return states.view(*self.lead, *states.shape[2:])

    def at(self, member: Tensor, sequence: Tensor, step: Tensor) -> Tensor:
        places = step.unsqueeze(1) + torch.arange(1, 1 + self.past, device=step.device)
        recent = [layer[member.unsqueeze(1), sequence.unsqueeze(1), :, places] for layer in self.keys_values]
        return self._joined(self.counts[member, sequence, step], [its_own.transpose(1, 2) for its_own in recent])

    def _joined(self, counts: Tensor, recent: Sequence[Tensor]) -> Tensor:
        """Return states `[…, K, H]` of each layer's keys and values `[…, 2, past, H]`, zero before the episode."""
        first = F.pad(counts[..., None, None], (0, recent[0].shape[-1] - 1))
        state = torch.cat([first, *(rows for its_own in recent for rows in its_own.unbind(-3))], -2)
        is_cached = (torch.arange(self.past, 0, -1, device=counts.device) <= counts.unsqueeze(-1)).to(state.dtype)
        state[..., 1:, :].unflatten(-2, (2 * len(recent), self.past)).mul_(is_cached[..., None, :, None])
        return state


class TransformerLayer(nn.Module):
    """Gated self-attention, then a gated MLP."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        width, heads, units = spec.d_model, spec.num_heads, spec.head_dim
        self.heads, self.units = heads, units
        self.attention_norm, self.mlp_norm = LayerNorm(width), LayerNorm(width)
        self.qkv = QKVProjection(width, heads, units)
        self.relative_position_bias = nn.Parameter(torch.zeros(heads, spec.context))
        self.output = OutputProjection(heads, units, width)
        self.attention_gate, self.mlp_gate = Linear(width, width), Linear(width, width)
        self.inner = Linear(width, spec.d_mlp)
        self.outer = Residual(spec.d_mlp, width)

    def reset_(self, generator: torch.Generator, *, orthogonal: bool) -> None:
        """Draw initial weights, so that the layer adds something."""
        self.reset_inside_(generator, orthogonal=orthogonal)
        self.output.reset_(1.0, generator, orthogonal=orthogonal)
        self.outer.reset_(1.0, generator, orthogonal=orthogonal)

    def reset_inside_(self, generator: torch.Generator, *, orthogonal: bool) -> None:
        """Draw all weights but those of the maps that add to the stream."""
        self.qkv.reset_(generator, orthogonal=orthogonal)
        self.inner.reset_(2**0.5, generator, orthogonal=orthogonal)
        nn.init.zeros_(self.relative_position_bias)
        for gate in (self.attention_gate, self.mlp_gate):
            nn.init.zeros_(gate.weight)
            nn.init.constant_(gate.bias, GATE_BIAS)
        for norm in (self.attention_norm, self.mlp_norm):
            nn.init.ones_(norm.weight)
            nn.init.zeros_(norm.bias)

    def attend(self, x: Tensor, cache: Tensor, window: Window) -> tuple[Tensor, Tensor]:
        """Return the heads' outputs `[P, S L, H]` for the stream `[P, S L, width]`, and keys and values.

        `cache` `[P, S, 2, context - 1, H]` holds keys and values of the steps before; those of all steps are returned,
        `[P, S, 2, context - 1 + L, H]`.
        """
        *_, count, block, num_keys = window.mask.shape
        projected = self.qkv(self.attention_norm(x)).view(*cache.shape[:2], window.length, 3, -1)
        queries, own = _padded(projected, 2, count * block).split((1, 2), 3)
        keys_values = torch.cat([cache, own.transpose(2, 3)], 3)
        by_head = keys_values.unflatten(-1, (self.heads, self.units)).transpose(3, 4)
        blocks = by_head.unsqueeze(4) if count == 1 else by_head.unfold(4, num_keys, block).transpose(-1, -2)
        keys, values = (its.reshape(-1, num_keys, self.units) for its in blocks.unbind(2))
        queries = queries.reshape(*cache.shape[:2], count, block, self.heads, self.units).movedim(4, 2)
        scores = torch.baddbmm(
            self._biases(window), queries.reshape(-1, block, self.units), keys.transpose(1, 2), alpha=self.units**-0.5
        )
        outputs = torch.bmm(torch.softmax(scores, -1), values).view(queries.shape)
        outputs = outputs.movedim(2, 4).flatten(4).flatten(2, 3)
        return outputs[:, :, : window.length].flatten(1, 2), keys_values

    def _biases(self, window: Window) -> Tensor:
        """Return what is added to the scores, `[P S heads N, B, K]`."""
        *_, block, num_keys = window.mask.shape
        by_distance = F.pad(self.relative_position_bias, (block - 1, block - 1), value=MASKED)
        bias = by_distance.unfold(-1, num_keys, 1).flip(-1)  # [P, heads, B, K], of distance context - 1 + i - j
        return (bias.reshape(-1, 1, self.heads, 1, block, num_keys) + window.mask).flatten(0, 3)

    def forward(self, x: Tensor, cache: Tensor, window: Window) -> tuple[Tensor, Tensor]:
        """Return the stream `[P, S L, width]` after the layer, and keys and values as `attend` does."""
        attended, keys_values = self.attend(x, cache, window)
        x = self.add_attention(x, attended)
        return x + torch.sigmoid(self.mlp_gate(x)) * self.outer(self.hidden(x)), keys_values

    def add_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """Return the stream after the attention."""
        return x + torch.sigmoid(self.attention_gate(x)) * self.output(attended)

    def hidden(self, x: Tensor) -> Tensor:
        """Return the MLP's hidden units."""
        return torch.relu(self.inner(self.mlp_norm(x)))


class EvolvableTransformer(MemoryModule[TransformerSpec]):
    """Transformer layers over the last `spec.context` steps, with `spec.d_model` outputs.

    It computes in the dtype of its weights, under autocast too.
    """

    add_layer = mutation_method("add_layer")
    remove_layer = mutation_method("remove_layer")
    add_head = mutation_method("add_head")
    remove_head = mutation_method("remove_head")
    add_node = mutation_method("add_node")
    remove_node = mutation_method("remove_node")

    def __init__(self, spec: TransformerSpec, inputs: int) -> None:
        super().__init__(spec, inputs)
        self.embedding = Linear(inputs, spec.d_model)
        self.layers = nn.ModuleList(TransformerLayer(spec) for _ in range(spec.num_layers))
        self.norm = LayerNorm(spec.d_model)

    def reset_(self, generator: torch.Generator, *, output_gain: float) -> None:
        """Draw initial weights; the outputs are normalised, so `output_gain` has no effect."""
        self.embedding.reset_(1.0, generator, orthogonal=self.spec.init_layers)
        for layer in self._layers:
            layer.reset_(generator, orthogonal=self.spec.init_layers)

    @property
    def _layers(self) -> tuple[TransformerLayer, ...]:
        return tuple(cast(TransformerLayer, layer) for layer in self.layers)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        outputs, states = self._outputs(x.unsqueeze(-2), None, state)
        return outputs.squeeze(-2), states.after([0]).squeeze(-3)

    def unroll(self, x: Tensor, starts: Tensor, state: Tensor) -> tuple[Tensor, UnrolledStates]:
        return self._outputs(x, starts, state)

    def _outputs(self, x: Tensor, starts: Tensor | None, state: Tensor) -> tuple[Tensor, CachedStates]:
        with no_autocast(x):
            run = self._run(x, starts, state, len(self.layers))
            outputs = self.norm(run.stream).view(*x.shape[:-1], self.num_outputs)
            return outputs, CachedStates(run.keys_values, run.begins, self.spec.context - 1, x.shape[:-2])

    def _run(self, x: Tensor, starts: Tensor | None, state: Tensor, num_layers: int) -> LayerRun:
        """Run the first layers on `[…, S, L, in]`; no episode begins if `starts` is None."""
        x, state = with_members(x, 3).to(state.dtype), with_members(state, 3)
        members, count, length, inputs = x.shape
        begins = -state[:, :, :1, 0].round().clamp(min=0)  # [P, S, 1], what is cached of an episode
        if starts is not None:
            steps = torch.arange(length, device=x.device)
            begins = torch.where(with_members(starts, 2) != 0, steps, begins).cummax(-1).values
        window = Window.of(begins, self.spec.context)
        caches = state[:, :, 1:].view(members, count, len(self.layers), 2, self.spec.context - 1, state.shape[-1])
        caches = caches.unbind(2)  # by layer
        stream = self.embedding(x.reshape(members, count * length, inputs))
        keys_values = []
        for layer, cache in zip(self._layers[:num_layers], caches, strict=False):
            stream, its_own = layer(stream, cache, window)
            keys_values.append(its_own)
        return LayerRun(stream, keys_values, caches, window, begins)

    # -- mutations

    LAYER_LISTS = ("layers",)
    input_consumers = ("embedding",)

    def unit_axes(self) -> UnitAxes:
        axes: UnitAxes = {"embedding.weight": ("out", "in"), "embedding.bias": ("out",)}
        for i in range(self.spec.num_layers):
            own, heads, hidden = f"layers.{i}", f"heads{i}", f"hidden{i}"
            axes |= {f"{own}.qkv.weight": ("", heads, "", "out"), f"{own}.qkv.bias": ("", heads, "")}
            axes |= {f"{own}.relative_position_bias": (heads, ""), f"{own}.output.weight": ("out", heads, "")}
            axes |= {f"{own}.inner.weight": (hidden, "out"), f"{own}.inner.bias": (hidden,)}
            axes |= {f"{own}.outer.weight": ("out", hidden)}
        return axes

    def unit_change(self, operator: str, arguments: Arguments) -> UnitChange:
        """Heads and hidden units change in all layers alike."""
        if operator.endswith("layer"):
            return UnitChange(refits_output=operator == "remove_layer")
        group, reader = ("heads", "output") if operator.endswith("head") else ("hidden", "outer")
        amount = int(arguments.get("heads", arguments.get("nodes", 0)))
        layers = range(self.spec.num_layers)
        if operator.startswith("add"):
            return UnitChange({f"{group}{i}": amount for i in layers})
        consumers = tuple((f"layers.{i}.{reader}", f"layers.{i}.{reader}") for i in layers)
        return UnitChange({f"{group}{i}": -amount for i in layers}, consumers=consumers)

    def init_new_layer_(self, operator: str, arguments: Arguments, generator: torch.Generator) -> None:
        """A new layer attends and computes, and adds nothing."""
        if operator == "add_layer":
            layer = self._layers[int(arguments["layer"])]
            layer.reset_inside_(generator, orthogonal=self.spec.init_layers)
            for parameter in (*layer.output.parameters(), *layer.outer.parameters()):
                nn.init.zeros_(parameter)

    def layer_input(self, name: str, x: Tensor) -> Tensor:
        """`x` are sequences `[S, L, in]` that each begin an episode, or first steps `[n, in]`."""
        x = x if x.dim() == 3 else x.unsqueeze(1)
        if name == "embedding":
            return x.flatten(0, 1)
        number, reader = name.split(".")[1:]
        starts, state = x.new_zeros(x.shape[:2]), x.new_zeros(len(x), *self.state_shape)
        run = self._run(x[None], starts[None], state[None], int(number))
        layer = self._layers[int(number)]
        attended, _ = layer.attend(run.stream, run.caches[int(number)], run.window)
        return (attended if reader == "output" else layer.hidden(layer.add_attention(run.stream, attended)))[0]

    @staticmethod
    def transfer_state(state: Tensor, old: TransformerSpec, new: TransformerSpec, maps: UnitMaps) -> Tensor:
        """Return the key-value caches; those of new heads and layers are zero."""
        result = state.new_zeros(*state.shape[:-2], *new.state_shape)
        result[..., 0, 0] = state[..., 0, 0]
        rows = 2 * (new.context - 1)
        for layer in range(min(old.num_layers, new.num_layers)):
            here = slice(1 + layer * rows, 1 + (layer + 1) * rows)
            heads = maps.get(f"heads{layer}", torch.arange(old.num_heads)).to(state.device)
            cache = state[..., here, :].unflatten(-1, (old.num_heads, old.head_dim))
            kept = cache.index_select(-2, heads.clamp(min=0)) * (heads >= 0).unsqueeze(-1)
            result[..., here, :] = kept.flatten(-2)
        return result


class LayerRun(NamedTuple):
    """What the first layers computed."""

    stream: Tensor  # [P, S L, width]
    keys_values: list[Tensor]  # of each layer, [P, S, 2, context - 1 + L, H]
    caches: tuple[Tensor, ...]  # of every layer before the first step, [P, S, 2, context - 1, H]
    window: Window
    begins: Tensor  # [P, S, L], the step at which the episode of each step began
