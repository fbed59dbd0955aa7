"""IPPO: groups of agents, their rows, and the probes that each agent must solve."""

from dataclasses import replace
from types import SimpleNamespace

import game_envs as games
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from slow_cases import with_slow
from small_runs import SMALL
from torch import nn

from agilerl_like import (
    CheckpointError,
    Choice,
    HyperparameterConfig,
    Mutations,
    RLParameter,
    TournamentSelection,
    train_multi_agent_on_policy,
)
from agilerl_like.agilerl.algorithms import ippo as agilerl_ippo
from agilerl_like.algorithms.agent_groups import group_of
from agilerl_like.algorithms.evaluation import Episodes
from agilerl_like.algorithms.evolvable_algorithm import genome_from_json, genome_to_json
from agilerl_like.algorithms.ippo import IPPO, MultiAgentPopulation
from agilerl_like.algorithms.ppo_config import PPOConfig
from agilerl_like.envs.multi_agent.pettingzoo import make_multi_agent_vect_envs
from agilerl_like.envs.multi_agent.probe_envs import MULTI_AGENT_PROBES
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentVecEnvAdapter
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import Mutation, Offspring, WeightMix
from agilerl_like.learning.ppo_update import HYPERPARAM_NAMES
from agilerl_like.training.collector import PhaseTimer
from agilerl_like.training.multi_agent_env_setup import MultiAgentCollector
from agilerl_like.training.probe import solve

SEES, HEARS = Box(-1, 1, (3,)), Box(-1, 1, (5,))
OBSERVED = {"speaker_0": SEES, "listener_0": HEARS, "listener_1": HEARS}
ACTED = {"speaker_0": Discrete(3), "listener_0": Box(-1, 1, (2,)), "listener_1": Box(-1, 1, (2,))}


def a_team(index=0, **more):
    ranges = HyperparameterConfig(lr=RLParameter(1e-4, 1e-2), learn_step=RLParameter(32, 128, dtype=int))
    return IPPO(
        OBSERVED, ACTED, index=index, seed=3, num_envs=4, learn_step=64, hp_config=ranges, net_config=SMALL, **more
    )


SHARE = {
    **dict.fromkeys(("SightAndTouch", "ActionMask", "SeveralChoices", "OwnReward"), 0.35),
    **dict.fromkeys(("DiscountedReward", "LateAppearance"), 0.5),
    **dict.fromkeys(("ActionByObservation", "EarlyDeath"), 0.7),
}
"""The share of a probe's steps after which the answers of two seeds were at most 0.6 of the tolerance off; else 1."""


@pytest.mark.parametrize(
    "name", with_slow(MULTI_AGENT_PROBES, "SittingOut", "EarlyDeath", "SightAndTouch", "ActionByObservation")
)
def test_every_agent_solves_its_probe(name):
    probe = MULTI_AGENT_PROBES[name]
    record = solve(replace(probe, steps=round(probe.steps * SHARE.get(name, 1.0))))
    assert {answer.agent for answer in record.answers} == set(MULTI_AGENT_PROBES[name].roles)
    for answer in record.answers:
        assert answer.is_correct, answer


def test_agents_of_a_group_share_a_learner_with_all_their_rows():
    team = a_team()
    assert dict(team.groups) == {"speaker": ("speaker_0",), "listener": ("listener_0", "listener_1")}
    assert team.learner_of("listener_0") is team.learner_of("listener_1") is team.learners["listener"]
    assert [learner.rollout_rows for learner in team.learners.values()] == [64, 128]
    assert [learner.rows_per_step for learner in team.learners.values()] == [4, 8]
    assert {learner.rollout_steps for learner in team.learners.values()} == {16}
    team.learn_step, team.lr = 32, 5e-3
    assert [learner.rollout_rows for learner in team.learners.values()] == [32, 64]
    assert {learner.settings()["lr"] for learner in team.learners.values()} == {5e-3}
    assert not torch.equal(
        team.learners["speaker"].network.critic.head.linears[0].weight,
        team.learners["listener"].network.critic.head.linears[0].weight,
    )


@pytest.mark.parametrize(("name", "group"), [("speaker_0", "speaker"), ("adversary_12", "adversary"), ("red", "red")])
def test_the_default_group_is_the_name_without_its_number(name, group):
    assert group_of(name) == group


