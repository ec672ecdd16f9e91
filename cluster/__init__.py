"""The machines: wire protocol, links, devices, their profiles and hosts."""
