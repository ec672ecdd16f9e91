"""Policies: every decision Tandem takes, as pure code without Ray, torch, clock or I/O."""