def test_groups_can_be_set():
    team = IPPO(OBSERVED, ACTED, groups={"listener_1": "rear"}, net_config={"rear": {"latent_dim": 24}, **SMALL})
    assert dict(team.groups) == {"speaker": ("speaker_0",), "listener": ("listener_0",), "rear": ("listener_1",)}
    assert [learner.architecture.latent_dim for learner in team.learners.values()] == [16, 16, 24]


def test_an_architecture_mutation_changes_one_group_and_names_it():
    team = a_team()
    before = team.architecture
    operators = before.operators("node")
    assert {operator.split(".")[0] for operator in operators} == {"speaker", "listener"}
    rng = np.random.default_rng(0)
    operator = "listener.encoder.add_node"
    changed, arguments = before.mutate(operator, rng)
    assert changed.of("speaker") == before.of("speaker")
    mutation = Mutations(no_mutation=0, architecture=1, parameters=0, rl_hp=0, new_layer_prob=0)
    child = team.clone(index=7)
    child.mutate(mutation, rng)
    assert child.index == 7
    assert child.mut.split(".")[0] in ("speaker", "listener")
    unchanged = "listener" if child.mut.startswith("speaker") else "speaker"
    assert child.architecture.of(unchanged) == before.of(unchanged)
    assert child.architecture != before
    assert team.architecture == before
    assert arguments


def test_frozen_groups_of_offspring_keep_their_weights():
    team = a_team(frozen_groups=["listener"])
    stds = HyperparameterConfig(action_std_init=RLParameter(-2.0, 0.5, scale="linear"))
    team.hp_config = stds
    with torch.no_grad():
        for parameter in team.learners["listener"].network.parameters():
            parameter.fill_(0.25)  # as if it had been trained before

    def weights(one, group):
        return torch.cat([x.flatten() for x in one.learners[group].network.state_dict().values()])

    step = Mutation("rl_hp", "step", {"action_std_init": (0.0, -1.0)})
    genome = team.genome.replace(hyperparameters={**team.genome.hyperparameters, "action_std_init": -1.0})
    for start in (WeightMix(), WeightMix(0.2, 0.1), None):
        parent_uid = -1 if start is not None and start.is_fresh else 0
        child, _ = team.make_offspring(Offspring(1, 0, 7, parent_uid, 0, genome, (step,), start))
        assert torch.equal(weights(child, "listener"), weights(team, "listener"))
        assert torch.equal(weights(child, "speaker"), weights(team, "speaker")) == (start is None)
    assert child.action_std_init == -1.0


def test_offspring_have_the_recorded_hyperparameters():
    team = a_team()
    genome = team.genome.replace(hyperparameters={**team.genome.hyperparameters, "learn_step": 100, "lr": 3e-3})
    child, _ = team.make_offspring(Offspring(1, 0, 9, 0, 0, genome))
    assert (child.learn_step, child.lr) == (100, 3e-3)
    assert [learner.rollout_rows for learner in child.learners.values()] == [100, 200]
    assert child.genome == genome
    assert genome_from_json(child, genome_to_json(genome)) == genome


TRIO = ["agent_0", "agent_1", "agent_2"]


@pytest.mark.parametrize("more", [{}, {"batch_size": RLParameter(32, 384)}])
def test_a_minibatch_may_be_as_large_as_the_rollout_of_a_group(more):
    """128 steps of three agents are 384 rows, so batch_size 256 is kept when another hyperparameter changes."""
    settings = {
        "learn_step": 128,
        "batch_size": 256,
        "seed": 1,
        "hp_config": HyperparameterConfig(lr=RLParameter(1e-4, 1e-2), **more),
    }
    team = IPPO(dict.fromkeys(TRIO, SEES), dict.fromkeys(TRIO, Discrete(3)), **settings)
    mended = team.repair({**team.genome.hyperparameters, "lr": 1e-3})
    assert (mended["batch_size"], mended["learn_step"]) == (256, 128)
    teams = IPPO.population(
        2, dict.fromkeys(TRIO, SEES), dict.fromkeys(TRIO, Discrete(3)), sample_hyperparameters=True, **settings
    )
    assert teams[0].lr != teams[1].lr


