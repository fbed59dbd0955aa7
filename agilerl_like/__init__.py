"""Populations of PPO agents that find their hyperparameters and architectures while they train."""
