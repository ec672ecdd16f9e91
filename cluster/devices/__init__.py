"""Devices: their speed, energy and models, and the hosts that run many of them."""
