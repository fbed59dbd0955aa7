"""R5 of teams: a saved team's groups and spaces may be inconsistent.

Every case forges a valid saved team without breaking the manifest, and loads it alone, in a population and from a
checkpoint.
"""

import json
import math
import os
import shutil
from copy import deepcopy

import pytest
import safetensors.torch
import torch
from forgery import Carrier, assert_refused, nested
from gymnasium.spaces import Box, Discrete

from agilerl_like import IPPO, PPO, CheckpointError, HyperparameterConfig, MultiAgentPopulation, Population, RLParameter
from agilerl_like.storage.checkpoint_folder import Checkpoints, read_checkpoint

SMALL = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 16}
SEES = {"speaker_0": Box(-1, 1, (3,)), "listener_0": Box(-1, 1, (5,)), "listener_1": Box(-1, 1, (5,))}
DOES = {"speaker_0": Discrete(3), "listener_0": Box(-1, 1, (2,)), "listener_1": Box(-1, 1, (2,))}
CASES = {}


def make_teams(size=2, **more):
    ranges = HyperparameterConfig(lr=RLParameter(1e-5, 1e-2), learn_step=RLParameter(32, 2048, dtype=int))
    return IPPO.population(
        size, SEES, DOES, num_envs=2, learn_step=64, hp_config=ranges, net_config=SMALL, seed=1, **more
    )


def load_checkpoint(folder):
    checkpoint = read_checkpoint(folder)
    return MultiAgentPopulation.from_documents(
        checkpoint.documents, checkpoint.tensors, device="cpu", where=str(folder)
    )


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder, teams = tmp_path_factory.mktemp("originals"), make_teams()
    teams.fitness = [1.0, 2.0]
    checkpoint = Checkpoints(folder).write(1, *teams.to_documents(), score=1.0)
    return {
        "team": Carrier(teams[0].save_checkpoint(folder / "team"), "agent", IPPO.load),
        "population": Carrier(teams.save_checkpoint(folder / "population"), "member-000", MultiAgentPopulation.load),
        "checkpoint": Carrier(checkpoint, "member-000", load_checkpoint),
    }


@pytest.fixture(params=["team", "population", "checkpoint"])
def carrier(request, originals, tmp_path):
    return forged(originals[request.param], tmp_path)


def forged(original, folder):
    return original._replace(folder=shutil.copytree(original.folder, folder / "forged"))


def cases(**table):
    CASES.update(table)


def edited(change):
    """Change the team's document."""

    def forge(c):
        document = json.loads(c.document.read_text())
        change(document)
        c.put(c.document, json.dumps(document).encode())

    return forge


def without(*path):
    """Remove something from the team's document."""

    def change(document):
        *above, name = path
        for part in above:
            document = document[part]
        del document[name]

    return edited(change)


def setting(**changes):
    return edited(lambda document: document.update(changes))


def learner(**changes):
    """Change the document of the listeners' learner."""
    return edited(lambda document: document["learners"]["listener"].update(changes))


def settings(of=("speaker", "listener"), **changes):
    """Change the team's settings, and those of some learners."""

    def change(document):
        document["settings"].update(changes)
        for group in of:
            document["learners"][group]["settings"].update(changes)

    return edited(change)


def spaces(sees=None, does=None):
    """Change the listeners' spaces everywhere."""

    def change(document):
        learner, pair = document["learners"]["listener"], document["spaces"]["listener"]
        if sees is not None:
            pair[0] = learner["observation_space"] = sees
        if does is not None:
            pair[1] = learner["action_space"] = does

    return edited(change)


def renamed(name):
    """Rename the listeners' group everywhere."""

    def forge(c):
        document = json.loads(c.document.read_text())
        for table in (document["spaces"], document["learners"]):
            table[name] = table.pop("listener")
        document["groups"] = [[name if group == "listener" else group, ids] for group, ids in document["groups"]]
        c.put(c.document, json.dumps(document).encode())
        tensors = safetensors.torch.load_file(c.weights)
        named = {key.replace("listener/", f"{name}/"): tensor for key, tensor in tensors.items()}
        c.put(c.weights, safetensors.torch.save(named))

    return forge


