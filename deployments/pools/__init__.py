"""Pools of replicas and device hosts: their engines, their scale."""
