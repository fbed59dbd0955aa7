"""Configuration files of other systems as YAML of this package, with a comment beside each setting that was converted.

Files are YAML, JSON, Python (see `foreign_scripts`) or command lines.
"""

from __future__ import annotations

import codecs
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agilerl_like.algorithms.ippo import IPPO
from agilerl_like.algorithms.ppo import PPO
from agilerl_like.algorithms.presets import PRESETS, preset_values, set_entry
from agilerl_like.config.foreign_scripts import Unread, literal, script_settings
from agilerl_like.config.loader import Draft
from agilerl_like.config.yaml12 import MAX_BYTES, MAX_DEPTH, parse_value, read_yaml
from agilerl_like.errors import CheckpointError, ConfigurationError, unknown_name
from agilerl_like.foreign_settings import COMPLETE, SYSTEMS, Conversion, canonical, convert
from agilerl_like.foreign_settings.rules import Rule
from agilerl_like.reporting.formatting import printable
from agilerl_like.storage import safe_folder
from agilerl_like.yaml_writer import Dumper

SECTIONS = (
    "environment",
    "algorithm",
    "network",
    "population",
    "hyperparameters",
    "selection",
    "mutation",
    "training",
    "run",
    "seed",
)
"""The order of sections in a converted configuration."""
OF_REPLAYS = {"buffer_size", "train_freq", "exploration_fraction", "replay_buffer_class"}
"""Names that only algorithms with a replay have."""
OTHER_ALGORITHMS = {"a2c", "ars", "c51", "crossq", "ddpg", "dqn", "maddpg", "matd3", "qrdqn", "rainbow", "sac", "td3"}
OTHER_ALGORITHMS |= {"tqc", "trpo"}
"""Words by which the name of a file or entry is that of another algorithm."""
ANY_ENV = "CartPole-v1"
"""Stands for the environment while a configuration without one is checked."""


@dataclass(frozen=True)
class Converted:
    """A configuration of another system in settings of this package."""

    system: str
    source: str
    """File, and entry of it."""
    data: Mapping[str, Any]
    conversion: Conversion
    names_algorithm: bool = True
    """Whether the file has the name of its algorithm."""

    def check(self) -> None:
        """Raise ConfigurationError if the settings are not legal here."""
        environment = {"id": ANY_ENV, **(self.data.get("environment") or {})}
        with warnings.catch_warnings(action="ignore"):  # a run warns
            Draft({**self.data, "environment": environment}).validate()

    def to_yaml(self) -> str:
        """Return the configuration as YAML, with a comment beside each setting that was converted."""
        found, algorithm = self.conversion, self.data["algorithm"]
        has_preset = "preset" in algorithm
        values = f"values of the preset (agilerl-like presets {self.system})"
        absent = f"{values} in algorithm, and else this package's defaults"
        absent = absent if has_preset else f"defaults of {algorithm['name']}"
        differences = PRESETS[self.system].differences if has_preset else ()
        head = [f"{self.source}, of {self.system}; settings that are absent here have the {absent}"]
        if not self.names_algorithm:
            head.append(f"the file does not name its algorithm; {algorithm.get('name', PPO.algo)} is assumed")
        if "id" not in (self.data.get("environment") or {}):
            head.append("environment.id is not in the file: add it, or convert with --env ID")
        if "num_envs" not in (self.data.get("environment") or {}):
            head.append("environment.num_envs is not in the file, and is 1 then: add it, or convert with --num-envs N")
        return "\n".join(
            [
                *(f"# {printable(line)}" for line in head),
                *_lines(self.data, found.comments),
                *_listed("left out", found.left_out),
                *_listed("not converted", found.refused),
                *_listed(f"differences of {self.system} whatever the settings", dict.fromkeys(differences, "")),
                "",
            ]
        )


