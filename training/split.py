"""Cut the outer part off a model, for devices: `tandem split MODEL --layers m --out DIR`.

DIR is then a bundle: embedding, the first m layers, norm and head, the adapter if one is given, the tokenizer, and a
checksum of the whole model, by which a device and the cloud's middle know that they belong together. The middle is
loaded from the model's own folder.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tandem.deployments.pools.models import model_folder
from tandem.engine.family import NAMES, adapter_file
from tandem.engine.torch.split import bundle


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="tandem split",
        description=(__doc__ or ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model", help=f"a model of the family ({', '.join(NAMES)}), a folder, or a hub's org/name"
    )
    parser.add_argument("--layers", type=int, required=True, help="m: how many of its first layers go along")
    parser.add_argument("--out", type=Path, required=True, help="folder for the bundle")
    parser.add_argument(
        "--adapter",
        type=Path,
        help="*.safetensors file of a trained adapter, to draft with; otherwise the family's own for so many layers",
    )
    chosen = parser.parse_args(arguments)
    adapter = chosen.adapter
    if adapter is None and adapter_file(chosen.model, chosen.layers).exists():
        adapter = adapter_file(chosen.model, chosen.layers)
    try:
        made = bundle.write(model_folder(chosen.model), chosen.layers, chosen.out, adapter)
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    size_mb = sum(file.stat().st_size for file in chosen.out.rglob("*.safetensors")) / 1e6
    print(
        f"{chosen.out}: {made.split.first} of {made.split.layers} layers of {made.model}, {size_mb:.1f} MB, "
        f"model {made.split.checksum[:12]}, {'no adapter' if adapter is None else f'adapter {adapter.name}'}"
    )


if __name__ == "__main__":
    main()
