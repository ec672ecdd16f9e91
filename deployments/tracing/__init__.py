"""Traces of requests, for OpenTelemetry: one tree of spans a request, over all that take part in it."""