def convert_file(
    path: Path | str, system: str, *, entry: str = "", env: str = "", num_envs: int | None = None
) -> Converted:
    """Convert a configuration file of another system.

    Args:
        path: YAML, JSON, Python (parsed, not executed) or a command line.
        system: a name in `SYSTEMS`.
        entry: of a file with the settings of several environments, as in SB3's zoo, the one to convert.
        env: the id of the environment, if the file does not have it.
        num_envs: the number of environments, if the file does not have it.

    Raises:
        ConfigurationError: the system is unknown, or the file cannot be read or has no settings of that system, or
            `env` or `num_envs` differs from what the file has.
    """
    if system not in SYSTEMS:
        raise unknown_name("from", system, SYSTEMS)
    rules = SYSTEMS[system]
    content, name = _chosen(read_settings(path), rules, entry)
    flat, twice = _unique(_flat(content, rules))
    _check_algorithm(flat, rules, str(path))
    stem = Path(path).stem
    names_algorithm = (
        any(_is_algorithm(key, rules) for key in flat) or "PPO" in " ".join([*content, name, stem]).upper()
    )
    if not names_algorithm:
        for field, value in (("file", f"{stem}{Path(path).suffix}"), ("entry", name)):
            if words := OTHER_ALGORITHMS & {*re.findall("[a-z0-9]+", value.lower())}:
                raise ConfigurationError(
                    f"{field}={value!r} is named after {min(words).upper()}, and only settings of PPO are converted; "
                    "allowed for settings of PPO is another name"
                )
    if not any(canonical(key) in rules for key in flat):
        raise ConfigurationError(f"file={str(path)!r} has no settings of {system}; it has {', '.join(flat) or 'none'}")
    known = {key: value for key, value in flat.items() if canonical(key) in rules or not _is_unread(value)}
    found = convert(system, known, num_envs=num_envs)
    found.refused |= dict.fromkeys(twice, "the file has another value of that name, too")
    _refuse_unread(found, flat)
    if name not in ("", "default", "atari"):
        found.settings["environment.id"] = name
    _add_absent(found, {"env": env or None, "num_envs": num_envs})
    _complete(found, system, {**content, **flat})
    has_preset = found.settings.get("algorithm.name", PPO.algo) in (PPO.algo, IPPO.algo)
    if has_preset:
        _add_networks(found, system, flat)
    data: dict[str, Any] = {"environment": {}, "algorithm": {}}
    for setting, value in sorted(found.settings.items(), key=lambda item: SECTIONS.index(item[0].partition(".")[0])):
        set_entry(data, setting.split("."), value)
    if has_preset:
        data["algorithm"] = {"preset": system, **data["algorithm"]}
    for hyperparameter, range_ in list(data.get("hyperparameters", {}).items()):
        if not {"min", "max"} <= range_.keys():
            del data["hyperparameters"][hyperparameter]
            found.refused[f"range of {hyperparameter}"] = f"it has only {', '.join(range_)}"
    data = {section: content for section, content in data.items() if content != {}}
    source = f"{Path(path).name}{f', {name}' if name else ''}"
    return Converted(system, source, data, found, names_algorithm)


def _check_algorithm(flat: Mapping[str, Any], rules: Mapping[str, Rule], path: str) -> None:
    """Raise ConfigurationError for the settings of another algorithm than PPO and IPPO."""
    for key, value in flat.items():
        is_name = _is_algorithm(key, rules) and isinstance(value, str)
        if (is_name and "PPO" not in value.upper()) or canonical(key) in OF_REPLAYS - rules.keys():
            raise ConfigurationError(
                f"file={path!r} has {key}={value!r:.60}, and only settings of PPO are converted; those of DQN, TD3, "
                "DDPG and SAC here are in tutorials/off_policy.md"
            )


def _is_algorithm(key: str, rules: Mapping[str, Rule]) -> bool:
    name = canonical(key)
    return name in ("algo", "algorithm") or (name in rules and rules[name].setting == "algorithm.name")


def _chosen(content: Mapping[str, Any], rules: Mapping[str, Rule], entry: str) -> tuple[Mapping[str, Any], str]:
    """Return the settings of one environment, and its name, of a file with those of several."""
    entries = {name: one for name, one in content.items() if isinstance(one, Mapping) and canonical(name) not in rules}
    if not entries or len(entries) < len(content) or not _is_zoo(entries):
        if entry:
            raise ConfigurationError(f"entry={entry!r}, but the file has the settings of one environment; leave it out")
        return content, ""
    if entry and entry not in entries:
        raise unknown_name("entry", entry, entries)
    if not entry and len(entries) > 1:
        raise ConfigurationError(f"entry is missing; the file has {', '.join(entries)}; --entry NAME chooses one")
    name = entry or next(iter(entries))
    return entries[name], name


