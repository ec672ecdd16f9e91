"""The torch engine: a model of the Llama family behind the engine protocol, its steps in a thread of their own."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypedDict, TypeVar, Unpack

import torch

from tandem.engine.base import EngineInfo
from tandem.engine.config import EngineConfig
from tandem.engine.core.engine import CoreEngine, Driver
from tandem.engine.core.step import Core
from tandem.engine.core.thread import ThreadDriver
from tandem.engine.memory import free_bytes
from tandem.engine.models.dtype import Dtype, choose
from tandem.engine.models.model_folder import model_name, shape
from tandem.engine.text.grammar import Grammars
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch import weights
from tandem.engine.torch.model import Model
from tandem.engine.torch.runner import TorchRunner

logger = logging.getLogger("ray.serve")

GPU = Path("/dev/nvidia0")

T = TypeVar("T")
C = TypeVar("C", bound=Core)
E = TypeVar("E", bound=CoreEngine)


class Options(TypedDict, total=False):
    """Options of every load.

    device: "cpu", "cuda" …; by default a GPU if there is one.
    dtype: precision of weights and KV cache, see `engine.models.dtype.choose`.
    memory_fraction: share of the memory free beside the weights that the KV cache takes; None: `kv_blocks`.
    name: of the model, by default the folder's.
    threads: number of threads of torch for this engine, by default torch's own.
    report: called with the loaded model's figures and memory, by name.
    """

    device: str | None
    dtype: Dtype
    memory_fraction: float | None
    name: str | None
    threads: int | None
    report: Callable[[dict[str, object]], object]


def load(
    folder: str | Path, config: EngineConfig, *, grow: int = 1, **options: Unpack[Options]
) -> CoreEngine:
    """Load an engine from a local Hugging Face folder.

    grow: run the model with this many times its layers and unchanged outputs (engine.family.grow).
    Raises UnsupportedModel, or ValueError if `memory_fraction` leaves too little.
    """
    began_s, folder, threads = time.perf_counter(), Path(folder), options.get("threads")
    place, dtype = place_of(folder, options)
    fraction = options.get("memory_fraction")
    read = partial(_weights, folder, place, dtype, grow, config.kv_tokens if fraction is None else None)
    loaded = apart(read, threads)  # laid out for as many threads
    if fraction is not None:
        config = with_kv_blocks(config, loaded, fraction)
    tokenizer = Tokenizer.load(folder)
    info = EngineInfo(
        model=options.get("name") or model_name(folder),
        vocabulary=tokenizer.vocabulary,
        vocab_size=min(loaded.config.vocab_size, tokenizer.vocab_size),
        context=loaded.config.context,
        eos=tokenizer.eos,
    )
    engine = start(Model(loaded), info, config, tokenizer, threads)
    report(options, info, loaded, config, began_s)
    return engine


def with_kv_blocks(config: EngineConfig, loaded: weights.Weights, fraction: float) -> EngineConfig:
    """Return the settings with the KV cache that `fraction` of the free memory holds, at most a context for each
    session. Raises ValueError with the arithmetic if it does not hold one context."""
    gpu = loaded.device.type == "cuda"
    free = torch.cuda.mem_get_info(loaded.device)[0] if gpu else free_bytes()
    block_bytes = config.block_size * loaded.kv_token_bytes
    blocks, needed = int(fraction * free // block_bytes), -(-loaded.config.context // config.block_size)
    if blocks < needed:
        raise ValueError(
            f"memory_fraction: {fraction:.2f} of {free / 1e9:.2f} GB that are free beside the weights are "
            f"{fraction * free / 1e9:.2f} GB, and one context needs {needed * block_bytes / 1e9:.2f} GB: "
            f"{loaded.config.context} tokens of {loaded.kv_token_bytes / 1e3:.1f} kB each; "
            "kv_blocks can say fewer tokens"
        )
    return config.model_copy(update={"kv_blocks": min(blocks, needed * config.max_sessions)})


def place_of(folder: Path, options: Options) -> tuple[torch.device, torch.dtype]:
    """Return device and precision of a folder's model. Raises UnsupportedModel if it holds none."""
    place = torch.device(options.get("device") or ("cuda" if torch.cuda.is_available() else "cpu"))
    if options.get("device") is None and (advice := advise(place)) is not None:
        logger.warning("%s: %s", folder.name, advice)
    shape(folder)
    return place, getattr(torch, choose(options.get("dtype", "auto"), folder, gpu=place.type != "cpu"))


def advise(place: torch.device) -> str | None:
    """Return what an operator with a GPU should know of an engine that computes on `place`; None: nothing."""
    if place.type == "cuda":
        return (
            "the torch engine launches a step's kernels one by one, which takes longer than the arithmetic of small "
            "models; vLLM is the engine for GPUs (kind: vllm, make vllm)"
        )
    if GPU.exists():
        return "the torch engine computes on cores, though this machine has a GPU: `gpus` reserves one"
    return None


def report(
    options: Options, info: EngineInfo, loaded: weights.Weights, config: EngineConfig, began_s: float
) -> None:
    """Report the loaded model's figures and memory, if somebody asks for them."""
    if (receive := options.get("report")) is None:
        return
    figures = {
        "model": info.model,
        "load_s": round(time.perf_counter() - began_s, 2),
        "parameters": loaded.parameters,
        "dtype": str(loaded.dtype).removeprefix("torch."),
        "place": str(loaded.device),
        "threads": options.get("threads") or torch.get_num_threads(),
        "kv_blocks": config.kv_blocks,
        "kv_tokens": config.kv_tokens,
        "kv_bytes": config.kv_tokens * loaded.kv_token_bytes,
    }
    receive(figures)


def _weights(
    folder: Path, device: torch.device, dtype: torch.dtype, grow: int, longest: int | None
) -> weights.Weights:
    if grow == 1:
        return weights.load(folder, device, dtype, longest=longest)
    from tandem.engine.family.grow import grow as write_grown  # needs transformers: for experiments only

    with tempfile.TemporaryDirectory() as grown:
        write_grown(folder, grow, Path(grown))
        return weights.load(Path(grown), device, dtype, longest=longest)


def start(
    model: Model,
    info: EngineInfo,
    config: EngineConfig,
    tokenizer: Tokenizer | None = None,
    threads: int | None = None,
) -> CoreEngine:
    """An engine over a model that is loaded. threads: see `Options`."""
    core = apart(
        lambda: Core(TorchRunner(model, config.kv_blocks, config.block_size, info.vocab_size), config),
        threads,
    )
    grammars = None if tokenizer is None else Grammars(tokenizer, info.vocab_size)
    return drive(core, info, threads, partial(CoreEngine, tokenizer=tokenizer, grammars=grammars))


def drive(core: C, info: EngineInfo, threads: int | None, make: Callable[[C, Driver, EngineInfo], E]) -> E:
    """The engine that `make` makes over a core, whose steps have begun in a thread of their own."""
    prepare = (lambda: None) if threads is None else partial(torch.set_num_threads, threads)
    driver = ThreadDriver(core, f"engine-{info.model}", prepare)
    engine = make(core, driver, info)
    driver.start(engine.fail)
    return engine


def apart(work: Callable[[], T], threads: int | None) -> T:
    """Return the result of `work`, run in a thread that ends with it. threads: of torch there.

    OpenMP keeps a team for each thread that ever computed in parallel, as long as that lives. Once all teams together
    are more threads than there are CPUs, their members sleep at every barrier instead of spinning, which a step of many
    small operations cannot afford. So only the engine's thread should have a team.
    """

    def run() -> T:
        with _threads(threads):
            return work()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Set torch's threads inside the context; None: leave them."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
