"""EvolvableWords: the hidden state after the last word of a text, stacks, and mutations; one more extractor."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Dict, Discrete, MultiDiscrete
from hypothesis import given, settings
from hypothesis import strategies as st

from agilerl_like import PPO
from agilerl_like.envs import ObservationEncoder
from agilerl_like.errors import ConfigurationError
from agilerl_like.modules.multi_input import EvolvableMultiInput, MultiInputSpec
from agilerl_like.modules.param_stack import ParamStack
from agilerl_like.modules.weight_transfer import transfer_weights_
from agilerl_like.modules.words import EvolvableWords, WordsSpec

WORDS, VOCABULARY = 5, 7
SMALL = {"hidden_state_size": 4, "min_hidden_state_size": 1, "embedding_size": 3}
SPACE = Dict({"mission": MultiDiscrete([VOCABULARY] * WORDS), "side": Discrete(2)})
EXACT = {"rtol": 0, "atol": 1e-12}


def made(spec, seed=0):
    module, generator = EvolvableWords(spec, (WORDS, VOCABULARY)).double(), torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=generator)
    return module


def one_hot(texts):
    """Rows `[len(texts), WORDS * VOCABULARY]` of texts of word numbers, filled up with 0."""
    numbers = [list(text) + [0] * (WORDS - len(text)) for text in texts]
    return torch.nn.functional.one_hot(torch.tensor(numbers), VOCABULARY).flatten(1).double()


@pytest.mark.parametrize("cell", ["GRU", "LSTM", "minGRU"])
def test_the_output_is_the_hidden_state_after_the_last_word(cell):
    module = made(WordsSpec(cell=cell, **SMALL)).eval()
    texts = [(2, 3, 4), (6,), (5, 5, 5, 5, 5), ()]
    outputs = module(one_hot(texts))
    for text, output in zip(texts, outputs, strict=True):
        state, y = torch.zeros(1, *module.state_shape, dtype=torch.float64), torch.zeros(1, 4, dtype=torch.float64)
        for word in text:
            embedded = module.embedding.weight[:, word] + module.embedding.bias
            y, state = module.step(embedded[None], state)
        torch.testing.assert_close(output, y[0], **EXACT)


@settings(max_examples=30)
@given(st.lists(st.integers(1, VOCABULARY - 1), min_size=2, max_size=WORDS))
def test_word_order_counts(text):
    module = made(WordsSpec(**SMALL))
    forwards, backwards = module(one_hot([text, text[::-1]]))
    assert torch.equal(forwards, backwards) == (text == text[::-1])


def test_stack_rows_equal_single_members():
    specs = [WordsSpec(**{**SMALL, "hidden_state_size": units, "num_layers": n}) for units, n in ((4, 1), (6, 2))]
    members = [made(spec, seed) for seed, spec in enumerate(specs)]
    padded = EvolvableWords(WordsSpec.padded_union(specs), (WORDS, VOCABULARY)).double()
    x = one_hot([(2, 3, 4), (6,), (5, 1)])
    outputs = ParamStack.of(members, padded).module(x.expand(2, *x.shape))
    for member, output in zip(members, outputs, strict=True):
        torch.testing.assert_close(output[:, : member.num_outputs], member(x), **EXACT)
        assert not output[:, member.num_outputs :].any()


@pytest.mark.parametrize(("operator", "arguments"), [("add_layer", {"layer": 1}), ("add_node", {"nodes": 16})])
def test_growth_changes_no_output(operator, arguments):
    module, x = made(WordsSpec(**SMALL)), one_hot([(2, 3, 4), (6,)])
    child = module.rebuild(module.spec.apply(operator, **arguments)).double()
    transfer_weights_(child, module, operator, arguments, states=None, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(child(x)[:, :4], module(x), **EXACT)


def test_an_extractor_of_words_learns_what_a_mission_means():
    encoding = ObservationEncoder(SPACE)
    config = {"extractors": {"mission": {"encoder": "words", "embedding_size": 8}}}
    spec = MultiInputSpec.from_config("encoder_config", config, encoding.leaves)
    assert MultiInputSpec.from_config("encoder_config", spec.to_config(), encoding.leaves) == spec
    module, generator = EvolvableMultiInput(spec, encoding.leaves, 1), torch.Generator().manual_seed(0)
    module.reset_(generator, output_gain=1.0)
    rng, optimizer = np.random.default_rng(0), torch.optim.Adam(module.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):  # is word 2 before word 3, whatever else the text has?
        texts = [rng.permutation([2, 3, *rng.integers(4, VOCABULARY, 2)]) for _ in range(32)]
        wanted = torch.tensor([[float(list(text).index(2) < list(text).index(3))] for text in texts])
        observation = {"mission": np.array([[*text, 0] for text in texts]), "side": np.zeros(32, np.int64)}
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            module(torch.as_tensor(encoding.encode(observation))), wanted
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 0.5
    assert np.mean(losses[-5:]) < 0.1


def test_an_agent_reads_words():
    extractors = {"mission": {"encoder": "words", "hidden_state_size": 16}}
    agent = PPO(SPACE, Discrete(3), num_envs=2, seed=1, net_config={"encoder_config": {"extractors": extractors}})
    observation = {"mission": np.array([[2, 3, 0, 0, 0], [4, 0, 0, 0, 0]]), "side": np.array([0, 1])}
    assert agent.get_action(observation)[0].shape == (2,)
    assert "mission GRU 16" in agent.genome.architecture.describe()


@pytest.mark.parametrize(
    ("space", "config", "message"),
    [
        (SPACE, {"embedding_size": 0}, "embedding_size=0 must be at least 1"),
        (SPACE, {"cell": "RNN"}, "cell='RNN' is unknown"),
        (Dict({"mission": MultiDiscrete([3, 4])}), {}, "WordsSpec does not suit"),
        (Dict({"mission": Discrete(4)}), {}, "WordsSpec does not suit"),
    ],
)
def test_what_is_no_text_is_refused(space, config, message):
    network = {"encoder_config": {"extractors": {"mission": {"encoder": "words", **config}}}}
    with pytest.raises(ConfigurationError, match=message):
        PPO(space, Discrete(3), net_config=network)
