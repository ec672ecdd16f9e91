"""Model execution: the engine protocol, the batched torch engine and the embedded model family."""
