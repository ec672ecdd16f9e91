"""Mode race: device and server start by plan, and the first token wins."""