def many(agents, groups=None, change=lambda number, pair: None):
    """A team of so many agents, in so many groups (or one each), all with the speaker's spaces."""

    def make(document):
        names = [f"agent_{number}" for number in range(agents)]
        count = agents if groups is None else groups
        kinds = [f"group-{number}" for number in range(count)]
        pair, its_learner = document["spaces"]["speaker"], document["learners"]["speaker"]
        document["agent_ids"] = names
        document["groups"] = [[kind, names[number::count]] for number, kind in enumerate(kinds)]
        document["spaces"] = {kind: deepcopy(pair) for kind in kinds}
        document["learners"] = dict.fromkeys(kinds, its_learner if count <= 1024 else {"algorithm": "PPO"})
        for number, its in enumerate(document["spaces"].values()):
            change(number, its)

    return edited(make)


BOX = {"type": "Box", "dtype": "float32", "shape": [5], "low": -1.0, "high": 1.0}
PARTS = {"type": "Tuple", "spaces": [BOX]}
IDS = [*SEES]

cases(
    agent_ids_are_null=setting(agent_ids=None),
    agent_ids_are_text=setting(agent_ids="speaker_0"),
    agent_ids_are_numbers=setting(agent_ids=[0, 1, 2]),
    agent_ids_are_lists=setting(agent_ids=[[agent] for agent in IDS]),
    agent_ids_are_none=setting(agent_ids=[]),
    agent_ids_have_one_twice=setting(agent_ids=[*IDS, "speaker_0"]),
    agent_ids_have_a_stranger=setting(agent_ids=[*IDS, "stranger_0"]),
    agent_ids_lack_one=setting(agent_ids=IDS[:2]),
    agent_ids_are_in_another_order=setting(agent_ids=IDS[::-1]),
    groups_are_null=setting(groups=None),
    groups_are_a_table=setting(groups={"speaker": ["speaker_0"], "listener": ["listener_0", "listener_1"]}),
    groups_are_none=setting(groups=[]),
    groups_are_names=setting(groups=["speaker", "listener"]),
    groups_are_lists=setting(groups=[[["speaker"], ["speaker_0"]], [["listener"], ["listener_0", "listener_1"]]]),
    an_agent_is_in_no_group=setting(groups=[["speaker", ["speaker_0"]], ["listener", ["listener_0"]]]),
    an_agent_is_in_two_groups=setting(groups=[["speaker", ["speaker_0", "listener_0"]], ["listener", IDS[1:]]]),
    an_agent_is_in_a_group_twice=setting(groups=[["speaker", ["speaker_0"]], ["listener", [*IDS[1:], "listener_1"]]]),
    an_agent_is_in_the_others_group=setting(groups=[["speaker", IDS[:2]], ["listener", ["listener_1"]]]),
    a_stranger_is_in_a_group=setting(groups=[["speaker", ["speaker_0"]], ["listener", [*IDS[1:], "stranger"]]]),
    a_group_is_empty=setting(groups=[["speaker", ["speaker_0"]], ["listener", IDS[1:]], ["empty", []]]),
    a_group_is_listed_twice=setting(groups=[["speaker", ["speaker_0"]], ["listener", IDS[1:2]], ["listener", IDS[2:]]]),
    groups_change_places=setting(groups=[["listener", IDS[1:]], ["speaker", ["speaker_0"]]]),
    agents_of_a_group_change_places=setting(groups=[["speaker", ["speaker_0"]], ["listener", IDS[:0:-1]]]),
    groups_have_one_more_than_the_learners=setting(
        groups=[["speaker", ["speaker_0"]], ["listener", ["listener_0"]], ["rear", ["listener_1"]]]
    ),
    learners_have_one_more=edited(lambda d: d["learners"].update(rear=d["learners"]["listener"])),
    learners_lack_one=without("learners", "listener"),
    learners_have_another=edited(lambda d: d["learners"].update(rear=d["learners"].pop("listener"))),
    learners_change_places=edited(
        lambda d: d.update(learners=dict(zip(d["learners"], [*d["learners"].values()][::-1], strict=True)))
    ),
    learners_are_a_list=edited(lambda d: d.update(learners=[*d["learners"].values()])),
    learners_are_null=setting(learners=None),
    learners_are_lists=setting(learners={"speaker": [], "listener": []}),
    learners_are_texts=setting(learners={"speaker": "PPO", "listener": "PPO"}),
    learners_are_empty_tables=setting(learners={"speaker": {}, "listener": {}}),
    a_learner_is_null=edited(lambda d: d["learners"].update(listener=None)),
    a_learner_is_a_team=edited(lambda d: d["learners"].update(listener=deepcopy(d))),
    a_learner_is_of_no_known_kind=learner(algorithm="SAC"),
    a_learner_is_somebody_elses=learner(index=7),
    a_learner_has_more_envs=learner(num_envs=3),
    a_learner_has_no_envs=learner(num_envs=0),
    a_learner_has_other_ranges=learner(hp_config={"lr": {"min": 1e-5, "max": 1}}),
    a_learner_has_no_past=without("learners", "listener", "fitness"),
    a_learner_has_no_architecture=learner(architecture=None),
    a_learner_has_more_layers=edited(
        lambda d: d["learners"]["listener"]["architecture"]["head_config"].update(hidden_size=[16, 16])
    ),
    a_learner_has_a_gigantic_layer=edited(
        lambda d: d["learners"]["listener"]["architecture"]["encoder_config"].update(
            hidden_size=[10**6, 10**6], max_mlp_nodes=10**6
        )
    ),
    a_learner_has_layers_without_end=edited(
        lambda d: d["learners"]["listener"]["architecture"]["encoder_config"].update(
            hidden_size=[16] * 10**5, max_hidden_layers=10**5
        )
    ),
    a_learner_remembers=settings(of=["listener"], recurrent=True),
    **{f"group_is_named_{name!r}": renamed(name) for name in ("a/b", "../listener", "..", ".", "a.b", "", "/")},
    spaces_are_null=setting(spaces=None),
    spaces_are_a_list=edited(lambda d: d.update(spaces=[*d["spaces"].values()])),
    spaces_lack_a_group=without("spaces", "listener"),
    spaces_have_one_group_more=edited(lambda d: d["spaces"].update(rear=d["spaces"]["listener"])),
    spaces_are_one=edited(lambda d: d["spaces"].update(listener=[BOX])),
    spaces_are_texts=edited(lambda d: d["spaces"].update(listener=["Box", "Box"])),
    spaces_are_of_another_kind=edited(
        lambda d: d["spaces"]["listener"].__setitem__(1, {"type": "Discrete", "dtype": "int64", "n": 2, "start": 0})
    ),
    spaces_are_not_those_of_the_learner=edited(lambda d: d["spaces"]["listener"].__setitem__(0, BOX | {"high": 2.0})),
    spaces_of_the_learner_are_others=learner(observation_space=BOX | {"high": 2.0}),
    spaces_are_of_no_known_kind=spaces(sees={"type": "Graph"}),
    spaces_are_code=spaces(does={"type": "__import__('os').mkdir('canary')"}),
    spaces_are_a_terabyte=spaces(sees=BOX | {"shape": [10**6, 10**6]}),
    spaces_are_200_mb=spaces(sees=BOX | {"shape": [5 * 10**7]}),
    spaces_are_parts_without_end=spaces(sees={"type": "Tuple", "spaces": [BOX] * 10_000}),
    spaces_are_deep=spaces(sees=nested(25)),
    spaces_are_bounded_by_nan=spaces(sees=BOX | {"low": math.nan}),
    actions_are_a_tuple=spaces(does=PARTS),
    observations_are_wider=spaces(sees=BOX | {"shape": [6]}),
    rewards_are_unknown=setting(rewards="all mine"),
    rewards_are_a_list=setting(rewards=["sum"]),
    rewards_are_missing=without("rewards"),
    names_are_a_number=setting(agent_id_one_hot=1),
    names_are_seen_though_nobody_learned_them=setting(agent_id_one_hot=True),
    algorithm_is_that_of_a_learner=setting(algorithm="PPO"),
    index_is_negative=setting(index=-1),
    seed_is_a_fraction=setting(seed=0.5),
    num_envs_are_none=setting(num_envs=0),
    num_envs_are_others=setting(num_envs=4),
    num_envs_are_beyond_counting=setting(num_envs=10**400),
    fitness_is_text=setting(fitness="1"),
    steps_are_negative=setting(steps=[-1]),
    document_is_deep=lambda c: c.put(c.document, b'{"learners":' * 10**5),
    document_is_wide=setting(groups=[["g", []]] * 60_000),
    document_is_10_mb=setting(mut="x" * 10 * 2**20),
    hp_config_is_that_of_nobody=setting(hp_config={"index": {"min": 0, "max": 9}}),
    hp_config_is_infinite=setting(hp_config={"lr": {"min": 0, "max": math.inf}}),
    learn_step_is_zero=settings(learn_step=0),
    learn_step_is_negative=settings(learn_step=-64),
    learn_step_is_text=settings(learn_step="64"),
    learn_step_is_nan=settings(learn_step=math.nan),
    learn_step_is_beyond_its_range=settings(learn_step=10**6),
    learn_step_is_beyond_all_memory=settings(learn_step=10**13),
    learn_step_is_beyond_counting=settings(learn_step=10**400),
    learn_step_is_the_teams_alone=settings(of=[], learn_step=128),
    learn_step_is_one_learners_alone=edited(lambda d: d["learners"]["listener"]["settings"].update(learn_step=256)),
    lr_of_the_team_is_beyond_its_range=settings(of=[], lr=0.5),
    lr_is_negative=settings(lr=-1.0),
    settings_have_another=settings(of=[], backdoor=1),
    agents_are_100_000=many(10**5, 1),
    agents_are_100_000_and_named=edited(
        lambda d: d.update(
            agent_ids=[f"a{i}" for i in range(10**5)],
            groups=[["listener", [f"a{i}" for i in range(10**5)]]],
            spaces={"listener": d["spaces"]["listener"]},
            learners={"listener": d["learners"]["listener"]},
            agent_id_one_hot=True,
        )
    ),
    groups_are_1024=many(1024),
    groups_are_10_000=many(10**4),
    groups_see_8_mb_each=many(100, change=lambda i, pair: pair[0].update(shape=[2 * 10**6], high=1.0 + i)),
    groups_see_4_mb_each=many(64, change=lambda i, pair: pair[0].update(shape=[10**6], high=1.0 + i)),
    agents_see_8_mb_together=many(1024, 1, change=lambda i, pair: pair[0].update(shape=[2 * 10**6])),
)  # fmt: skip


