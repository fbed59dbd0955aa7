"""The kinds of memory by name, which users add to with `register("memory", NAME, MemoryKind(spec, module))`."""

from agilerl_like.modules.memory_module import MemoryKind
from agilerl_like.modules.recurrent import CELLS, EvolvableLSTM, LSTMSpec
from agilerl_like.modules.transformer import EvolvableTransformer, TransformerSpec
from agilerl_like.registry import Registry, registered

MEMORIES: Registry[MemoryKind] = registered(
    "memory",
    {
        **dict.fromkeys(CELLS, MemoryKind(LSTMSpec, EvolvableLSTM)),
        "transformer": MemoryKind(TransformerSpec, EvolvableTransformer),
    },
)
"""Kinds of memory by the name in `memory_config["cell"]`."""
