"""Text and tokens: tokenizers, incremental decoding, grammars, thoughts."""
