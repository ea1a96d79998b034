"""Rollouts in other processes: executors for the Cookbook's ``rollout_executor``."""
