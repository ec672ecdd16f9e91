"""The HTTP API: OpenAI's endpoints, what Tandem adds to them, and how answers become streams."""
