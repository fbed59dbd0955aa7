"""Writing a policy to a file of one of three formats, and checking the file against the agent before it is returned."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import math
import os
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from agilerl_like.envs.action_masks import mask_slices
from agilerl_like.envs.random_actions import sample_of
from agilerl_like.errors import ConfigurationError
from agilerl_like.export.numpy_policy import TITLE, load_numpy_policy, numpy_source
from agilerl_like.export.policy_module import ACTION_MASK, PolicyModule, TrainedPolicy
from agilerl_like.modules.weight_transfer import in_eval_mode
from agilerl_like.networks.actor_critic import ACTOR
from agilerl_like.storage.durable_io import make_folder

OBSERVATIONS = 1000
"""Observations on which an exported file is compared with the agent."""
BATCH = 50
TOLERANCE = 1e-5
"""Largest difference of a hidden state or a continuous action, relative to 1 or the largest magnitude of its batch.

For float16 actions it is the distance between 1 and the next float16, which is larger.
"""
TIE = 1e-4
"""Policy outputs that differ by less are equal: which of them is larger is a matter of rounding."""

Runner = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]
"""Arrays of the policy's inputs -> arrays of its outputs, as an exported file computes them."""


def export_policy(learner: TrainedPolicy, path: str | os.PathLike[str], *, masks: bool | None = None) -> Path:
    """Write a learner's policy to `path` and return it; the suffix names the format, and the folder is made.

    `.onnx` is ONNX (needs the extra `export`), `.pt2` a `torch.export` archive, `.py` a module that needs numpy alone.
    The file takes the inputs that `PolicyModule` describes, in batches of any size, and returns the most likely
    actions. `masks` is whether it takes action masks; None: if the agent learned with them. Before the file is returned
    its actions are compared with the agent's on 1,000 random observations (sequences, if it is recurrent).

    Raises:
        ConfigurationError: another suffix, a `.py` file that was not exported, masks that the action space has not, a
            network that cannot be traced, or a file whose actions differ.
        OSError: the file cannot be written; the message has its path.
    """
    path = Path(path)
    check_export(learner, path, masks=masks)
    masks = learner.learned_with_masks if masks is None else masks
    module = PolicyModule(learner, masks=masks).requires_grad_(False)
    program = _traced(module)
    partial = path.with_name(f".partial-{uuid.uuid4().hex}{path.suffix}")  # names have a limit
    try:
        make_folder(path.absolute().parent)
        run = FORMATS[path.suffix](module, program, partial)
        with in_eval_mode(learner.network):  # as the module that was written
            _verify(learner, module, run, path)
        os.replace(partial, path)
    except OSError as error:
        raise OSError(f"path={str(path)!r} could not be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):  # its error would replace the one above
            partial.unlink()
    return path


def check_export(learner: TrainedPolicy, path: Path, *, masks: bool | None) -> None:
    """Raise ConfigurationError unless a learner's policy may be written to a path; nothing is written."""
    if path.suffix not in FORMATS:
        raise ConfigurationError(f"path={str(path)!r} ends in {path.suffix!r}; allowed are {', '.join(FORMATS)}")
    if path.suffix == ".py" and path.is_file() and not path.read_bytes().startswith(TITLE.encode()):
        raise ConfigurationError(f"path={str(path)!r} exists and is no exported policy; allowed is a new file")
    if masks and not learner.distribution.mask_size:
        raise ConfigurationError(
            f"masks=True: action_space={learner.action_space} has no action masks; allowed is None"
        )


def _traced(module: PolicyModule) -> torch.export.ExportedProgram:
    """Return the module as a graph of operations with a dynamic batch axis; inputs may have names."""
    example = tuple(torch.from_numpy(array) for array in _example(module, 3))
    batch = torch.export.Dim("batch", min=1)
    call: tuple[Any, ...] = (module, example)
    shapes: Any = (tuple({0: batch} for _ in example),)
    if module.has_named_inputs:
        names = module.argument_names
        call = (_with_names(module), (), dict(zip(names, example, strict=True)))
        shapes = {name: {0: batch} for name in names}
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):  # torch's own, about its internals
            return torch.export.export(*call, dynamic_shapes=shapes)
    except Exception as error:  # torch raises many types, among them the network's own
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ConfigurationError(
            f"the policy cannot be exported, because torch.export cannot trace its network: {' '.join(lines)[:500]}"
        ) from error


