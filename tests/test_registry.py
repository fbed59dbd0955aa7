"""One registry of names: errors for unknown and doubled names, entry points of installed packages."""

import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from scripts import own_registrations
from torch import nn

from agilerl_like import PPO, ConfigurationError, make_vect_envs, register, registry
from agilerl_like.cli import main
from agilerl_like.envs.factory import describe_backend, with_num_envs
from agilerl_like.modules import EvolvableMLP, MLPSpec
from agilerl_like.networks.architecture import ENCODERS, EncoderKind
from agilerl_like.registry import Registry
from agilerl_like.reporting import Callback

SHORT_RUN = """
environment: {id: CartPole-v1, num_envs: 4}
algorithm: {learn_step: 32, batch_size: 32, update_epochs: 1}
population: {size: 1}
mutation: none
training: {max_steps: 64, evo_steps: 64, eval_loop: 1, eval_steps: 8}
run: {plot: false}
"""


class Ranks:
    """Something to register."""


@pytest.fixture
def selections(monkeypatch):
    """A registry of its own under the kind `selection`."""
    mine = Registry("selection")
    monkeypatch.setitem(registry._REGISTRIES, "selection", mine)
    return mine


def entry_point(name, value):
    return EntryPoint(name=name, value=value, group="agilerl_like.selections")


def test_register_by_call_and_as_decorator(selections):
    register("selection", "ranks", Ranks)
    register("selection", "more")(Ranks)
    assert dict(selections) == {"ranks": Ranks, "more": Ranks}
    assert selections.find("selection.name", "ranks") is Ranks


def test_unknown_names_are_errors_that_suggest_near_ones(selections):
    register("selection", "ranks", Ranks)
    with pytest.raises(ConfigurationError, match=r"selection\.name='rank' is unknown; did you mean 'ranks'"):
        selections.find("selection.name", "rank")
    with pytest.raises(ConfigurationError, match=r"selection\.name=3 is unknown; allowed are: ranks"):
        selections.find("selection.name", 3)
    with pytest.raises(ConfigurationError, match=r"kind='encoders' is unknown; did you mean 'encoder'"):
        register("encoders", "ranks", Ranks)
    with pytest.raises(ConfigurationError, match="selection name=''; allowed is text that is not empty"):
        register("selection", "", Ranks)


@pytest.mark.parametrize("given", [{"name": ["rank"]}, {"name": None}, None, 3])
def test_a_name_that_is_no_text_is_an_error(selections, given):
    with pytest.raises(ConfigurationError, match=r"selection=.* is unknown"):
        selections.build("selection", given)


def test_a_name_cannot_be_registered_for_two_classes(selections):
    register("selection", "ranks", Ranks)
    with pytest.raises(
        ConfigurationError, match=r"selection='ranks' is already registered as .*Ranks.*; allowed is an"
    ):
        register("selection", "ranks", Registry)
    assert selections["ranks"] is Ranks


def test_a_kind_of_network_needs_a_spec_of_its_own():
    built_in = ENCODERS["mlp"]
    with own_registrations():
        with pytest.raises(ConfigurationError, match="encoder='mine' has the spec MLPSpec of 'mlp'; allowed is a su"):
            register("encoder", "mine", EncoderKind(built_in.spec, Ranks, "vectors"))
        assert "mine" not in ENCODERS
        register("encoder", "again", built_in)


@pytest.mark.parametrize("kind", ["encoder", "extractor", "memory"])
@pytest.mark.parametrize("entry", [nn.Linear, nn.Linear(1, 1), EncoderKind(dict, nn.Linear, "vectors")])
def test_a_kind_of_network_is_a_spec_and_its_module(kind, entry):
    with own_registrations():
        with pytest.raises(ConfigurationError, match=f"{kind}='mine' is .*; allowed is .*Kind.SPEC, MODULE"):
            register(kind, "mine", entry)
        assert "mine" not in registry.registered(kind)


