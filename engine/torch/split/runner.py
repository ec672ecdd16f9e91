"""The parts of a split model in torch: its middle, and its outer part with the adapter that drafts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Unpack

import numpy as np
import torch

from tandem.engine.base import EngineInfo, Sampling
from tandem.engine.config import EngineConfig
from tandem.engine.core.runner import Outcome, Work
from tandem.engine.core.sequence import Sequence as Session
from tandem.engine.core.split.middle import MiddleEngine
from tandem.engine.core.split.outer import CoreOuterEngine, OuterCore, OuterSequence
from tandem.engine.core.split.pipeline import Pipeline, spread
from tandem.engine.core.step import Core
from tandem.engine.core.tasks import RoundTask
from tandem.engine.models.model_folder import model_name
from tandem.engine.split.hidden_states import Kind
from tandem.engine.text.grammar import Grammars
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch import weights
from tandem.engine.torch.attention.batch import Batch, BatchPiece
from tandem.engine.torch.engine import Options, apart, drive, place_of, report
from tandem.engine.torch.model import KVPool, Model
from tandem.engine.torch.outcomes import adjusted, decide, forbid
from tandem.engine.torch.rng import Purpose, uniforms
from tandem.engine.torch.runner import TorchRunner
from tandem.engine.torch.sampling import DRAFT_SUPPORT, distributions, draw
from tandem.engine.torch.split import bundle
from tandem.engine.torch.weights import Part, Weights


def load_middle(
    folder: str | Path, first: int, config: EngineConfig, **options: Unpack[Options]
) -> MiddleEngine:
    """Load a middle: the layers from `first` on of the model in a local Hugging Face folder, without its ends. All of a
    folder that has changed, or is new here, is read once, for the checksum.

    Raises UnsupportedModel, or BadBundle if there is no such layer.
    """
    (engine,) = _load_stages(Path(folder), first, 1, config, options)
    return engine


def load_pipeline(
    folder: str | Path, first: int, stages: int, config: EngineConfig, **options: Unpack[Options]
) -> Pipeline:
    """Load the layers, spread over stages as evenly as possible. Each stage has threads and a KV cache of equal size
    of its own. Raises BadBundle also if there is not a layer for each."""
    return Pipeline(_load_stages(Path(folder), first, stages, config, options))


def _load_stages(
    folder: Path, first: int, stages: int, config: EngineConfig, options: Options
) -> list[MiddleEngine]:
    began_s, threads = time.perf_counter(), options.get("threads")
    split = bundle.describe(folder, first)
    place, dtype = place_of(folder, options)
    try:
        parts = [Part(begin, end, ends=False) for begin, end in spread(first, split.layers, stages)]
    except ValueError as error:
        raise bundle.BadBundle(str(error)) from None
    loaded = [apart(partial(weights.load, folder, place, dtype, part), threads) for part in parts]
    tokenizer = Tokenizer.load(folder)  # for its name alone
    info = EngineInfo(
        model=options.get("name") or model_name(folder),
        vocabulary=tokenizer.vocabulary,
        vocab_size=loaded[0].config.vocab_size,
        context=loaded[0].config.context,
        eos=tokenizer.eos,
        capabilities=("forward",),
        split=split,
    )
    for each in loaded:
        report(options, info, each, config, began_s)
    return [start_middle(TorchMiddle(each), info, config, threads) for each in loaded]


def load_outer(
    folder: str | Path, config: EngineConfig, *, kind: Kind = "float32", **options: Unpack[Options]
) -> CoreOuterEngine:
    """Load the outer part of a bundle. kind: of hidden states on the wire. Raises BadBundle, UnsupportedModel."""
    began_s, folder, threads = time.perf_counter(), Path(folder), options.get("threads")
    described = bundle.read(folder)
    place, dtype = place_of(folder, options)

    def read() -> Weights:
        ends = weights.load(folder, place, dtype, Part(0, described.split.first))
        adapter = folder / bundle.ADAPTER
        return weights.with_adapter(ends, adapter) if adapter.exists() else ends

    loaded = apart(read, threads)
    tokenizer = Tokenizer.load(folder)
    info = EngineInfo(
        model=options.get("name") or described.model,
        vocabulary=tokenizer.vocabulary,
        vocab_size=min(loaded.config.vocab_size, tokenizer.vocab_size),
        context=loaded.config.context,
        eos=tokenizer.eos,
        capabilities=(),
        split=described.split,
    )
    engine = start_outer(Outer(loaded), info, config, tokenizer, threads, kind)
    report(options, info, loaded, config, began_s)
    return engine


def start_middle(
    model: TorchMiddle, info: EngineInfo, config: EngineConfig, threads: int | None = None
) -> MiddleEngine:
    """An engine over a middle that is loaded."""
    core = apart(lambda: Core(MiddleRunner(model, config.kv_blocks, config.block_size), config), threads)
    return drive(core, info, threads, MiddleEngine)


def start_outer(
    model: Outer,
    info: EngineInfo,
    config: EngineConfig,
    tokenizer: Tokenizer | None = None,
    threads: int | None = None,
    kind: Kind = "float32",
) -> CoreOuterEngine:
    """An engine over an outer part that is loaded."""
    core = apart(
        lambda: OuterCore(
            TorchOuterRunner(model, config.kv_blocks, config.block_size, info.vocab_size), config
        ),
        threads,
    )
    grammars = None if tokenizer is None else Grammars(tokenizer, info.vocab_size)
    make = partial(CoreOuterEngine, tokenizer=tokenizer, kind=kind, grammars=grammars)
    return drive(core, info, threads, make)


class TorchMiddle(Model):
    """Decoder layers alone: hidden states in, hidden states out."""

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """[T, hidden] → the same"""
        return ids.to(self.dtype)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden] → the same in float32."""
        return hidden.float()


