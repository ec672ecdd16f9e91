"""Any service with OpenAI's API as an engine: text goes there, text comes back."""
