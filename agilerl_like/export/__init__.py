"""Policies as files that run without this package: ONNX, `torch.export` and plain numpy."""

from agilerl_like.export.exporter import export_policy
from agilerl_like.export.policy_module import PolicyModule

__all__ = ["PolicyModule", "export_policy"]
