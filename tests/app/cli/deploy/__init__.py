"""Tests of app.cli.deploy."""
