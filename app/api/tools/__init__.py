"""Tools: how models of each family are told of them and call them, and how their calls become OpenAI's."""
