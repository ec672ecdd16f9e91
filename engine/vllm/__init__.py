"""Models served by vLLM: its engine behind the engine protocol, with Tandem's scheduling inside its scheduler.

Nothing here imports vLLM before an engine is started: it takes seconds, and not every machine has it.
"""

from __future__ import annotations

import os

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CONFIGURE_LOGGING": "0",  # that closes the handlers of all loggers, and a replica's log would end there
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a replica has threads, which a fork would lose
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; by default most of the machine, whatever kv_blocks says
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # engines beside each other would all take the first cores
    "OMP_WAIT_POLICY": "passive",
    # Of the n-gram proposer's compiler: with OpenMP, which torch has too, models talk nonsense at OMP_THREAD_LIMIT=1.
    "NUMBA_THREADING_LAYER": "workqueue",
}
"""Environment variables of vLLM, unless they are set already."""


def set_environment() -> None:
    """Set what vLLM reads on import."""
    for key, value in ENVIRONMENT.items():
        os.environ.setdefault(key, value)