@pytest.mark.parametrize("encoder", [nn.Linear(4, 4), nn.Linear])
def test_a_module_as_encoder_leads_to_register(encoder):
    spaces = gymnasium.spaces.Box(-1, 1, (4,)), gymnasium.spaces.Discrete(2)
    with pytest.raises(
        ConfigurationError, match=r'encoder=Linear; allowed are names: cnn, .*register\("encoder", NAME'
    ):
        PPO(*spaces, net_config={"encoder": encoder})


class GatedMLP(EvolvableMLP):
    """An encoder with a layer of torch."""

    def __init__(self, spec, inputs, num_outputs):
        super().__init__(spec, inputs, num_outputs)
        self.gate = nn.Linear(inputs, inputs)


def test_an_encoder_with_layers_of_torch_is_refused():
    @dataclass(frozen=True)
    class OwnSpec(MLPSpec):
        """A spec of its own."""

    spaces = gymnasium.spaces.Box(-1, 1, (4,)), gymnasium.spaces.Discrete(2)
    with own_registrations():
        register("encoder", "mine", EncoderKind(OwnSpec, GatedMLP, "vectors"))
        with pytest.raises(
            ConfigurationError, match=r"actor\.encoder\.gate=Linear\(.* of GatedMLP is a layer of torch"
        ):
            PPO(*spaces, net_config={"encoder": "mine"})


def test_an_encoder_of_vectors_alone_cannot_read_images():
    @dataclass(frozen=True)
    class OwnSpec(MLPSpec):
        """A spec of its own."""

    spaces = gymnasium.spaces.Box(0, 255, (3, 16, 16), np.uint8), gymnasium.spaces.Discrete(2)
    with own_registrations():
        register("encoder", "mine", EncoderKind(OwnSpec, EvolvableMLP, "vectors"))
        with pytest.raises(ConfigurationError, match=r"encoder='mine' cannot read Box.*; allowed are mlp, simba, cnn"):
            PPO(*spaces, net_config={"encoder": "mine"})


def test_a_class_that_is_defined_again_replaces_the_earlier_one(selections):
    source = "class Cell:\n    pass"
    first, second = {"__name__": "__main__"}, {"__name__": "__main__"}
    exec(source, first), exec(source, second)
    register("selection", "cell", first["Cell"])
    register("selection", "cell", second["Cell"])
    assert selections["cell"] is second["Cell"] is not first["Cell"]


def test_entry_points_are_imported_when_their_name_is_used(selections, monkeypatch, tmp_path):
    (tmp_path / "plugin_of_ranks.py").write_text("class PluginRanks:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    groups = []
    found = [entry_point("plugin", "plugin_of_ranks:PluginRanks"), entry_point("broken", "plugin_of_ranks:Absent")]
    monkeypatch.setattr(registry, "entry_points", lambda group: groups.append(group) or found)
    assert sorted(selections) == ["broken", "plugin"]
    assert "plugin_of_ranks" not in sys.modules
    assert selections.find("selection.name", "plugin").__name__ == "PluginRanks"
    assert groups == ["agilerl_like.selections"]
    with pytest.raises(ConfigurationError, match="'broken': the entry point 'plugin_of_ranks:Absent' cannot be impo"):
        selections.find("selection.name", "broken")


def test_the_group_of_entry_points_is_the_plural_of_the_kind(monkeypatch):
    groups = []
    monkeypatch.setattr(registry, "entry_points", lambda group: groups.append(group) or [])
    for kind in ("memory", "schedule"):
        assert not list(Registry(kind))
    assert groups == ["agilerl_like.memories", "agilerl_like.schedules"]


def test_an_entry_point_cannot_take_a_registered_name(selections, monkeypatch):
    register("selection", "ranks", Ranks)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry_point("ranks", "elsewhere:Ranks")])
    with pytest.raises(ConfigurationError, match="'ranks' of the entry point 'elsewhere:Ranks' is already registered"):
        list(selections)


