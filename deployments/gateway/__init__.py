"""Devices that dial in: the gateway's side and the device's."""
