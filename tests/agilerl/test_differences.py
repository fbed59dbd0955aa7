"""The tables of differences from AgileRL: those of the page are those of the file, and each measured row holds here."""

import importlib
import inspect
import re
from collections.abc import Mapping

import gymnasium
import numpy as np
import torch

import agilerl_like
from agilerl_like import PPO, Mutations, RLParameter
from agilerl_like.agilerl.algorithms import IPPO as RoomIPPO  # noqa: N811
from agilerl_like.agilerl.algorithms.ppo import PPO as RoomPPO  # noqa: N811
from agilerl_like.agilerl.hpo.mutation import Mutations as RoomMutations
from agilerl_like.modules import EvolvableMLP, MLPSpec
from benchmarks.agilerl_differences import PAGE, read_facts, read_rows, section, tables
from benchmarks.peers import agilerl_facts

BOX, NARROW = gymnasium.spaces.Box(-1.0, 1.0, (4,)), gymnasium.spaces.Box(-1e-10, 1e-10, (2,))
DISCRETE = gymnasium.spaces.Discrete(2)
SMALL = {"learn_step": 64, "batch_size": 32, "seed": 0}


def defaults(function, *names):
    return {name: inspect.signature(function).parameters[name].default for name in names}


def shown(values: Mapping):
    return [f"`{name}={value}`" for name, value in values.items()]


class TestPage:
    def test_tables_are_those_of_the_file(self):
        page = PAGE.read_text(encoding="utf-8")
        for name, text in tables(read_rows(), read_facts()).items():
            begin, end = (f"<!-- {section(name)}: {edge} -->\n" for edge in ("begin", "end"))
            assert page.partition(begin)[2].partition(end)[0].strip() == text.strip(), "run it with --again"

    def test_every_subject_that_is_measured_is_in_a_table(self):
        subjects = {row["subject"] for rows in read_rows().values() for row in rows}
        assert agilerl_facts.FACTS.keys() == read_facts()["facts"].keys()
        assert agilerl_facts.FACTS.keys() <= subjects
        assert len([name for name in vars(TestSubjects) if name.startswith("test_")]) == len(THEIRS) + 1

    def test_the_version_is_the_one_that_is_pinned(self):
        from benchmarks.venvs import PEERS

        assert f"agilerl=={read_facts()['version']}" in PEERS["agilerl"].requirements

    def test_names_of_this_package_exist(self):
        """Classes, functions and settings in the two columns of this package."""
        public = {name for module in MODULES for name in dir(importlib.import_module(module))}
        settings = {*inspect.signature(PPO.__init__).parameters, *inspect.signature(RoomPPO.__init__).parameters}
        settings |= {*inspect.signature(agilerl_like.train_on_policy).parameters, *dir(PPO), *dir(RoomPPO)}
        settings |= {
            *inspect.signature(agilerl_like.IPPO.learn).parameters,
            *inspect.signature(agilerl_like.DQN.__init__).parameters,
            *inspect.signature(Mutations.mutation).parameters,
        }
        cells = [row[key] for rows in read_rows().values() for row in rows for key in ("room", "here") if key in row]
        named = {
            name for cell in cells for code in re.findall(r"`([^`]+)`", cell) for name in re.findall(r"^\.?\w+", code)
        }
        known = public | settings | {".agilerl", "best", "dormant_threshold", "encoder_config", "layer_norm"}
        assert named - known == set()


MODULES = (
    "agilerl_like",
    "agilerl_like.agilerl.wrappers.agent",
    "agilerl_like.agilerl.rollouts.on_policy",
    "agilerl_like.modules",
)


THEIRS = read_facts()["facts"]
ROWS = {row["subject"]: row for rows in read_rows().values() for row in rows}