class MiddleRunner(TorchRunner):
    """Steps of forward sessions."""

    def outcomes(self, finished: list[Session], logits: torch.Tensor) -> list[Outcome]:
        rows = logits.cpu().numpy()
        ends = np.cumsum([s.window for s in finished])
        return [Outcome(0, 0, hidden=part) for part in np.split(rows, ends[:-1])] if finished else []


class Outer(Model):
    """Embed → shallow layers (→ adapter) → head."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self.drafts = weights.layers[-1].feed_forward is None
        self._shallow = len(weights.layers) - self.drafts

    def shallow(self, batch: Batch, pool: KVPool) -> tuple[torch.Tensor, torch.Tensor]:
        """(logits as those of `forward`, hidden states [T, hidden] in float32 after the shallow layers)."""
        shallow = self.decode(self.embed(batch.inputs), batch, pool, 0, self._shallow)
        hidden = self.decode(shallow, batch, pool, self._shallow)
        if batch.logit_rows is not None:
            hidden = hidden.index_select(0, batch.logit_rows)
        return self.head(hidden), shallow.float()


class TorchOuterRunner(TorchRunner):
    """Steps of outer sessions."""

    model: Outer

    def __init__(self, model: Outer, num_blocks: int, block_size: int, vocab_size: int | None = None) -> None:
        super().__init__(model, num_blocks, block_size, vocab_size)
        self.drafts = model.drafts

    def logits(self, s: Session) -> int:
        return int(isinstance(s.task, RoundTask) and not s.task.closing)

    def forward(self, work: Work, pieces: Sequence[BatchPiece]) -> torch.Tensor:
        logits, shallow = self.model.shallow(self.model.batch(pieces, self.kv), self.kv)
        rows, row = shallow.cpu().numpy(), 0
        for s, grant in work:
            assert isinstance(s, OuterSequence)
            s.shallow.put(s.computed, rows[row : row + grant])
            row += grant
        return logits

    def outcomes(self, finished: list[Session], logits: torch.Tensor) -> list[Outcome]:
        drafting = [s for s in finished if self.logits(s)]
        drafted = iter(_draft(drafting, logits[:, : self._vocab_size]) if drafting else [])
        return [next(drafted) if self.logits(s) else Outcome(0, 0) for s in finished]

    def judge(self, s: OuterSequence, deep: np.ndarray) -> Outcome:
        with torch.inference_mode():
            hidden = torch.tensor(deep).to(self.model.device, self.model.dtype)
            return decide([s], self.model.head(hidden)[:, : self._vocab_size])[0]


_AS_IT_IS = Sampling(temperature=1.0)


def _draft(sequences: Sequence[Session], raw: torch.Tensor) -> list[Outcome]:
    """Draft a token each, the best or sampled, with the likeliest and their probabilities: for a greedy draft the
    model's own, otherwise those that it was sampled from."""
    settings = [s.sampling for s in sequences]
    logits = adjusted(sequences, raw)
    forbid(logits, sequences)
    probs = distributions(logits, [_AS_IT_IS if s.greedy else s for s in settings])
    likeliest, ids = probs.topk(min(DRAFT_SUPPORT, probs.shape[1]), dim=-1)
    drawn_from = likeliest / likeliest.sum(dim=-1, keepdim=True)
    chance = uniforms([s.seed for s in settings], [s.output_len for s in sequences], Purpose.DRAFT)
    drawn = ids.gather(1, draw(drawn_from, chance)[:, None])
    greedy = torch.tensor([[s.greedy] for s in settings], device=ids.device)
    tokens = torch.where(greedy, ids[:, :1], drawn).squeeze(1).tolist()
    of = torch.where(greedy, likeliest, drawn_from).float().cpu().numpy()
    names = ids.cpu().numpy().astype(np.int32)
    return [Outcome(0, token, q=(names[i], of[i])) for i, token in enumerate(tokens)]
