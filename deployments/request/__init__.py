"""Execution of one request: jobs, endpoint sessions, timeouts, token log. No Ray in here."""
