"""How one request is carried: executor, endpoint sessions, time limits, token log. No Ray in here."""