def _with_names(module: PolicyModule) -> nn.Module:
    """Return a module that takes the inputs of `module` by the names of its arguments; torch reads its signature."""
    names = module.argument_names

    def forward(_: nn.Module, **inputs: Tensor) -> tuple[Tensor, ...]:
        return module(*(inputs[name] for name in names))

    own = [Parameter("self", Parameter.POSITIONAL_ONLY), *(Parameter(name, Parameter.KEYWORD_ONLY) for name in names)]
    cast(Any, forward).__signature__ = Signature(own)
    named = type("NamedPolicy", (nn.Module,), {"forward": forward})()
    named.policy = module
    return named


def _example(module: PolicyModule, batch: int) -> list[np.ndarray]:
    arrays = [np.zeros((batch, *its.shape), its.dtype) for its in module.inputs]
    return [
        array | True if its.name == ACTION_MASK else array for its, array in zip(module.inputs, arrays, strict=True)
    ]


# -- formats


def _write_pt2(module: PolicyModule, program: torch.export.ExportedProgram, path: Path) -> Runner:
    data = io.BytesIO()  # torch's own writer ends the process where the disk is full
    torch.export.save(program, data)
    path.write_bytes(data.getvalue())
    loaded = torch.export.load(path).module()
    call = _caller(loaded, module)
    return lambda arrays: [x.detach().numpy() for x in call([*map(torch.from_numpy, arrays)])]


def _caller(policy: Callable[..., Any], module: PolicyModule) -> Callable[[Sequence[Any]], Any]:
    """Return a function that passes inputs in the module's order to a file's policy, by name where it has names."""
    if module.has_named_inputs:
        return lambda inputs: policy(**dict(zip(module.argument_names, inputs, strict=True)))
    return lambda inputs: policy(*inputs)


def _write_onnx(module: PolicyModule, program: torch.export.ExportedProgram, path: Path) -> Runner:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  # torch's exporter needs it
    except ImportError as error:
        raise ConfigurationError("an ONNX file needs more packages: pip install 'agilerl-like[export]'") from error
    names = [its.name for its in module.inputs]
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it reports that torchvision, which is not used, is not installed
    try:
        with warnings.catch_warnings(action="ignore"):  # torch's own, about its internals
            torch.onnx.export(
                program,
                f=path,
                input_names=names,
                output_names=module.output_names,
                dynamo=True,
                verbose=False,
                external_data=False,
                dynamic_shapes=_named_axes(module),
            )
    except Exception as error:  # of torch's exporter, which has several types
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, OSError):
            raise cause from error
        if isinstance(cause, ImportError):
            raise ConfigurationError(
                f"an ONNX file needs a newer onnxscript for torch {torch.__version__} ({cause}): "
                "pip install -U onnxscript"
            ) from error
        raise ConfigurationError(
            f"path={str(path)!r}: the network has an operation that ONNX lacks ({str(cause).splitlines()[0]:.200}); "
            "allowed are .pt2 and, for networks of common operations, .py"
        ) from error
    finally:
        logger.setLevel(level)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda arrays: cast(Any, session.run(module.output_names, dict(zip(names, arrays, strict=True))))  # arrays


def _named_axes(module: PolicyModule) -> Any:
    """Return the name of the batch axis of each input, in the structure of the traced call."""
    if module.has_named_inputs:
        return {name: {0: "batch"} for name in module.argument_names}
    return (tuple({0: "batch"} for _ in module.inputs),)


