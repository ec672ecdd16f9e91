"""llama.cpp below the core: GGUF models as they are, on CPUs and what llama.cpp runs on."""
