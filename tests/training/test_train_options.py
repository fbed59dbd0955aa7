"""The keywords of the three training functions: one list, which editors, `help()` and the API reference show."""

import inspect

import pytest

from agilerl_like.errors import ConfigurationError
from agilerl_like.training import train_multi_agent_on_policy, train_off_policy, train_on_policy
from agilerl_like.training.train_options import TrainOptions, with_options_of

KEYWORDS = {
    name: one
    for name, one in inspect.signature(train_on_policy).parameters.items()
    if one.kind is inspect.Parameter.KEYWORD_ONLY
}


def test_the_list_has_the_names_and_types_of_train_on_policy():
    assert {name: one.__forward_arg__ for name, one in TrainOptions.__annotations__.items()} == {
        name: one.annotation for name, one in KEYWORDS.items()
    }


@pytest.mark.parametrize(
    ("train", "own"),
    [
        (train_off_policy, {"learning_delay", "eps_start", "eps_end", "eps_decay", "n_step_memory"}),
        (train_multi_agent_on_policy, {"sum_scores"}),
    ],
)
def test_a_signature_has_all_keywords_with_their_defaults(train, own):
    found = inspect.signature(train).parameters
    assert not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in found.values())
    keywords = {name for name, one in found.items() if one.kind is inspect.Parameter.KEYWORD_ONLY}
    assert keywords == KEYWORDS.keys() | own
    assert found["evo_steps"] == KEYWORDS["evo_steps"]
    assert train.__annotations__["options"].startswith("Unpack[")


def test_a_functions_own_keyword_comes_before_the_shared_one():
    def train(env, *, a=1, b=2): ...

    @with_options_of(train)
    def other(env, *, b=3, c=4, **options): ...

    assert str(inspect.signature(other)) == "(env, *, b=3, c=4, a=1)"


def test_an_unknown_keyword_is_refused():
    with pytest.raises(ConfigurationError, match="argument='evo_stepz' is unknown; did you mean 'evo_steps'"):
        train_off_policy(None, evo_stepz=3)
    with pytest.raises(ConfigurationError, match="argument='eps_strat' is unknown; did you mean 'eps_start'"):
        train_off_policy(None, eps_strat=0.5)
    with pytest.raises(ConfigurationError, match="argument='sum_score' is unknown; did you mean 'sum_scores'"):
        train_multi_agent_on_policy(None, sum_score=True)
    for setting in ("lr", "gradient_steps"):
        with pytest.raises(ConfigurationError, match=f"'{setting}' is unknown; .*; settings of the algorithm are arg"):
            train_off_policy(None, **{setting: 1})
