"""llama.cpp below the core: GGUF models as they are, on CPUs and what llama.cpp runs on.

Nothing here imports llama.cpp before an engine is started: not every machine has it.
"""
