"""Public data that the benchmarks read: where each file comes from, its licence and checksum, and whether it is here.

`--fetch` fetches what is missing into TANDEM_DATA, and checks it. What is there already is never overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import httpx

from tandem.benchmarks import report
from tandem.benchmarks.data.fetching import CannotFetch, Fetcher, Offline
from tandem.benchmarks.data.sources import ADDRESS, PublicFile, Repository, repositories
from tandem.benchmarks.paths import DATA


def run(arguments: Sequence[str]) -> None:
    """Show the files, or fetch those that are missing. Raises SystemExit if one cannot be had."""
    parser = report.parser("data", __doc__)
    parser.add_argument("--fetch", action="store_true", help="fetch what is missing")
    parser.add_argument("--only", default="", help="only files whose path begins so, as in prompts/")
    parser.add_argument("--address", default=ADDRESS, help=f"take them from another server than {ADDRESS}")
    options = parser.parse_args(arguments)
    wanted = [(at, file) for at, file in _files() if file.file.startswith(options.only)]
    if not wanted:
        raise SystemExit(f"no file begins with {options.only!r}")
    if options.fetch:
        _fetch(wanted, options.address)
    else:
        _show(wanted, options.address)


def _files() -> Iterator[tuple[Repository, PublicFile]]:
    for repository in repositories():
        for file in repository.files:
            yield repository, file


def _show(wanted: Sequence[tuple[Repository, PublicFile]], address: str) -> None:
    """Print each file with its address in one piece, as a table would break it."""
    states = [file.state(DATA) for _, file in wanted]
    for state, (at, file) in zip(states, wanted, strict=True):
        first, *others = at.downloads(file)
        made = "" if file.prepare == "as_it_is" else f", made by prepare.{file.prepare}"
        print(f"{file.file}: {state}; {at.licence}, {file.size:,} bytes{made}")
        print(f"    {first.url(address)}" + (f" and {len(others)} more" if others else ""))
        print(f"    SHA-256 {file.sha256}")
    missing = states.count("missing")
    print(
        f"{missing} of {len(wanted)} files are missing in {DATA} (TANDEM_DATA)"
        + ("; --fetch fetches them" if missing else "")
    )


def _fetch(wanted: Sequence[tuple[Repository, PublicFile]], address: str) -> None:
    failures = list[str]()
    with httpx.Client(transport=httpx.HTTPTransport(retries=2)) as client:
        fetcher = Fetcher(DATA, address, client)
        for at, file in wanted:
            state = file.state(DATA)
            if state == "differs":
                failures.append(f"{file.file} is there with another checksum: remove it to fetch it anew")
            if state != "missing":
                continue
            try:
                fetcher.fetch(file, at.downloads(file))
            except Offline as error:
                raise SystemExit(
                    f"{error}\nWithout a network: fetch on another machine, copy the folder here, and name it in "
                    "TANDEM_DATA."
                ) from None
            except CannotFetch as error:
                failures.append(str(error))
            else:
                print(f"{file.file}: {file.size:,} bytes, {at.licence}, {at.repository}", flush=True)
    if failures:
        raise SystemExit("\n".join(failures))
    print(f"all {len(wanted)} files are in {DATA}")
