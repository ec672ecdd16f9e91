"""The front door: the application, its settings, the OpenAI API and the command line."""
