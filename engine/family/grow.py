"""A dearer model with the same outputs: `python -m engine.family.grow target 8 OUT`.

As in LLaMA Pro, copies of blocks are put in whose two output projections are zero. Such a block costs what
any block costs, but adds exactly nothing to the residual stream. So a benchmark can have a target 5-20 times
dearer than the family's, which answers and accepts drafts exactly as before.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tandem.engine.family import NAMES, path


def grow(model_folder: Path, factor: int, out_folder: Path) -> None:
    """Write the model with `factor` times its blocks (a whole number from 1 on) and unchanged outputs.

    Works for any Llama-like folder. Each block is followed by its factor - 1 idle copies.
    """
    if factor < 1:
        raise ValueError(f"a model grows by a whole factor of at least 1, not {factor}")
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype="auto")
    grown: list[Any] = []
    for block in model.model.layers:
        grown.append(block)
        for _ in range(factor - 1):
            idle = deepcopy(block)
            for projection in (idle.self_attn.o_proj, idle.mlp.down_proj):
                for parameter in projection.parameters():
                    torch.nn.init.zeros_(parameter)
            grown.append(idle)
    for index, block in enumerate(grown):
        block.self_attn.layer_idx = index  # its place in the KV cache
    model.model.layers = torch.nn.ModuleList(grown)
    model.config.num_hidden_layers = len(grown)
    if getattr(model.config, "layer_types", None) is not None:
        model.config.layer_types = [kind for kind in model.config.layer_types for _ in range(factor)]
    model.save_pretrained(out_folder)
    AutoTokenizer.from_pretrained(model_folder).save_pretrained(out_folder)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m engine.family.grow", description=__doc__.split("\n")[0])
    parser.add_argument("model", help=f"a model of the family ({', '.join(NAMES)}) or a model folder")
    parser.add_argument("factor", type=int, help="how many times the blocks, e.g. 8")
    parser.add_argument("out", type=Path, help="folder for the grown model")
    chosen = parser.parse_args(arguments)
    grow(path(chosen.model) if chosen.model in NAMES else Path(chosen.model), chosen.factor, chosen.out)
    print(f"{chosen.out}: {chosen.model} with {chosen.factor} times the blocks")


if __name__ == "__main__":
    main()