def _is_zoo(entries: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether entries have the policy or the length that each entry of SB3's zoo has, and are no calls of a script."""
    return all(not name.endswith("()") and {"policy", "n_timesteps"} & one.keys() for name, one in entries.items())


def _flat(
    content: Mapping[str, Any], rules: Mapping[str, Rule], section: str = "", depth: int = 0
) -> Iterator[tuple[str, Any]]:
    """Yield the settings of nested sections; a mapping that is a setting itself stays whole."""
    if depth > MAX_DEPTH:
        raise ConfigurationError(f"the file is nested more than {MAX_DEPTH} levels deep")
    for name, value in content.items():
        qualified = f"{section}.{name}" if canonical(f"{section}.{name}") in rules else name
        if isinstance(value, Mapping) and canonical(qualified) not in rules:
            yield from _flat(value, rules, name, depth + 1)
        else:
            yield qualified, value


def _unique(pairs: Iterator[tuple[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Return the first value of each name, and the others that differ from it."""
    found: dict[str, Any] = {}
    others = [f"{key}={value!r}" for key, value in pairs if found.setdefault(key, value) != value]
    return found, others


def _add_absent(found: Conversion, given: Mapping[str, Any]) -> None:
    """Add what the command gives of the environment to the settings of the file, which must not have another value."""
    for option, setting in (("env", "environment.id"), ("num_envs", "environment.num_envs")):
        value = given[option]
        if value is not None and found.settings.setdefault(setting, value) != value:
            raise ConfigurationError(
                f"{option}={value!r}, but the file has {setting}={found.settings[setting]!r}; leave the option out, or "
                "change the setting in the file that is printed"
            )


def _complete(found: Conversion, system: str, given: Mapping[str, Any]) -> None:
    """Add what a system has where the sections and settings of its file lack it; list what has no effect with it.

    Ranges are widened to the values that members begin with, those of the preset included.
    """
    if system not in COMPLETE:
        return
    before = found.settings
    found.settings = COMPLETE[system](before, {canonical(name): value for name, value in given.items()})
    found.comments |= {path: f"default of {system}" for path in found.settings if path not in before}
    for path, bound in _widened(found.settings, system).items():
        found.settings[path] = bound
        found.comments[path] += "; wider here, to contain the value that members begin with"
    for path in [path for path in before if path not in found.settings]:
        name = found.comments[path].partition(";")[0] or path.rpartition(".")[2]
        found.left_out[name] = "it has no effect, since nothing evolves"


def _widened(settings: Mapping[str, Any], system: str) -> dict[str, Any]:
    """Return the ends of ranges that leave out the value that members begin with, moved to that value."""
    given = {path.removeprefix("algorithm."): its for path, its in settings.items() if path.startswith("algorithm.")}
    num_envs, name = settings.get("environment.num_envs", 1), given.get("name", PPO.algo)
    starts = given | preset_values(system, given, num_envs=num_envs, algorithm=name)
    moved = {}
    for path, bound in settings.items():
        section, _, rest = path.partition(".")
        hyperparameter, _, end = rest.rpartition(".")
        start = starts.get(hyperparameter)
        is_end = section == "hyperparameters" and end in ("min", "max")
        if is_end and isinstance(start, int | float) and isinstance(bound, int | float):
            moved[path] = min(bound, start) if end == "min" else max(bound, start)
    return {path: bound for path, bound in moved.items() if bound != settings[path]}


def _add_networks(found: Conversion, system: str, flat: Mapping[str, Any]) -> None:
    """Add the networks that a system has for vectors by default; for images there is no equivalent to one setting."""
    given = {canonical(key): value for key, value in flat.items()}
    env_id = str(found.settings.get("environment.id", ""))
    if given.get("policy", "MlpPolicy") != "MlpPolicy" or env_id.startswith("ALE/") or "NoFrameskip" in env_id:
        return
    for path, value in PRESETS[system].architecture.items():
        if path not in found.settings:
            found.settings[path] = value
            found.comments[path] = f"default of {system}"


def _refuse_unread(found: Conversion, flat: Mapping[str, Any]) -> None:
    """Move settings whose values are expressions from those that were converted to those that were not."""
    why = "it is an expression, and code is not executed"
    for path in [path for path, value in found.settings.items() if _is_unread(value)]:
        value = found.settings.pop(path)
        found.refused[f"{found.comments.pop(path).partition(';')[0].partition('=')[0] or path}={value!r}"] = why
    for key, value in flat.items():
        if isinstance(value, Unread) and f"{key}={value!r}" in found.refused:
            found.refused[f"{key}={value!r}"] = why


def _is_unread(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_is_unread, value.values()))
    return any(map(_is_unread, value)) if isinstance(value, list | tuple) else isinstance(value, Unread)


def _lines(data: Mapping[str, Any], comments: Mapping[str, str], path: str = "") -> Iterator[str]:
    indent = "  " * path.count(".")
    for name, value in data.items():
        here = f"{path}{name}"
        comment = printable(" ".join(comments.get(here, "").split()))
        is_section = isinstance(value, Mapping) and bool(value)
        text = f"{name}:" if is_section else _plain({name: value})
        yield f"{indent}{text}{f'  # {comment}' if comment else ''}"
        if is_section:
            yield from _lines(value, comments, f"{here}.")


def _plain(entry: Mapping[str, Any]) -> str:
    """Return an entry as one line of YAML."""
    return yaml.dump(
        dict(entry), Dumper=Dumper, width=float("inf"), default_flow_style=False, allow_unicode=True
    ).strip()


def _listed(title: str, entries: Mapping[str, str]) -> Iterator[str]:
    if entries:
        yield f"# {title}:"
    for name, why in entries.items():
        line = f"{name}{f': {why}' if why else ''}"
        yield f"#   {printable(' '.join(line.split()))}"


# -- reading


def read_settings(path: Path | str) -> Mapping[str, Any]:
    """Return the settings in a file, by name or by section and name.

    Raises:
        ConfigurationError: it cannot be read, or holds no settings.
    """
    suffix = Path(path).suffix.lower()
    if suffix in (".yaml", ".yml", ".json"):
        content = _json(path) if suffix == ".json" else read_yaml(path, "file").data
        if not isinstance(content, dict):
            raise ConfigurationError(f"file={str(path)!r} holds {content!r:.40}; allowed are settings by name")
        return _with_literals(content)
    try:
        text = safe_folder.read_regular(path, MAX_BYTES, follow_links=True).decode()
    except (CheckpointError, OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"file={str(path)!r} cannot be read: {error}") from error
    if suffix != ".py" and text.lstrip().startswith(("-", "python", "$")):
        return _command_line(text, str(path))
    try:
        return script_settings(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"file={str(path)!r}: {error}") from error
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        kinds = "allowed are YAML, JSON, Python and command lines"
        raise ConfigurationError(f"file={str(path)!r} is not valid Python: {error}; {kinds}") from error


def _json(path: Path | str) -> Any:
    """Return the content of a JSON file, of which the YAML reader refuses indentation by tabs."""
    try:
        data = safe_folder.read_regular(path, MAX_BYTES, follow_links=True)
        return safe_folder.parse_json(data.removeprefix(codecs.BOM_UTF8), "it")
    except CheckpointError as error:
        raise ConfigurationError(f"file={str(path)!r} cannot be read: {error}") from error


def _with_literals(content: Any) -> Any:
    """Return data in which the text of a Python dictionary, as SB3's zoo has it, is a mapping."""
    if isinstance(content, Mapping):
        return {name: _with_literals(one) for name, one in content.items()}
    if isinstance(content, str) and content.strip().startswith(("dict(", "{")):
        try:
            return literal(content.strip())
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return content
    return content


def _command_line(text: str, path: str) -> dict[str, Any]:
    """Return the options of a command such as `python ppo.py --num-envs 8 --no-anneal-lr`."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise ConfigurationError(f"file={path!r} is not a command line: {error}") from error
    found: dict[str, Any] = {}
    rest = list(words)
    while rest:
        option, equals, given = rest.pop(0).partition("=")
        if not option.startswith("--"):
            continue
        name = canonical(option.removeprefix("--"))
        if equals:
            found[name] = parse_value(given, option).data
        elif rest and not rest[0].startswith("--"):
            found[name] = parse_value(rest.pop(0), option).data
        else:
            found[name.removeprefix("no_")] = not name.startswith("no_")
    return found
