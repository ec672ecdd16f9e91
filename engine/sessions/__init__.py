"""Sessions of engines: their rules, tables and figures."""
