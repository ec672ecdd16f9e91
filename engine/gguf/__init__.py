"""GGUF files, the format of llama.cpp's models: their metadata, and a Hugging Face folder made from it."""