def test_a_saved_and_loaded_team_continues_bit_identically(tmp_path):
    probe = MULTI_AGENT_PROBES["OwnObservation"]

    def lived(teams):
        env = make_multi_agent_vect_envs(probe.make, 4, backend="sync")
        collector = MultiAgentCollector(teams, MultiAgentVecEnvAdapter(env), PhaseTimer(("env", "act", "learn")))
        collector.reset(range(len(teams)))
        for _ in range(40):
            collector.collect(1)
            collector.learn()
        env.close()
        return teams

    with_spaces = make_multi_agent_vect_envs(probe.make, 2, backend="sync")
    spaces = with_spaces.single_observation_spaces, with_spaces.single_action_spaces
    teams = lived(
        MultiAgentPopulation(
            [IPPO(*spaces, index=i, seed=1, num_envs=2, learn_step=16, batch_size=8) for i in range(2)]
        )
    )
    loaded = MultiAgentPopulation.load(teams.save_checkpoint(tmp_path / "teams"))
    assert [dict(team.groups) for team in loaded] == [dict(team.groups) for team in teams]
    teams.reset_noise()
    for mine, theirs in zip(lived(teams), lived(loaded), strict=True):
        (document, tensors), (other, their_tensors) = mine.to_documents(), theirs.to_documents()
        assert other == document
        assert their_tensors.keys() == tensors.keys()
        assert all(torch.equal(their_tensors[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"action_spaces": {**ACTED, "listener_1": Discrete(2)}}, "listener_1.*group 'listener'.*equal spaces"),
        ({"observation_spaces": {**OBSERVED, "stranger_0": SEES}, "agent_ids": list(OBSERVED)}, "stranger_0"),
        ({"action_spaces": {"speaker_0": Discrete(3)}}, "lacks"),
        ({"observation_spaces": list(OBSERVED.values())}, "agent_ids is missing"),
        ({"groups": {"speaker_9": "speaker"}}, "speaker_9.*speaker_0"),
        ({"groups": {"speaker_0": "a.b"}}, "without dots"),
        ({"groups": ["speaker_0"]}, r"groups=\['speaker_0'\] must be a mapping"),
        ({"frozen_groups": None}, "frozen_groups=None; allowed is a list of names"),
        ({"frozen_groups": [3]}, r"frozen_groups=\[3\]; allowed is a list of names"),
        ({"agent_ids": 3}, "agent_ids=3; allowed is a list of names"),
        ({"state_space": 3}, "state_space=3; allowed are spaces of gymnasium"),
        (
            {"net_config": {"listner": {"latent_dim": 8}}},
            "net_config key='listner' is unknown; did you mean 'listener'",
        ),
        ({"net_config": {"listener": 8}}, "net_config.listener=8 must be a mapping"),
        ({"net_config": 8}, "net_config=8 must be a mapping"),
        ({"learning_rate": 1.0}, "learning_rate"),
        ({"lr": -1.0}, "lr=-1.0"),
        ({"lr": {"speakr": 3e-3}}, "^lr group='speakr' is unknown; did you mean 'speaker'"),
    ],
)
def test_invalid_arguments_are_named(arguments, message):
    given = {"observation_spaces": OBSERVED, "action_spaces": ACTED, **arguments}
    with pytest.raises(ConfigurationError, match=message):
        IPPO(given.pop("observation_spaces"), given.pop("action_spaces"), **given)


def test_agilerls_calls_are_taken():
    spaces = {"a_0": Box(-1, 1, (3,)), "b_0": Box(-1, 1, (3,))}
    acts = dict.fromkeys(spaces, Discrete(2))
    others = {"actor_networks": None, "critic_networks": None, "action_batch_size": 64, "torch_compiler": None}
    teams = IPPO.population(
        size=2, observation_space=spaces, action_space=acts, seed=0, mut="bought", wrap=False, **others
    )
    assert [team.mut for team in teams] == ["bought"] * 2
    with pytest.raises(ConfigurationError, match="observation_spaces or observation_space must be given"):
        IPPO.population(2, action_space=acts)
    with pytest.raises(ConfigurationError, match="only one of them; found are 2"):
        IPPO.population(2, spaces, acts, observation_space=spaces)


class Small(nn.Module):
    """A network of one's own."""

    def __init__(self, outputs, inputs=3):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs))

    def forward(self, x):
        return self.layers(x)