# -- tensors


def tensors(change):
    """Change the tensors of a team."""

    def forge(c):
        found = safetensors.torch.load_file(c.weights)
        change(found)
        c.put(c.weights, safetensors.torch.save(found))

    return forge


def swap_groups(found):
    for name in [name for name in found if name.startswith("speaker/")]:
        other = name.replace("speaker/", "listener/")
        found[name], found[other] = found[other], found[name]


def huge(name, shape):
    """Make the header claim a huge tensor; the file is as large, with a hole of zeros."""

    def forge(c):
        size = 4 * math.prod(shape)

        def change(header):
            offset = max(entry["data_offsets"][1] for entry in header.values())
            ours = header[name]["data_offsets"]
            for entry in header.values():  # it moves behind all the others
                if entry["data_offsets"][0] >= ours[1] > ours[0]:
                    entry["data_offsets"] = [place - (ours[1] - ours[0]) for place in entry["data_offsets"]]
            offset -= ours[1] - ours[0]
            header[name] |= {"shape": list(shape), "data_offsets": [offset, offset + size]}

        c.head(change)
        header = 8 + int.from_bytes(c.weights.read_bytes()[:8], "little")
        ends = json.loads(c.weights.read_bytes()[8:header]).values()
        os.truncate(c.weights, header + max(entry["data_offsets"][1] for entry in ends))
        c.admit(c.weights, sha256="0" * 64)

    return forge


