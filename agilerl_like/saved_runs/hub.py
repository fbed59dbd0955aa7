"""`push_to_hub` and `from_hub`: agents on the Hugging Face Hub, with a card, or in a local folder of the same content.

A repository holds the agent (`best/`, which executes nothing when it is loaded), the settings without those of the
machine (`config.yaml`), and the card (`README.md`). `agilerl-like eval FOLDER` evaluates a downloaded one.
"""

from __future__ import annotations

import html
import importlib.util
import math
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm, load_agent
from agilerl_like.config import Config
from agilerl_like.errors import ConfigurationError
from agilerl_like.reporting import formatting
from agilerl_like.reporting.files import LINEAGE, METRICS
from agilerl_like.reporting.run_history import CONFIG
from agilerl_like.saved_runs.run import Run
from agilerl_like.storage import safe_folder
from agilerl_like.storage.checkpoint_folder import CHECKPOINTS
from agilerl_like.storage.durable_io import make_folder, replace_file
from agilerl_like.storage.run_names import BEST
from agilerl_like.yaml_writer import to_yaml

LIBRARY = "agilerl-like"
CARD, VIDEO = "README.md", "replay.mp4"
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
LINES_OF_LINEAGE = 20
"""Births that a card lists."""


def push_to_hub(
    source: Run | Path | str | EvolvableAlgorithm,
    repository: str | Path,
    *,
    env: str = "",
    video: Path | str | None = None,
    private: bool | None = None,
    token: str | None = None,
    message: str = "agent and card",
) -> str:
    """Upload the best agent of a run, or an agent, with its settings and a card; return the repository's address.

    `repository` is "user/name" on the Hub, or a `Path`: a local folder, into which the same files are written. `env`
    names the environment of an agent that comes without a run. `video` (see `record_film`) becomes `replay.mp4`, which
    the Hub shows on the page; without one that of an earlier push is removed. `private` is who may see a new
    repository: True for its owners alone; None: as the owner's settings on the Hub have it. `token` is the Hub's access
    token; None: that of `hf auth login` or of the environment variable HF_TOKEN. `message` is that of the commit.

    Raises:
        ConfigurationError: `repository` is neither; the folder holds another card, a run, a saved agent at the top, or
            a config.yaml or another replay.mp4 without our card; `video` is no file; or the extra `hub` is missing.
        CheckpointError: `best/` in the folder is not that of an earlier push.
    """
    if video is not None and not os.path.isfile(video):
        raise ConfigurationError(f"video={str(video)!r} is no file; allowed is a film, such as `record_film` writes")
    content = _content_of(source, env)
    if isinstance(repository, Path):
        _write(repository, content, video, "Path('.')")
        return str(repository)
    hub = _hub(repository)
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), content, video, repr(repository))
        api = hub.HfApi(token=token, library_name=LIBRARY)
        address = str(api.create_repo(repository, private=private, exist_ok=True))
        earlier = [VIDEO] if video is None else None  # perhaps of another agent
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message, delete_patterns=earlier)
    return address


def from_hub(
    repository: str | Path,
    *,
    folder: Path | str | None = None,
    revision: str | None = None,
    token: str | None = None,
    device: str = "cpu",
) -> EvolvableAlgorithm:
    """Load an agent that `push_to_hub` uploaded; nothing of the download is executed.

    `repository` is "user/name" on the Hub or the `Path` of a local folder. The download is kept in `folder`, if that is
    given, and replaces an earlier one there. `revision` is a branch, a tag or a commit; None: the newest commit of the
    main branch. `token` is as in `push_to_hub`. The agent's tensors are on `device`.

    Raises:
        ConfigurationError: `repository` is neither; `folder` is that of a run or of a saved agent; or the extra `hub`
            is missing.
        CheckpointError: the repository does not hold an agent in `best/`; or what `folder` has there is not replaced.
    """
    if isinstance(repository, Path):
        return load_agent(repository / BEST, device)
    hub = _hub(repository)
    if folder:
        _check_folder("folder", Path(folder))
    patterns = [f"{BEST}/*", CONFIG, CARD]
    with tempfile.TemporaryDirectory() as temporary:
        # files and no links to a cache, which a stored folder must not hold
        path = Path(temporary)
        hub.snapshot_download(
            repository,
            revision=revision,
            token=token,
            local_dir=path,
            allow_patterns=patterns,
            library_name=LIBRARY,
        )
        agent = load_agent(path / BEST, device)
        if folder:
            _copy(path, Path(folder))
        return agent