def own_networks():
    return {"actor_networks": {"listener": Small(2)}, "critic_networks": {"listener_1": Small(1)}}


def own_team(cls=IPPO, **more):
    spaces = {"speaker_0": SEES, "listener_0": Box(-1, 1, (3,)), "listener_1": Box(-1, 1, (3,))}
    acts = dict.fromkeys(spaces, Discrete(2))
    given = {"seed": 0, "learn_step": 16, "batch_size": 8, **own_networks(), **more}
    return cls(spaces, acts, **given)


def test_groups_may_have_networks_of_the_user(tmp_path):
    """Given by group or by agent; they are cloned, mutated, saved and loaded, and other groups have ours."""
    own = own_networks()
    team = own_team(**own)
    assert isinstance(team.actors["listener"].encoder.net, Small)
    assert not isinstance(getattr(team.actors["speaker"].encoder, "net", None), Small)
    seen = torch.rand(4, 3)
    torch.testing.assert_close(team.actors["listener"].encoder.net(seen), own["actor_networks"]["listener"](seen))
    changed = team.clone(index=1)
    changed.mutate(
        Mutations(no_mutation=0, architecture=0, parameters=1, activation=0, rl_hp=0), np.random.default_rng(3)
    )
    assert isinstance(changed.actors["listener"].encoder.net, Small)
    assert not torch.equal(changed.actors["listener"].encoder.net(seen), team.actors["listener"].encoder.net(seen))
    team.save_checkpoint(tmp_path / "team")
    loaded = IPPO.load(tmp_path / "team", **own_networks())
    torch.testing.assert_close(loaded.actors["listener"].encoder.net(seen), team.actors["listener"].encoder.net(seen))
    with pytest.raises(CheckpointError, match="networks of the user"):
        IPPO.load(tmp_path / "team")


def test_a_population_of_teams_with_networks_of_the_user_is_loaded(tmp_path):
    teams = MultiAgentPopulation([own_team(), own_team(index=1)])
    path = teams.save_checkpoint(tmp_path / "teams")
    loaded = MultiAgentPopulation.load(path, **own_networks())
    seen = torch.rand(4, 3)
    for team, its in zip(teams, loaded, strict=True):
        torch.testing.assert_close(its.actors["listener"].encoder.net(seen), team.actors["listener"].encoder.net(seen))
    with pytest.raises(CheckpointError, match=r"of a team as actor_networks and critic_networks, to load\(\)"):
        MultiAgentPopulation.load(path)
    with pytest.raises(ConfigurationError, match="recurrent=True cannot go with actor_networks and critic_networks"):
        own_team(recurrent=True)
    (path / "member-000.json").write_text("{}")
    with pytest.raises(CheckpointError):
        MultiAgentPopulation.load(path, **own_networks())


def test_returns_of_groups_are_means_of_the_episodes_that_were_not_lost(monkeypatch):
    team = IPPO(OBSERVED, ACTED, seed=0)
    lost = np.array([[False, True, False]])
    by_agent = {agent: np.array([[1.0, 50.0, 2.0]]) * (i + 1) for i, agent in enumerate(OBSERVED)}
    episodes = Episodes(sum(by_agent.values()), np.ones((1, 3), int), lost, returns_by_agent=by_agent)
    monkeypatch.setattr(team, "_run_test", lambda *arguments: episodes)
    monkeypatch.setattr("agilerl_like.algorithms.ippo.MultiAgentVecEnvAdapter", lambda env: SimpleNamespace(env=env))
    monkeypatch.setattr("agilerl_like.algorithms.ippo.single_env_vector", lambda env: env)
    wanted = [1.5 * sum([*OBSERVED].index(agent) + 1 for agent in agents) for agents in team.groups.values()]
    assert team.test(None, sum_scores=False).tolist() == wanted


def test_agilerls_ippo_takes_networks_by_agent():
    networks = {"listener_0": Small(2)}
    networks["listener_1"] = networks["listener_0"]
    team = own_team(agilerl_ippo.IPPO, actor_networks=networks, num_envs=1)
    assert isinstance(team.actors["listener"].encoder.net, Small)