MOMENT = "listener/adam.exp_avg"
cases(
    a_group_has_no_tensors=tensors(lambda t: [t.pop(name) for name in [*t] if name.startswith("listener/")]),
    a_tensor_is_missing=tensors(lambda t: t.pop(MOMENT)),
    a_tensor_is_too_many=tensors(lambda t: t.update({"listener/backdoor": torch.zeros(1)})),
    a_tensor_is_nobodys=tensors(lambda t: t.update(backdoor=torch.zeros(1))),
    a_tensor_is_a_strangers=tensors(lambda t: t.update({"stranger/adam.steps": torch.zeros(1)})),
    a_tensor_leads_elsewhere=tensors(lambda t: t.update({"../listener/adam.steps": torch.zeros(1)})),
    a_tensor_stands_deeper=tensors(lambda t: t.update({f"listener/{MOMENT}": t[MOMENT].clone()})),
    tensors_change_groups=tensors(swap_groups),
    a_tensor_has_another_shape=tensors(lambda t: t.update({"listener/adam.steps": torch.zeros(2)})),
    a_tensor_has_another_dtype=tensors(lambda t: t.update({"listener/adam.steps": torch.zeros(1).double()})),
    a_tensor_is_on_its_side=tensors(
        lambda t: t.update({"listener/network.actor.encoder.linears.0.weight": torch.zeros(5, 16)})
    ),
    moments_are_negative=tensors(lambda t: t["listener/adam.exp_avg_sq"].fill_(-1.0)),
    moments_are_8_gb=huge(MOMENT, (1, 2 * 10**9)),
    recent_observations_are_8_gb=huge("listener/recent_observations", (4 * 10**8, 5)),
    recent_observations_are_too_wide=tensors(
        lambda t: t.update({"listener/recent_observations": torch.zeros(8, 6)})
    ),
    weights_are_another_agents=lambda c: c.put(
        c.weights, safetensors.torch.save({name: tensor.contiguous() for name, tensor in a_learner().items()})
    ),
)  # fmt: skip