def _hub(repository: str) -> Any:
    """Return the package, after a check of a repository's name."""
    if not REPOSITORY.fullmatch(repository):
        raise ConfigurationError(
            f"repository={repository!r}; allowed are 'user/name' on the Hub, and a pathlib.Path of a local folder"
        )
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ConfigurationError("the Hub needs one more package: pip install 'agilerl-like[hub]'")
    import huggingface_hub

    return huggingface_hub


class Content(NamedTuple):
    """What a repository holds."""

    agent: EvolvableAlgorithm
    env: str
    settings: Mapping[str, Any]
    result: str
    """Fitness, "" if it is unknown."""
    origin: Mapping[str, str]
    """Facts of the run for the card: version, commit, steps."""
    lineage: tuple[str, ...]
    metric: str = "mean_reward"
    """The Hub's name of the fitness."""
    is_confirmed: bool = False
    """Whether the result is that of fresh episodes, and not of those by which the agent was selected."""


def _content_of(source: Run | Path | str | EvolvableAlgorithm, env: str) -> Content:
    if isinstance(source, EvolvableAlgorithm):
        fitness = source.fitness[-1] if source.fitness else ""
        tested = formatting.fitness(fitness) if isinstance(fitness, float) else ""
        environment = {"environment": {"id": env}} if env else {}
        return Content(source, env, {**environment, "algorithm": {"name": source.algo}}, tested, {}, ())
    run = source if isinstance(source, Run) else Run.open(source)
    last, records, saved = run.records.rows[-1], run.records, run.saved_best
    if saved is not None:
        mean, error = saved.record.fitness, saved.record.standard_error
    else:
        mean, error = (last.get(f"population/best_ever{suffix}", math.nan) for suffix in ("", "_standard_error"))
    result = formatting.with_named_error(mean, error) if math.isfinite(mean) else ""
    document, git = run.provenance, run.provenance.get("git") or {}
    origin = {
        "generations": str(run.generations()),
        "members": records.sizes,
        "environment steps of all members": formatting.count(last.get("time/total_timesteps", math.nan)),
        "seed": str(run.config.get("seed", "")),
        "outcome": records.outcome,
        "agilerl-like": str((document.get("versions") or {}).get(LIBRARY, "")),
        "git commit": str(git.get("commit", "") if isinstance(git, dict) else ""),
    }
    settings = {name: run.config[name] for name in Config.model_fields if name in run.config and name != "run"}
    return Content(
        run.best(),
        env or str((settings.get("environment") or {}).get("id", "")),
        settings,
        result,
        {name: value for name, value in origin.items() if value},
        tuple(_birth_line(birth) for birth in (run.ancestry() if saved is None else saved.ancestry)),
        "mean_reward" if run.fitness_is_mean_return else "fitness",
        records.best_is_confirmed if saved is None else saved.record.is_confirmed,
    )


def _birth_line(birth: Any) -> str:
    changes = ", ".join(str(its["operator"] or its["kind"]) for its in birth.mutations if its["kind"] != "none")
    parent = "" if birth.parent_uid < 0 else f" from {birth.parent_uid}"
    return f"generation {birth.generation}: member {birth.uid}{parent}{f': {changes}' if changes else ''}"


