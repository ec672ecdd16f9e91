"""Which mode, device and replica serve a request."""