def a_learner():
    return PPO(Box(-1, 1, (5,)), Box(-1, 1, (2,)), net_config=SMALL, seed=1).to_documents()[1]


def test_an_unchanged_team_loads(carrier):
    carrier.load(carrier.folder)
    edited(lambda document: None)(carrier)
    tensors(lambda found: None)(carrier)
    carrier.head(lambda header: None)
    carrier.load(carrier.folder)


@pytest.mark.parametrize("name", CASES)
def test_a_forged_team_is_refused_and_nothing_is_executed(name, carrier, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    CASES[name](carrier)
    assert_refused(carrier)
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("member", ["member-000", "member-001"])
@pytest.mark.parametrize(
    "other", [{"groups": {"listener_1": "rear"}}, {"groups": {"speaker_0": "chief"}}, {"rewards": "sum"}]
)
def test_unequal_teams_are_refused_as_a_population(originals, tmp_path, member, other):
    carrier = forged(originals["population"], tmp_path)._replace(member=member)
    team = make_teams(2, **other)[int(member[-1])].save_checkpoint(tmp_path / "other")
    carrier.put(carrier.document, (team / "agent.json").read_bytes())
    carrier.put(carrier.weights, (team / "agent.safetensors").read_bytes())
    assert f"{next(iter(other))}=" in assert_refused(carrier)


@pytest.mark.parametrize("facts", [None, [], {"algorithm": "PPO", "size": 2, "fitness": []}, {"algorithm": "IPPO"}])
def test_an_inconsistent_population_is_refused(originals, tmp_path, facts):
    carrier = forged(originals["population"], tmp_path)
    carrier.put(carrier.folder / "population.json", json.dumps(facts).encode())
    assert_refused(carrier)


def test_teams_and_single_agents_do_not_load_as_each_other(originals, tmp_path):
    agents = PPO.population(2, SEES["speaker_0"], DOES["speaker_0"], net_config=SMALL, seed=1)
    alone, together = agents[0].save_checkpoint(tmp_path / "agent"), agents.save_checkpoint(tmp_path / "agents")
    for load, folder in [
        (PPO.load, originals["team"].folder),
        (IPPO.load, alone),
        (Population.load, originals["population"].folder),
        (MultiAgentPopulation.load, together),
    ]:
        with pytest.raises(CheckpointError, match="algorithm="):
            load(folder)