def _write(folder: Path, content: Content, video: Path | str | None, place: str) -> None:
    """Write the files of a repository into a folder; `place` is the argument of `from_hub` in its card."""
    _check_folder("repository", folder)
    card, film = folder / CARD, folder / VIDEO
    is_in_place = video is not None and film.exists() and film.samefile(video)
    if card.exists() and f"library_name: {LIBRARY}" not in card.read_text(encoding="utf-8", errors="replace")[:500]:
        raise ConfigurationError(f"repository={str(folder)!r} has a {CARD} that is not a card of this package")
    changed = [folder / CONFIG, *([] if is_in_place else [film])]
    if not card.exists() and (foreign := [path.name for path in changed if path.exists()]):
        raise ConfigurationError(
            f"repository={str(folder)!r} has a {foreign[0]} of its own, which would be replaced or removed; allowed is "
            "another folder"
        )
    safe_folder.check_target(folder / BEST)
    make_folder(folder)
    replace_file(card, card_of(content, place).encode())  # first: it marks the other files as ours
    content.agent.save_checkpoint(folder / BEST)
    replace_file(folder / CONFIG, to_yaml(dict(content.settings)).encode())
    if video is None:
        film.unlink(missing_ok=True)
    elif not is_in_place:
        shutil.copyfile(video, film)


def _copy(download: Path, folder: Path) -> None:
    """Copy a repository that was downloaded into a folder, where it replaces an earlier one."""
    safe_folder.write_folder(folder / BEST, "agent", *safe_folder.read_folder(download / BEST, "agent"))
    for name in (CONFIG, CARD):
        if (download / name).exists():
            replace_file(folder / name, safe_folder.read_regular(download / name, safe_folder.MAX_TEXT_BYTES))


def _check_folder(field: str, folder: Path) -> None:
    """Raise ConfigurationError if a folder is that of a run, or is itself a saved agent or population.

    `agilerl-like eval` would read the agent of the manifest instead of that in `best/`.
    """
    for name in (METRICS, LINEAGE, CHECKPOINTS, safe_folder.MANIFEST):
        if (folder / name).exists():
            raise ConfigurationError(
                f"{field}={str(folder)!r} has {name}, so it is the folder of a run or of a saved agent; allowed is "
                "another folder"
            )


def _shown(value: object) -> str:
    """Return a value as one line of Markdown without markup: others may have written the files of a run."""
    line = html.escape(" ".join(str(value).split()), quote=False)
    return re.sub(r"([|\[\]`*\\])", r"\\\1", line)


def card_of(content: Content, place: str) -> str:
    """Return the card: metadata that the Hub reads, what the agent is, and how to load it."""
    agent, env = content.agent, _shown(content.env or "an environment")
    metadata: dict[str, Any] = {
        "library_name": LIBRARY,
        "tags": [
            "reinforcement-learning",
            "evolutionary-hyperparameter-optimization",
            agent.algo,
            *filter(None, [content.env]),
        ],
    }
    if content.env and content.result:
        metric = {"type": content.metric, "name": content.metric, "value": content.result, "verified": False}
        task = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
        results = [{"task": task, "dataset": {"name": content.env, "type": content.env}, "metrics": [metric]}]
        metadata["model-index"] = [{"name": agent.algo, "results": results}]
    settings = [(name, formatting.hyperparameter(value)) for name, value in agent.hyperparameters.items()]
    facts = [
        ("architecture", agent.architecture.describe()),
        ("weights", f"{agent.parameter_count:,}"),
        *([(f"fitness{' on fresh episodes' * content.is_confirmed}", content.result)] if content.result else []),
        *settings,
        *content.origin.items(),
    ]
    shown, hidden = content.lineage[-LINES_OF_LINEAGE:], max(0, len(content.lineage) - LINES_OF_LINEAGE)
    lineage = [*([f"- {hidden} earlier births"] if hidden else []), *(f"- {_shown(line)}" for line in shown)]
    return "\n".join(
        [
            "---",
            to_yaml(metadata).rstrip(),
            "---",
            "",
            f"# {agent.algo} on {env}",
            "",
            f"An agent whose hyperparameters and architecture evolved while it learned in {env} (agilerl-like).",
            "",
            "| | |",
            "|---|---|",
            *(f"| {name} | {_shown(value)} |" for name, value in facts),
            "",
            *(["## How it came about", "", *lineage, ""] if lineage else []),
            "## Use",
            "",
            "```python",
            *(["from pathlib import Path", ""] if place.startswith("Path") else []),
            "from agilerl_like import from_hub",
            "",
            f"agent = from_hub({place})",
            "action, state = agent.predict(observation, deterministic=True)",
            "```",
            "",
            "Loading executes nothing of this repository. `config.yaml` has the settings of the run.",
            "",
        ]
    )
