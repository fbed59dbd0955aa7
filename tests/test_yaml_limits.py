"""What a YAML file may cost: a few hundred bytes of aliases can describe more than a machine's memory."""

import os
import time

import pytest

from agilerl_like.config import Draft, load, yaml12
from agilerl_like.errors import ConfigurationError


def nine_times(opening, closing, start):
    """Nine anchors, each of nine aliases of the one before: 9**9 values in 500 bytes."""
    lines = [f"a0: &a0 {opening}{start}{closing}"]
    lines += [f"a{i}: &a{i} {opening}{', '.join([f'*a{i - 1}'] * 9)}{closing}" for i in range(1, 9)]
    return "\n".join(lines)


BOMBS = {
    "aliases in lists": (nine_times("[", "]", "1"), "its aliases expand to too much"),
    "aliases in merges": (nine_times("{<<: [", "]}", "{x: 1}"), "its aliases expand to too much"),
    "an alias of itself": ("environment: &a {id: CartPole-v1, kwargs: *a}", "its aliases are nested too deep"),
    "many values": ("x: [" + "1," * 10**5 + "]", "line 1: not valid YAML: allowed are 262144 bytes, 20000 values"),
    "many anchors": ("\n".join(f"k{i}: &k{i} 1" for i in range(15_000)), "allowed are 262144 bytes, 20000 values"),
    "deep lists": ("x: " + "[" * 10**5, "20000 values and 32 levels"),
    "deep blocks": ("\n".join(" " * i + "a:" for i in range(700)), "line 32: .* and 32 levels"),
    "many bytes": ("x: " + "y" * 10**6, "has 1000003 bytes; allowed are at most 262144"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_it_is_refused_at_once(tmp_path, name):
    text, said = BOMBS[name]
    (tmp_path / "bomb.yaml").write_text(text)
    start = time.process_time()
    with pytest.raises(ConfigurationError, match=said) as refused:
        load(tmp_path / "bomb.yaml")
    assert time.process_time() - start < 5  # 20,000 values take 0.6, the first case took 25 before aliases counted
    assert len(str(refused.value)) < 1000


def test_a_change_of_one_alias_does_not_reach_the_others(tmp_path):
    (tmp_path / "a.yaml").write_text("x: &range {min: 1, list: [1]}\ny: *range\nz: {<<: *range, max: 2}")
    data = Draft.read(tmp_path / "a.yaml").override(["--x.min", "5"]).data
    assert [data[name]["min"] for name in "xyz"] == [5, 1, 1]
    assert len({id(data[name]["list"]) for name in "xyz"}) == 3


def test_ordinary_aliases_and_merges_are_read():
    text = "a: &a {x: [1, 2], y: 3}\nb: {<<: *a, y: 4}\nc: [*a, *a]"
    assert yaml12.parse_value(text, "it").data == {
        "a": {"x": [1, 2], "y": 3},
        "b": {"x": [1, 2], "y": 4},
        "c": [{"x": [1, 2], "y": 3}] * 2,
    }


def test_merged_entries_have_their_lines_and_texts():
    text = "a: &a {x: 007, y: 010}\nb: &b {y: 011}\nc:\n  <<: [*b, *a]\n  z: yes\nd:\n  y: 012\n  <<: *a"
    parsed = yaml12.parse_value(text, "it")
    assert [parsed.texts["c", name] for name in "xyz"] == ["007", "011", "yes"]
    assert [parsed.locations["c", name][-6:] for name in "xyz"] == ["line 1", "line 2", "line 5"]
    assert [parsed.texts["d", name] for name in "xy"] == ["007", "012"]


def test_a_fifo_is_refused_and_a_pipe_of_the_shell_is_read(tmp_path):
    os.mkfifo(tmp_path / "config.yaml")
    with pytest.raises(ConfigurationError, match="is a folder, a FIFO or a device"):
        load(tmp_path / "config.yaml")
    reader, writer = os.pipe()
    os.write(writer, b"environment: {id: CartPole-v1}")
    os.close(writer)
    try:
        assert load(f"/dev/fd/{reader}").environment.id == "CartPole-v1"
    finally:
        os.close(reader)