def _write_numpy(module: PolicyModule, program: torch.export.ExportedProgram, path: Path) -> Runner:
    path.write_text(numpy_source(module, program), encoding="utf-8")
    call = _caller(load_numpy_policy(path), module)

    def run(arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        try:
            outputs = call(arrays)
        except (NotImplementedError, TypeError) as error:  # of a function of `numpy_operations`
            raise ConfigurationError(
                "the policy cannot be written with numpy: its network uses an operation with arguments that this "
                f"package does not write in numpy ({error}); allowed are .onnx and .pt2"
            ) from error
        return outputs if module.recurrent else [outputs]

    return run


FORMATS: Mapping[str, Callable[[PolicyModule, torch.export.ExportedProgram, Path], Runner]] = {
    ".onnx": _write_onnx,
    ".pt2": _write_pt2,
    ".py": _write_numpy,
}


# -- verification


def _verify(learner: TrainedPolicy, module: PolicyModule, run: Runner, path: Path) -> None:
    """Raise ConfigurationError unless a file returns the agent's actions."""
    rng = np.random.default_rng(0)
    state = np.zeros((BATCH, *module.inputs[-1].shape), np.float32) if module.recurrent else None
    for _ in range(OBSERVATIONS // BATCH):
        arrays = [_random_part(leaf.space, rng) for leaf in learner.encoding.leaves]
        if module.masks:
            arrays.append(_random_masks(learner, rng))
        if state is not None:
            arrays.append(state)
        action, *after = run(arrays)
        outputs = module.policy_outputs(*map(torch.from_numpy, arrays))[0]
        if module.masks and mask_slices(learner.action_space):
            outputs = outputs.masked_fill(~torch.from_numpy(arrays[len(learner.encoding.leaves)]), -math.inf)
        expected, expected_state = _agent_actions(learner, module, arrays)
        _compare_actions(action, expected, outputs, learner, path)
        if state is not None:
            state = after[0]
            _compare("hidden state", state, expected_state, path)


def _agent_actions(
    learner: TrainedPolicy, module: PolicyModule, arrays: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return actions and next hidden state as the agent itself computes them, by `Learner.best_actions`."""
    leaves, device = learner.encoding.leaves, learner.device
    parts = [leaf.encode(array) for leaf, array in zip(leaves, arrays, strict=False)]
    rows = torch.from_numpy(learner.encoding.join(parts, np)).to(device)
    mask = torch.from_numpy(arrays[len(leaves)]).to(device) if module.masks else None
    state = torch.zeros(len(rows), *learner.network.state_shape, dtype=learner.network.dtype, device=device)
    if module.recurrent:
        state[:, ACTOR] = torch.from_numpy(arrays[-1])
    actions, after = learner.best_actions(rows, mask, state)
    return actions, after[:, ACTOR].cpu().numpy() if module.recurrent else None


def _random_part(space: Any, rng: np.random.Generator) -> np.ndarray:
    """Return random values `[BATCH, *shape]` of a space: within its bounds, or as `sample_of` where it has none."""
    space = copy.deepcopy(space)  # seeding that of the agent would change the caller's later samples
    space.seed(int(rng.integers(2**31)))
    return np.stack([np.asarray(sample_of(space)) for _ in range(BATCH)]).astype(space.dtype, copy=False)


def _random_masks(learner: TrainedPolicy, rng: np.random.Generator) -> np.ndarray:
    """Return random masks `[BATCH, choices]` with a legal action in each choice."""
    masks = rng.random((BATCH, learner.distribution.mask_size)) < 0.7
    for choice in mask_slices(learner.action_space):
        of_choice = masks[:, choice]
        of_choice[np.arange(BATCH), rng.integers(of_choice.shape[1], size=BATCH)] = True
    return masks


def _compare_actions(
    found: np.ndarray, expected: np.ndarray, outputs: Tensor, learner: TrainedPolicy, path: Path
) -> None:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise ConfigurationError(
            f"{path.name}: actions are {found.dtype}{found.shape} and the agent's {expected.dtype}{expected.shape}"
        )
    if np.issubdtype(expected.dtype, np.floating):
        return _compare("actions", found, expected, path)
    rows = (found != expected).reshape(len(found), -1).any(1)
    near = [_is_tie(outputs[row], found[row], expected[row], learner) for row in np.flatnonzero(rows)]
    if not all(near):
        raise ConfigurationError(f"{path.name}: {rows.sum()} of {len(rows)} actions differ from the agent's")
    return None


def _is_tie(outputs: Tensor, found: np.ndarray, expected: np.ndarray, learner: TrainedPolicy) -> bool:
    """Whether an action is as likely as the agent's for one observation, but for rounding."""
    slices = mask_slices(learner.action_space)
    if not slices:  # bits, each chosen by the sign of its output
        return bool((outputs.abs()[torch.from_numpy(np.ravel(found != expected))] < TIE).all())
    starts = np.ravel(getattr(learner.action_space, "start", 0))
    places = np.ravel(found) - starts
    choices = [outputs[choice] for choice in slices]
    return all(
        0 <= place < len(choice) and bool(choice.max() - choice[place] < TIE)
        for choice, place in zip(choices, places.tolist(), strict=True)
    )


def _compare(what: str, found: np.ndarray, expected: np.ndarray | None, path: Path) -> None:
    expected = np.asarray(expected)
    limit = max(TOLERANCE, float(np.finfo(expected.dtype).eps)) * max(1.0, float(np.abs(expected).max()))
    if found.shape != expected.shape or not (np.abs(found - expected) <= limit).all():
        error = np.abs(found - expected).max() if found.shape == expected.shape else "another shape"
        raise ConfigurationError(f"{path.name}: the {what} differ from the agent's by {error}; allowed is {limit:.2g}")