@pytest.mark.parametrize("module", ["own_ranks.ranks", "own_ranks"])
def test_an_entry_point_may_name_what_its_module_has_registered(selections, monkeypatch, tmp_path, module):
    package = tmp_path / "own_ranks"
    package.mkdir()
    (package / "__init__.py").write_text("from own_ranks.ranks import OwnRanks\n")
    (package / "ranks.py").write_text("class OwnRanks:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry_point("own", f"{module}:OwnRanks")])
    own = import_module("own_ranks").OwnRanks
    register("selection", "own", own)  # as the subclass of an algorithm does when it is imported
    assert list(selections) == ["own"]
    assert selections.find("selection.name", "own") is own
    for name in ("own_ranks", "own_ranks.ranks"):
        monkeypatch.delitem(sys.modules, name)


class Counter(Callback):
    """A callback of one's own, with an argument."""

    def __init__(self, path, limit=0):
        self.path, self.limit = Path(path), limit

    def on_generation(self, run, record):
        self.path.write_text(f"{record.generation} of at most {self.limit}")


def test_callbacks_are_named_in_yaml(monkeypatch, tmp_path):
    mine = Registry("callback")
    monkeypatch.setitem(registry._REGISTRIES, "callback", mine)
    register("callback", "counter", Counter)
    (tmp_path / "run.yaml").write_text(SHORT_RUN)
    monkeypatch.chdir(tmp_path)
    assert main(["train", "run.yaml", "--run.callbacks", "[{name: counter, path: count.txt, limit: 5}]"]) == 0
    assert (tmp_path / "count.txt").read_text() == "1 of at most 5"


def test_exception_of_a_callback_is_one_line_with_the_command_to_resume(monkeypatch, tmp_path, capsys):
    class Fails(Callback):
        def on_generation(self, run, record):
            raise KeyError("gone")

    monkeypatch.setitem(registry._REGISTRIES, "callback", mine := Registry("callback"))
    mine.add("fails", Fails)
    (tmp_path / "run.yaml").write_text(SHORT_RUN)
    monkeypatch.chdir(tmp_path)
    assert main(["train", "run.yaml", "--run.name", "one", "--run.callbacks", "[fails]"]) == 75
    (line,) = capsys.readouterr().err.splitlines()
    assert "Fails.on_generation raised KeyError: 'gone'" in line
    assert line.endswith("; to resume: agilerl-like resume runs/one")


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        ("[countr]", "run.callbacks.0='countr' is unknown; did you mean 'counter'?"),
        ("[{path: x}]", "run.callbacks.0={'path': 'x'} lacks its name; allowed are counter"),
        ("[counter]", "run.callbacks='counter': missing a required argument: 'path'"),
        ("[{name: counter, file: x}]", "run.callbacks={'name': 'counter', 'file': 'x'}: missing a required argument"),
        ("[nothing]", "run.callbacks='nothing' is None; allowed are subclasses of Callback, and functions that return"),
    ],
)
def test_errors_of_callbacks_name_the_setting(monkeypatch, tmp_path, capsys, callbacks, message):
    mine = Registry("callback")
    monkeypatch.setitem(registry._REGISTRIES, "callback", mine)
    register("callback", "counter", Counter)
    register("callback", "nothing", lambda: None)
    (tmp_path / "run.yaml").write_text(SHORT_RUN)
    monkeypatch.chdir(tmp_path)
    assert main(["train", "run.yaml", "--run.callbacks", callbacks]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_environment_backends_are_used_by_name(monkeypatch):
    monkeypatch.setattr("agilerl_like.envs.factory.ENV_BACKENDS", mine := Registry("env_backend"))
    mine.add("thirds", lambda config: SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * config.num_envs))
    env = make_vect_envs("Cart-in-thirds", 2, backend="thirds")
    assert (env.num_envs, describe_backend(env)) == (2, "thirds")
    wide = with_num_envs(env, 3)
    assert (wide.num_envs, describe_backend(wide)) == (3, "thirds")
    env.close(), wide.close()
    with pytest.raises(ConfigurationError, match=r"backend='third' is unknown; did you mean 'thirds'"):
        make_vect_envs("CartPole-v1", 2, backend="third")
