"""`agilerl-like presets`: the defaults of other systems in settings of this package."""

from __future__ import annotations

from typing import Any

from tyro.conf import Positional

from agilerl_like.algorithms.ppo_config import PPOConfig
from agilerl_like.algorithms.presets import PRESETS
from agilerl_like.algorithms.settings import DEFAULT_PRESET, check_preset
from agilerl_like.cli.output import PROGRAM, write_line, write_table
from agilerl_like.errors import ExitCode


def presets(name: Positional[str] = "", /) -> int:
    """Print the presets, or the settings of one: value, default of this package, and source.

    Args:
        name: sb3, cleanrl, skrl, agilerl, rlib, dti, metabox, brax, isaaclab; left out, all are listed.
    """
    if not name:
        write_table(("preset", "defaults of"), [(key, preset.system) for key, preset in PRESETS.items()])
        write_line(f"\n{PROGRAM} presets NAME prints one; {PROGRAM} train CONFIG --algorithm.preset NAME uses it")
        return ExitCode.DONE
    preset = PRESETS[check_preset(name)]
    write_line(f"{name}: {preset.system}")
    if name == DEFAULT_PRESET:
        write_line(f"{PROGRAM} train --help lists them")
        return ExitCode.DONE
    rows = [
        (key, _shown(one.value), _shown(getattr(PPOConfig, key)), one.source) for key, one in preset.settings.items()
    ]
    write_table(("setting", "value", "default here", f"in {name}"), rows)
    for variant, values in preset.variants.items():
        its = ", ".join(f"{key} {_shown(one.value)} ({one.source})" for key, one in values.items())
        write_line(f"{variant}: {its}")
    write_line(f"networks, which the preset does not set: {preset.network}")
    for difference in preset.differences:
        write_line(f"differs whatever the settings: {difference}")
    write_line(f'\nPPO(…, preset="{name}"); in YAML algorithm: {{preset: {name}}}; settings that are given win')
    return ExitCode.DONE


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "none" if value is None else str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