def test_a_population_with_networks_of_the_user_learns_and_evolves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = make_multi_agent_vect_envs(games.Sacrifice, 2, backend="sync")
    spaces = env.single_observation_spaces, env.single_action_spaces
    own = {"actor_networks": {"a": Small(2, 5)}, "critic_networks": {"a": Small(1, 5)}}
    teams = IPPO.population(2, *spaces, num_envs=2, learn_step=32, batch_size=16, seed=1, **own)
    before = [parameter.clone() for parameter in teams[0].actors["a"].encoder.net.parameters()]
    trained, _ = train_multi_agent_on_policy(
        env,
        pop=teams,
        max_steps=128,
        evo_steps=64,
        verbose=False,
        selection_strategy=TournamentSelection(2),
        mutation=Mutations(architecture=0.5, rl_hp=0.2),
    )
    after = trained[0].actors["a"].encoder.net.parameters()
    assert any(not torch.equal(now, old) for now, old in zip(after, before, strict=True))


@pytest.mark.parametrize(
    ("networks", "message"),
    [
        ({"actor_networks": [Small(2)]}, r"(?s)actor_networks=.*allowed is a mapping of groups or agents"),
        ({"actor_networks": {"singer": Small(2)}}, "actor_networks key='singer' is unknown"),
        ({"actor_networks": {"listener_0": Small(2), "listener_1": Small(2)}}, "share a network"),
        ({"critic_networks": None}, "networks of group 'listener': critic_network=None must be an nn.Module"),
        ({"actor_networks": {"listener": Small(5)}}, r"actor_network=Small gives \(2, 5\) for 2 observations"),
        ({"net_config": {"listener": {"latent_dim": 4}}}, r"net_config={'listener': {'latent_dim': 4}} has no effect"),
    ],
)
def test_wrong_networks_of_a_team_are_named(networks, message):
    with pytest.raises(ConfigurationError, match=message):
        own_team(**networks)


def test_an_adapted_rate_has_the_factor_of_its_group():
    team = a_team(lr=1e-4, lr_schedule="kl", group_factors={"lr": {"speaker": 10.0}})
    for learner in team.learners.values():
        learner.moments.lr_scale[0] = 1.5
    rates = {group: learner.adapted_lr for group, learner in team.learners.items()}
    assert rates == {"speaker": pytest.approx(1.5e-3), "listener": pytest.approx(1.5e-4)}


def test_at_the_limits_adapted_rates_of_groups_keep_their_ratio():
    team = a_team(lr=1e-3, lr_schedule="kl", group_factors={"lr": {"speaker": 20.0}}, lr_min=1e-4, lr_max=1e-2)
    for scale, rate in ((1.0, 1e-3), (50.0, 1e-2), (0.01, 1e-4)):
        for learner in team.learners.values():
            learner.moments.lr_scale[0] = scale
        rates = {group: learner.adapted_lr for group, learner in team.learners.items()}
        assert rates == {"speaker": pytest.approx(20 * rate), "listener": pytest.approx(rate)}


def test_values_of_numpy_by_group_are_numbers():
    team = a_team(lr={"speaker": np.float64(1e-3)})
    assert type(team.group_factors["lr"]["speaker"]) is float


