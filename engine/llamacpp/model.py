"""A GGUF model in llama.cpp: weights, a KV cache of cells, and the forward pass over a mixed batch.

The binding is llama-cpp-python's, whose `llama_cpp.llama_cpp` has llama.cpp's whole C interface by ctypes.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import llama_cpp.llama_cpp as lib
import numpy as np

from tandem.engine.models.model_folder import UnsupportedModel
from tandem.policies.estimators.threads import StepThreads


def check(file: Path) -> None:
    """Raise UnsupportedModel if this llama.cpp cannot run the model of a GGUF file; only its vocabulary is loaded."""
    wanted = lib.llama_model_default_params()
    wanted.vocab_only = True
    lib.llama_model_free(_load(file, wanted))


def _load(file: Path, wanted: lib.llama_model_params) -> Any:
    """Return llama.cpp's model. Raise UnsupportedModel."""
    _quieten()
    model = lib.llama_model_load_from_file(os.fsencode(file), wanted)
    if not model:
        raise UnsupportedModel(
            f"llama.cpp cannot load {file} ({_last_words()}); another kind of engine may run the model's Hugging Face "
            "folder"
        )
    if lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model):
        lib.llama_model_free(model)
        raise UnsupportedModel(
            f"{file} is a recurrent model: its state cannot be rolled back, as verification has to"
        )
    return model


class BatchRow(NamedTuple):
    """A row's part of a step: `ids` at the positions from `start` on, and how many of the last want logits."""

    row: int
    start: int
    ids: Sequence[int]
    logits: int


_BF16 = 30
"""GGML_TYPE_BF16 of ggml.h, which the binding does not name."""


class LlamaModel:
    """Weights and one context. Not for two threads at once.

    vocab_size: rows of the logits.
    context: tokens that the model was trained for.
    size_bytes: of the weights.
    parameters: their number.
    """

    def __init__(
        self,
        file: Path,
        *,
        cells: int,
        rows: int,
        batch_tokens: int,
        threads: int,
        gpu_layers: int = 0,
        reproducible: bool = False,
    ) -> None:
        """cells: positions that the KV cache holds.
        rows: sequences of llama.cpp.
        batch_tokens: most positions of a step.
        threads: most threads of a step; it has fewer while other programs keep cores busy.
        gpu_layers: layers on a GPU, where the build has one; the rest runs on the CPU.
        reproducible: see `LlamacppConfig`.

        Raises UnsupportedModel.
        """
        self._context = self._model = None
        wanted = lib.llama_model_default_params()
        wanted.n_gpu_layers = gpu_layers
        wanted.use_extra_bufts = not reproducible  # laid out for large steps, weights round otherwise
        if wanted.use_extra_bufts and not gpu_layers:  # a mapped file would hold those weights a second time
            wanted.load_mode = lib.LLAMA_LOAD_MODE_NONE
        self._model = _load(file, wanted)
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max = cells, rows
        params.n_batch = params.n_ubatch = batch_tokens
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = True  # one pool of cells for all rows
        params.swa_full = True  # rows are rolled back further than a sliding window reaches
        params.no_perf = True
        if reproducible:  # with values in float16, a single query's attention is summed by thread
            params.flash_attn_type, params.type_v = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED, _BF16
        self._context = lib.llama_init_from_model(self._model, params)
        if not self._context:
            self.close()
            raise UnsupportedModel(f"llama.cpp has no room for a KV cache of {cells} tokens of {file}")
        self._memory = lib.llama_get_memory(self._context)
        self._batch, self._threads = _Batch(batch_tokens), StepThreads(threads)
        vocab = lib.llama_model_get_vocab(self._model)
        self.vocab_size: int = lib.llama_vocab_n_tokens(vocab)
        self.context: int = lib.llama_model_n_ctx_train(self._model)
        self.size_bytes: int = lib.llama_model_size(self._model)
        self.parameters: int = lib.llama_model_n_params(self._model)

    def forward(self, batch: Sequence[BatchRow]) -> np.ndarray:
        """Compute the batch; return the logits of the positions that want them, [positions, vocab] float32, in the
        batch's order. They are llama.cpp's memory, and hold until the next call."""
        b, at, wanted = self._batch, 0, 0
        for part in batch:
            end = at + len(part.ids)
            b.ids[at:end] = part.ids
            b.positions[at:end] = np.arange(part.start, part.start + len(part.ids))
            b.rows[at:end] = part.row
            b.logits[at:end] = 0
            b.logits[end - part.logits : end] = 1
            at, wanted = end, wanted + part.logits
        b.struct.n_tokens = at
        began_s, threads = time.perf_counter(), self._threads.choose(at)
        lib.llama_set_n_threads(self._context, threads, threads)
        if code := lib.llama_decode(self._context, b.struct):
            raise RuntimeError(f"llama_decode returned {code}: {_last_words()}")
        self._threads.note(at, time.perf_counter() - began_s)
        if not wanted:
            return np.empty((0, self.vocab_size), np.float32)
        return np.ctypeslib.as_array(lib.llama_get_logits(self._context), shape=(wanted, self.vocab_size))

    def remove(self, row: int, first: int, end: int) -> None:
        """See `Cells.remove`."""
        if not lib.llama_memory_seq_rm(self._memory, row, first, end):
            raise RuntimeError(f"llama.cpp cannot remove positions {first} to {end} of a sequence")

    def copy(self, source: int, target: int, first: int, end: int) -> None:
        """See `Cells.copy`."""
        lib.llama_memory_seq_cp(self._memory, source, target, first, end)

    def close(self) -> None:
        """Free weights and KV cache."""
        if self._context:
            lib.llama_free(self._context)
        if self._model:
            lib.llama_model_free(self._model)
        self._context = self._model = None

    def __del__(self) -> None:
        self.close()


class _Batch:
    """A batch of llama.cpp over arrays of its own, [size] each: ids, positions, rows, flags for logits."""

    def __init__(self, size: int) -> None:
        self.ids, self.positions, self.rows = (np.zeros(size, np.int32) for _ in range(3))
        self.logits = np.zeros(size, np.int8)
        self._ones = np.ones(size, np.int32)
        self._row_at = self.rows.ctypes.data + 4 * np.arange(size + 1, dtype=np.uintp)
        self._row_at[size] = 0  # the list of lists ends with a null
        self.struct = lib.llama_batch(
            token=self.ids.ctypes.data_as(ctypes.POINTER(lib.llama_token)),
            pos=self.positions.ctypes.data_as(ctypes.POINTER(lib.llama_pos)),
            n_seq_id=self._ones.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            seq_id=self._row_at.ctypes.data_as(ctypes.POINTER(ctypes.POINTER(lib.llama_seq_id))),
            logits=self.logits.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )


_said: list[str] = []


@lib.llama_log_callback
def _listen(level: int, text: bytes, _: Any) -> None:
    if level >= 3:  # GGML_LOG_LEVEL_WARN
        _said.append(text.decode("utf-8", "replace").strip())
        del _said[:-8]


def _quieten() -> None:
    """Have llama.cpp write nothing; its last warnings from now on are kept for errors."""
    _said.clear()
    lib.llama_log_set(_listen, None)
    lib.llama_backend_init()


def _last_words() -> str:
    return "; ".join(said for said in _said if said) or "it gives no reason"
