"""The trainer and its manifests."""

from agilerl.training.trainer import LocalTrainer

assert LocalTrainer