def test_hyperparameters_may_differ_by_group():
    team = a_team(lr={"speaker": 1e-3}, ent_coef={"listener": 0.05})
    names = HYPERPARAM_NAMES.index("lr"), HYPERPARAM_NAMES.index("ent_coef")

    def found(team):
        return {group: [its.hyperparams()[place] for place in names] for group, its in team.learners.items()}

    assert team.lr == PPOConfig.lr
    wanted = {"speaker": [1e-3, PPOConfig.ent_coef], "listener": [PPOConfig.lr, 0.05]}
    for one in (team, team.clone(), IPPO.from_documents(*team.to_documents(), device="cpu", where="memory")):
        assert found(one) == {group: pytest.approx(its) for group, its in wanted.items()}
    team.lr = 2 * PPOConfig.lr  # as evolution sets it
    assert found(team)["speaker"][0] == pytest.approx(2e-3)
    same = a_team(group_factors={"lr": {"speaker": 10.0}, "ent_coef": {"listener": 5.0}})
    assert found(same) == {group: pytest.approx(its) for group, its in wanted.items()}
    for wrong, message in (
        ({"lr": {"singer": 1e-3}}, "^lr group='singer' is unknown"),
        ({"lr": {"speaker": -1.0}}, "lr=-1.0"),
        ({"gamma": {"speaker": 0.9}}, "gamma=.*values by group are allowed for lr, ent_coef"),
        ({"group_factors": {"gamma": {"speaker": 0.9}}}, "group_factors key='gamma' is unknown"),
        ({"group_factors": {"lr": {"speaker": 0}}}, "group_factors.lr.speaker=0 must be a positive number"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            a_team(**wrong)


@pytest.mark.parametrize("sample", [False, True])
def test_values_by_group_need_no_default_inside_the_range(sample):
    ranges = HyperparameterConfig(lr=RLParameter(3e-4, 1e-2), ent_coef=Choice([0.0, 0.1, 0.01]))
    given = {"lr": {"speaker": 1e-3, "listener": 2e-3}, "ent_coef": {"speaker": 0.02}}
    teams = IPPO.population(
        2, OBSERVED, ACTED, seed=3, net_config=SMALL, hp_config=ranges, sample_hyperparameters=sample, **given
    )
    rates = [learner.hyperparams()[HYPERPARAM_NAMES.index("lr")] for learner in teams[0].learners.values()]
    assert rates == pytest.approx([1e-3, 2e-3])
    assert all(3e-4 <= team.lr <= 1e-2 for team in teams)
    one = IPPO(OBSERVED, ACTED, net_config=SMALL, hp_config=ranges, lr={"listener": 2e-3})
    rates = [learner.hyperparams()[HYPERPARAM_NAMES.index("lr")] for learner in one.learners.values()]
    assert rates == pytest.approx([3e-4, 2e-3])
    choices = HyperparameterConfig(ent_coef=Choice([0.0, 0.1]))
    with pytest.raises(ConfigurationError, match=r"ent_coef=0\.01 is none of its choices"):
        IPPO(OBSERVED, ACTED, net_config=SMALL, hp_config=choices, ent_coef={"speaker": 0.02})


def test_groups_without_a_value_have_that_of_the_preset():
    team = a_team(preset="sb3", lr={"speaker": 1e-3}, ent_coef={"speaker": 0.02})
    names = HYPERPARAM_NAMES.index("lr"), HYPERPARAM_NAMES.index("ent_coef")
    found = {group: [its.hyperparams()[place] for place in names] for group, its in team.learners.items()}
    assert found == {"speaker": pytest.approx([1e-3, 0.02]), "listener": pytest.approx([3e-4, 0.0])}  # SB3's


@pytest.mark.parametrize("name", ["ent_coef", "vf_coef"])
def test_a_coefficient_of_a_group_may_be_zero(name):
    team = a_team(**{name: {"speaker": 0.0}})
    place = HYPERPARAM_NAMES.index(name)
    found = {group: its.hyperparams()[place] for group, its in team.learners.items()}
    assert found == {"speaker": 0.0, "listener": pytest.approx(getattr(PPOConfig, name))}
    with pytest.raises(ConfigurationError, match=f"group_factors.{name}.speaker=-1 must be 0 or a positive number"):
        a_team(group_factors={name: {"speaker": -1}})


def test_a_trained_team_predicts_single_observations_and_batches():
    spaces = {"a_0": Box(-1, 1, (3,)), "a_1": Box(-1, 1, (3,)), "b_0": Box(-1, 1, (2,))}
    bounds = {"a_0": Box(-0.1, 0.1, (2,)), "a_1": Box(-0.1, 0.1, (2,)), "b_0": Discrete(3)}
    team = IPPO(spaces, bounds, seed=0, net_config=SMALL, agent_id_one_hot=True)
    batch = {agent: np.random.default_rng(0).uniform(-1, 1, (4, *space.shape)) for agent, space in spaces.items()}
    sampled, _ = team.predict(batch)
    assert np.abs(sampled["a_0"]).max() == pytest.approx(0.1)  # clipped
    best, states = team.predict(batch, deterministic=True)
    assert {agent: action.shape for agent, action in best.items()} == {"a_0": (4, 2), "a_1": (4, 2), "b_0": (4,)}
    assert states == dict.fromkeys(spaces)
    single, _ = team.predict({agent: rows[2] for agent, rows in batch.items()}, deterministic=True)
    for agent, action in single.items():
        np.testing.assert_allclose(action, best[agent][2], rtol=1e-5)
        assert bounds[agent].contains(action)
    masked, _ = team.predict(batch, action_masks={"b_0": np.array([[False, True, False]] * 4)})
    assert masked["b_0"].tolist() == [1] * 4
    with pytest.raises(ConfigurationError, match="obs agent='c_0' is unknown"):
        team.predict({"c_0": batch["a_0"]})
    with pytest.raises(ConfigurationError, match=r"^agent 'b_0': observation=\[nan, 0.0\] is not finite"):
        team.predict({"a_0": batch["a_0"], "b_0": np.array([np.nan, 0.0])})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["x", "y"], "^agent 'a_0': observation has dtype <U1; allowed are numbers"),
        ([1j, 0j], "^agent 'a_0': observation has dtype complex128; allowed are real numbers"),
        ([None, 1.0], r"observation=\[nan, 1\.0, 1\.0, 0\.0\] is not finite"),  # None is NaN, as without agent ids
    ],
)
def test_observations_that_are_no_real_numbers_are_refused_with_agent_ids_too(wrong, message):
    spaces = dict.fromkeys(("a_0", "a_1"), Box(-1, 1, (2,)))
    team = IPPO(spaces, dict.fromkeys(spaces, Discrete(2)), seed=0, net_config=SMALL, agent_id_one_hot=True)
    seen, zero = {"a_0": wrong, "a_1": [0.0, 1.0]}, np.zeros(1)
    states, steps = {agent: [its] for agent, its in seen.items()}, {agent: [zero] for agent in spaces}
    experiences = (states, *[steps] * 5, dict.fromkeys(spaces, np.zeros(2)), dict.fromkeys(spaces, zero))
    for function, given in ((team.predict, seen), (team.get_action, seen), (team.learn, experiences)):
        with pytest.raises(ConfigurationError, match=message):
            function(given)