class TestSubjects:
    """What AgileRL was seen to do, and what happens here; one test for each function of `agilerl_facts`."""

    def test_ranges_left_out(self):
        assert THEIRS["`hp_config` left out"] == ["batch_size", "learn_step", "lr"]
        assert sorted(RoomPPO(BOX, DISCRETE).hp_config) == ["batch_size", "learn_step", "lr"]
        assert not PPO(BOX, DISCRETE, **SMALL).hp_config

    def test_defaults_of_ppo(self):
        names = ("learn_step", "action_std_init", "share_encoders")
        row = ROWS["defaults of PPO"]
        assert defaults(RoomPPO.__init__, *names) == THEIRS["defaults of PPO"]
        assert ", ".join(shown(THEIRS["defaults of PPO"])) == row["agilerl"]
        agent = PPO(BOX, NARROW, seed=0)
        assert ", ".join(str(getattr(agent, name)) for name in names) == row["here"]

    def test_actions_in_evaluation_mode(self):
        assert THEIRS["`get_action` in evaluation mode, Box"] is True
        obs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
        for make in (PPO, RoomPPO):
            agent = make(BOX, NARROW, **SMALL)
            agent.set_training_mode(False)
            with torch.no_grad():
                for parameter in agent.actor.parameters():
                    parameter.fill_(1.0)
            assert np.abs(agent.get_action(obs)[0]).max() > 2e-10
            assert np.abs(agent.predict(obs)[0]).max() <= 1.001e-10

    def test_mutation_before_training(self):
        assert THEIRS["mutation before training"] is True
        agents = RoomPPO.population(2, BOX, DISCRETE, **SMALL)
        assert {agent.mut for agent in agents} == {"None"}

    def test_the_elite(self):
        assert THEIRS["the elite"] is True
        assert RoomMutations(0, 0, 0, 0, 0, 1).spares_elite is False
        assert Mutations().mutate_elite is False

    def test_arguments_without_effect(self):
        (named,) = [subject for subject in ROWS if "`wrap`" in subject]
        assert re.findall(r"`(\w+)`", named) == ["dormant_threshold", "wrap", "torch_compiler", "action_batch_size"]
        for name, room, here in (
            ("dormant_threshold", RoomMutations, Mutations.__init__),
            ("wrap", RoomPPO.__init__, PPO.__init__),
            ("torch_compiler", RoomIPPO.__init__, agilerl_like.IPPO.__init__),
            ("action_batch_size", RoomIPPO.__init__, agilerl_like.IPPO.__init__),
        ):
            assert name in inspect.signature(room).parameters
            assert (name in inspect.signature(here).parameters) == (name != "dormant_threshold")

    def test_time_limits(self):
        assert THEIRS["time limits"] is True
        assert PPO(BOX, DISCRETE, **SMALL).bootstrap_truncated is True

    def test_layer_norm(self):
        assert THEIRS["`layer_norm`"] is True
        assert MLPSpec((64,)).layer_norm is False

    def test_mutation_sd(self):
        assert f"noise on weights, {THEIRS['`mutation_sd`']}" == ROWS["`mutation_sd`"]["agilerl"]
        assert Mutations().mutation_sd == 0.5

    def test_checkpoints(self, tmp_path):
        assert THEIRS["checkpoints"] is True
        PPO(BOX, DISCRETE, **SMALL).save_checkpoint(tmp_path / "agent")
        assert {path.suffix for path in (tmp_path / "agent").iterdir()} == {".json", ".safetensors"}

    def test_populations(self):
        assert THEIRS["populations"] == "list"
        assert type(RoomPPO.population(2, BOX, DISCRETE, **SMALL)) is list
        assert type(PPO.population(2, BOX, DISCRETE, **SMALL)).__name__ == "Population"

    def test_growing(self):
        assert THEIRS["growing a network"] > 0.1  # of the outputs' deviation
        for layer_norm in (False, True):
            module, x = EvolvableMLP(MLPSpec((64, 64), layer_norm=layer_norm), 4, 2), torch.randn(256, 4)
            before = module(x).detach()
            module.add_node(layer=0, nodes=32)
            assert float((module(x).detach() - before).abs().max() / before.std()) < 1e-4

    def test_shrinking(self):
        assert THEIRS["shrinking"] is True
        module = EvolvableMLP(MLPSpec((128,)), 4, 2)
        first = next(module.parameters())
        with torch.no_grad():
            module.linears[1].weight[:, :32] = 0.0  # the first units do not reach the outputs
        kept = first[32:].detach().clone()
        module.remove_node(layer=0, nodes=32)
        assert torch.equal(next(module.parameters()).detach(), kept)

    def test_integer_hyperparameters(self):
        assert THEIRS["integer hyperparameters"] == [3, 4]
        rng = np.random.default_rng(0)
        reached = {RLParameter(min=1, max=64, dtype=int).mutate(4, rng) for _ in range(100)}
        assert min(reached) < 4 < max(reached)
