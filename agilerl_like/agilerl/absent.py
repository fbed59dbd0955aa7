"""AgileRL's names that have no counterpart here, each with the reason that an ImportError states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any, NoReturn

OFF_POLICY = (
    "of AgileRL's off-policy algorithms only DQN is here; agilerl_like has TD3 and DDPG with other arguments, and SAC"
)
REPLAY = "train_off_policy has a replay of its own, without priorities; DQN(n_step=…) sets n-step returns"
ALGORITHMS = "DQN, PPO and IPPO have AgileRL's arguments, and agilerl_like has other algorithms with its own"
BANDIT = f"contextual bandits are not implemented; {ALGORITHMS}"
OFFLINE = f"offline learning is not implemented; {ALGORITHMS}"
LLM = f"training of language models is not implemented; {ALGORITHMS}"
CLOUD = "AgileRL's cloud service has no counterpart"
SEARCH = "AgileRL's class is not available; agilerl_like.hpo.MultiFrequencySelection, with other arguments, is"
TRAINER = "use train_on_policy, or a YAML file and `agilerl-like train FILE`"
LOGGERS = "train_on_policy(run_dir=…, tensorboard=True, wb=True) logs, and `agilerl_like.reporting` has the reporters"
PLOTS = "train_on_policy(run_dir=…) and `agilerl-like plot RUN` draw the fitness of a population"
MUTATION_METHODS = (
    "a module of one's own is an EvolvableModule of agilerl_like.modules (a frozen spec and what it builds), not a "
    "class with @mutation methods"
)
MEMORY = (
    "a recurrent network is PPO(recurrent=True), with memory_config; its module is agilerl_like.modules.EvolvableLSTM"
)
PROBES = "`agilerl-like probe` trains an algorithm in agilerl_like.envs.probe_envs, whose answers are known"
OWN_ALGORITHM = (
    "an algorithm of one's own subclasses agilerl_like.algorithms.rl_algorithm.RLAlgorithm, as in "
    "tutorials/own_algorithm.py; its learner has one optimizer for all members"
)
TYPES = "AgileRL's protocols annotate its own classes; use the classes of agilerl_like as annotations"
POPULATION = "use create_population, or PPO.population(size=…, …)"
TEAMS = "train_multi_agent_on_policy trains teams of IPPO; AgileRL's off-policy algorithms of teams are not available"
MODULES = "agilerl_like.agilerl.modules has EvolvableMLP, EvolvableCNN, EvolvableResNet and EvolvableSimBa"
WHOLE_NETWORKS = "the encoder and heads are described by net_config, or whole networks given as actor_network"

REASONS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("RainbowDQN", "DDPG", "TD3", "MADDPG", "MATD3", "train_multi_agent_off_policy"), OFF_POLICY),
        **dict.fromkeys(("dqn_rainbow", "ddpg", "td3", "maddpg", "matd3"), OFF_POLICY),
        **dict.fromkeys(("multi_agent_replay_buffer", "MultiAgentReplayBuffer"), OFF_POLICY),
        **dict.fromkeys(("PrioritizedReplayBuffer", "segment_tree", "group_replay"), REPLAY),
        **dict.fromkeys(("replay_data", "ReplayDataset"), REPLAY),
        **dict.fromkeys(("QNetwork", "RainbowQNetwork", "ContinuousQNetwork", "q_networks"), WHOLE_NETWORKS),
        **dict.fromkeys(("DeterministicActor", "GumbelSoftmax"), WHOLE_NETWORKS),
        **dict.fromkeys(("NeuralTS", "NeuralUCB", "BanditEnv", "train_bandits"), BANDIT),
        **dict.fromkeys(("neural_ts_bandit", "neural_ucb_bandit"), BANDIT),
        **dict.fromkeys(("CQN", "cqn", "train_offline", "minari_utils"), OFFLINE),
        **dict.fromkeys(("GRPO", "DPO", "SFT", "CISPO", "GSPO", "LLMPPO", "LLMREINFORCE", "ILQL", "BC_LM"), LLM),
        **dict.fromkeys(("grpo", "dpo", "sft", "cispo", "gspo", "ppo_llm", "reinforce_llm", "ilql", "bc_lm"), LLM),
        **dict.fromkeys(("train_llm", "llm", "llm_utils", "llm_envs", "ilql_utils", "lora", "architectures"), LLM),
        **dict.fromkeys(("EvolvableGPT", "EvolvableBERT", "gpt", "bert", "probe_envs_llm", "LLMAlgorithm"), LLM),
        **dict.fromkeys(("arena", "ArenaTrainer"), CLOUD),
        **dict.fromkeys(("MultiFrequencySelection", "MultiFrequencyOp", "multi_frequency"), SEARCH),
        **dict.fromkeys(("LocalTrainer", "trainer", "train", "models", "builders", "strategies", "AgentType"), TRAINER),
        **dict.fromkeys(("logger", "metrics", "init_loggers", "init_wandb", "log_utils", "population"), LOGGERS),
        **dict.fromkeys(("default_progress_bar", "finish_training_run"), LOGGERS),
        "plot_population_score": PLOTS,
        **dict.fromkeys(("probe_envs", "probe_envs_ma"), PROBES),
        **dict.fromkeys(("OptimizerWrapper", "optimizer_wrapper", "core.wrappers"), OWN_ALGORITHM),
        **dict.fromkeys(("RLAlgorithm", "MultiAgentRLAlgorithm", "NetworkGroup"), OWN_ALGORITHM),
        "protocols": TYPES,
        "initialPopulation": POPULATION,
        "train_multi_agent": TEAMS,
        **dict.fromkeys(("evolvable_mlp", "evolvable_cnn"), MODULES),
        **dict.fromkeys(
            ("mutation", "MutationType", "EvolvableWrapper", "ModuleDict", "DummyEvolvable"), MUTATION_METHODS
        ),
        **dict.fromkeys(
            ("custom_components", "EvolvableCnnLstm", "cnn_lstm", "dummy", "to_evolvable"), MUTATION_METHODS
        ),
        **dict.fromkeys(("custom_modules", "distributions", "evolvable_networks"), WHOLE_NETWORKS),
        **dict.fromkeys(("EvolvableLSTM", "lstm"), MEMORY),
        **dict.fromkeys(("EvolvableMultiInput", "multi_input"), WHOLE_NETWORKS),
    }
)
"""The reason for each name, of a module or of something in one; with the module that it is in, if others have it."""


def refuse(module_name: str, name: str) -> NoReturn:
    """Raise the ImportError for a name that is not in a module of this package."""
    parent = module_name.rpartition(".")[2]
    unknown = "it has no counterpart, or no such name is in AgileRL 2.58"
    reason = REASONS.get(f"{parent}.{name}") or REASONS.get(name, unknown)
    raise ImportError(f"{module_name}.{name} is not available: {reason}", name=f"{module_name}.{name}")


def absent_from(module_name: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module of this package: an ImportError for a name in `REASONS`."""

    def load(name: str) -> Any:
        if name not in REASONS:  # as hasattr and pickle expect it
            raise AttributeError(f"module {module_name!r} has no attribute {name!r}")
        refuse(module_name, name)

    return load


class AbsentFinder(MetaPathFinder):
    """Refuses modules of AgileRL that are not here, with the reason in place of a bare ModuleNotFoundError."""

    def __init__(self, package: str) -> None:
        self._package = f"{package}."

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find only modules of this package."""
        if fullname.startswith(self._package):
            module_name, _, name = fullname.rpartition(".")
            refuse(module_name, name)
        return None