def test_masks_and_states_of_the_wrong_agents_are_refused():
    spaces = dict.fromkeys(("a_0", "a_1"), Box(-1, 1, (3,)))
    team = IPPO(spaces, dict.fromkeys(spaces, Discrete(2)), seed=0, net_config=SMALL)
    recurrent = IPPO(spaces, dict.fromkeys(spaces, Discrete(2)), seed=0, net_config=SMALL, recurrent=True)
    seen, mask = {"a_0": np.zeros(3)}, np.array([True, False])
    with pytest.raises(ConfigurationError, match=r"action_masks has masks of \['a_1'\]; allowed .* in obs, \['a_0'\]"):
        team.predict(seen, action_masks={"a_1": mask})
    with pytest.raises(ConfigurationError, match="action_masks agent='a_2' is unknown"):
        team.predict(seen, action_masks={"a_2": mask})
    with pytest.raises(ConfigurationError, match="state is given, but this agent is not recurrent"):
        team.predict(seen, {"a_0": {"action_mask": mask}})
    with pytest.raises(ConfigurationError, match="state has shapes"):
        recurrent.predict(seen, {"a_0": {"action_mask": mask}})
    with pytest.raises(ConfigurationError, match="state agent='a_2' is unknown"):
        recurrent.predict(seen, {"a_2": None})
    _, states = recurrent.predict(dict.fromkeys(spaces, np.zeros(3)))
    assert [*recurrent.predict(seen, states)[1]] == ["a_0"]  # a_1 has died


def test_a_recurrent_team_predicts_with_its_states():
    spaces = {"a_0": Box(-1, 1, (3,)), "a_1": Box(-1, 1, (3,))}
    team = IPPO(spaces, dict.fromkeys(spaces, Box(-9, 9, (1,))), seed=0, net_config=SMALL, recurrent=True)
    obs = {"a_0": np.ones((2, 3)), "a_1": -np.ones((2, 3))}
    first, state = team.predict(obs, deterministic=True)
    second, _ = team.predict(obs, state, np.array([0, 1]), deterministic=True)
    for agent in spaces:
        assert first[agent][0] != pytest.approx(second[agent][0], abs=1e-7)
        assert first[agent][1] == pytest.approx(second[agent][1], abs=1e-7)  # where an episode began
