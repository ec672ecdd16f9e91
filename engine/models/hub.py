"""Models of a Hugging Face hub by name: found in the hub's cache on this machine, or fetched into it.

huggingface_hub does the work, and honours HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE. It is imported only where
a model of a hub is asked for.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tandem.engine.models.model_folder import UnsupportedModel, gguf_parts

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoFile

NAME = re.compile(
    r"(?P<repository>\w[\w.-]*/\w[\w.-]*)"
    r"(?:/(?P<file>[\w./-]+\.gguf)|:(?P<quantization>\w+))?"
    r"(?:@(?P<revision>[\w./-]+))?"
)
NEEDED = ("config.json", "tokenizer.json", "tokenizer_config.json")
FILES = (
    *NEEDED,
    "*.safetensors",
    "*.safetensors.index.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
)
"""Files of a model that are fetched, from the top of its repository."""
FURTHER_TEMPLATES = "additional_chat_templates/*.jinja"
"""Files with a model's other chat templates."""
SECOND_COPY = "consolidated*"
"""Weights that Mistral's repositories hold once more, in another layout."""
LISTED = 12
"""Most files that a message lists."""
PIECE = 1 << 20
"""Bytes that are hashed at once."""


class HubError(OSError):
    """The hub does not have the model, does not give it, or cannot be reached."""


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model's name on a hub: `org/name`, `org/name/FILE.gguf` or `org/name:QUANTIZATION`, each with `@revision`.

    repository: "org/name".
    file: path of a GGUF file in it; None if none is named.
    quantization: mix of types of one of its GGUF files, such as "Q4_K_M"; None if none is named.
    revision: branch, tag or commit; None for the default branch.
    """

    repository: str
    file: str | None = None
    quantization: str | None = None
    revision: str | None = None

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Return the model of that name; None if it is no name of a hub's model."""
        match = NAME.fullmatch(name)
        if match is None or match["repository"].endswith(".gguf"):  # a local file that is not there
            return None
        return cls(**match.groupdict())

    def __str__(self) -> str:
        part = f"/{self.file}" if self.file else f":{self.quantization}" if self.quantization else ""
        return f"{self.repository}{part}" + (f"@{self.revision}" if self.revision else "")


def locate(model: HubModel) -> Path:
    """Return the folder, or the GGUF file, of a model; fetch it if it is not whole on this machine.

    A model that is there is not compared with the hub's: `fetch` does. Raise HubError, and UnsupportedModel if the
    repository has no model that can be used.
    """
    return find(model) or fetch(model)


def find(model: HubModel) -> Path | None:
    """Return the folder, or the GGUF file, of a model in the cache; None if it is not whole there."""
    from huggingface_hub import constants, get_cached_repo_tree, resolve_revision
    from huggingface_hub.errors import CachedRepoTreeNotFoundError, RevisionResolutionError
    from huggingface_hub.file_download import repo_folder_name

    try:
        commit = resolve_revision(model.repository, revision=model.revision, local_files_only=True)
    except RevisionResolutionError:
        return None
    repository = repo_folder_name(repo_id=model.repository, repo_type="model")
    folder = Path(constants.HF_HUB_CACHE) / repository / "snapshots" / commit.resolved
    try:
        listed = [file.path for file in get_cached_repo_tree(model.repository, revision=commit.resolved)]
    except CachedRepoTreeNotFoundError:  # another program has fetched it
        listed = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    try:
        wanted = _wanted(model, listed)
    except UnsupportedModel:
        return None
    for index in folder.glob("*.index.json"):
        wanted += json.loads(index.read_bytes())["weight_map"].values()
    return _place(folder, wanted) if all((folder / file).exists() for file in wanted) else None


def fetch(model: HubModel) -> Path:
    """Bring a model's newest state of its revision to this machine, and return its folder or GGUF file.

    Only files that are missing are fetched; of a large one that broke off, also days ago, only the rest. What has
    arrived is compared with the hub's checksums. On a terminal, bars show the progress. Raise HubError, and
    UnsupportedModel if the repository has no model that can be used.
    """
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.hf_api import RepoFile

    hub = HfApi()
    with _plain_errors(model, hub.endpoint):
        # The calls below try for half a minute without a network, and wait without end for a hub that is silent.
        hub.model_info(model.repository, revision=model.revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
        commit = hub.resolve_revision(model.repository, revision=model.revision)
        tree = hub.list_repo_tree(model.repository, revision=commit, recursive=True)
        files = {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}
        wanted = _wanted(model, files)
        missing = [
            file
            for file in wanted
            if not isinstance(try_to_load_from_cache(model.repository, file, revision=commit), str)
        ]
        large = [
            file
            for file in missing
            if files[file].lfs and files[file].size <= constants.MAX_HTTP_DOWNLOAD_SIZE
        ]
        for file in large:
            _fetch_large(model, commit, files[file])
        patterns = [glob.escape(file) for file in wanted]
        folder = Path(hub.snapshot_download(model.repository, revision=commit, allow_patterns=patterns))
    for file in missing:
        if file not in large and not _is_whole(folder / file, files[file]):
            _delete(folder / file)
            raise _damaged(model, file)
    return _place(folder, wanted)


def _fetch_large(model: HubModel, commit: str, entry: RepoFile) -> None:
    """Bring the content of a large file into the cache, from where an earlier attempt broke off.

    `snapshot_download` begins such a file again in every process. It uses the content that it finds.
    """
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.file_download import http_get, repo_folder_name
    from huggingface_hub.utils import WeakFileLock, build_hf_headers

    name, digest = repo_folder_name(repo_id=model.repository, repo_type="model"), _checksum(entry)
    content = Path(constants.HF_HUB_CACHE, name, "blobs", digest)
    part = content.with_name(f"{digest}.incomplete")
    lock = Path(constants.HF_HUB_CACHE, ".locks", name, f"{digest}.lock")
    for folder in (content.parent, lock.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(lock):
        while not content.exists():
            with part.open("ab") as file:
                if (begun := file.tell()) > entry.size:
                    begun = file.truncate(0)
                http_get(
                    hf_hub_url(model.repository, entry.path, revision=commit),
                    file,
                    resume_size=begun,
                    headers=build_hf_headers(),
                    expected_size=entry.size,
                    displayed_filename=entry.path,
                )
            if _is_whole(part, entry):
                part.rename(content)
                break
            part.unlink()
            if not begun:
                raise _damaged(model, entry.path)


def remove(model: HubModel) -> int | None:
    """Delete a model from the cache, and return the bytes that this has freed; None if it is not there.

    The name of a GGUF file deletes that file; the name of a repository all of it, or the revision that is named.
    """
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    if model.file is not None or model.quantization is not None:
        if (first := find(model)) is None:
            return None
        return sum(map(_delete, [first.with_name(part) for part in gguf_parts(first.name)]))
    try:
        cached = scan_cache_dir(constants.HF_HUB_CACHE)
    except CacheNotFound:
        return None
    commits = [
        revision.commit_hash
        for repository in cached.repos
        for revision in repository.revisions
        if (repository.repo_type, repository.repo_id) == ("model", model.repository)
        and model.revision in (None, revision.commit_hash, *revision.refs)
    ]
    if not commits:
        return None
    strategy = cached.delete_revisions(*commits)
    strategy.execute()
    return strategy.expected_freed_size


def _delete(file: Path) -> int:
    """Delete a file of the cache and its content, and return the content's size."""
    content = file.resolve()
    size = content.stat().st_size
    content.unlink()
    file.unlink(missing_ok=True)
    return size


def _wanted(model: HubModel, listed: Collection[str]) -> list[str]:
    """Return the files that are needed of those in a repository."""
    if model.file is not None or model.quantization is not None:
        return _gguf_wanted(model, listed)
    top = [file for file in sorted(listed) if "/" not in file and not fnmatchcase(file, SECOND_COPY)]
    if not any(file.endswith(".safetensors") for file in top):
        if gguf := [file for file in listed if file.endswith(".gguf")]:
            raise UnsupportedModel(
                f"{model.repository} holds GGUF files: name one, as in {model.repository}/{_listed(gguf)}"
            )
        raise UnsupportedModel(f"{model.repository} has no *.safetensors file; it has: {_listed(top)}")
    for needed in NEEDED:
        if needed not in top:
            raise UnsupportedModel(f"{model.repository} has no {needed}; it has: {_listed(top)}")
    further = [file for file in sorted(listed) if fnmatchcase(file, FURTHER_TEMPLATES)]
    return [file for file in top if any(fnmatchcase(file, pattern) for pattern in FILES)] + further


def _gguf_wanted(model: HubModel, listed: Collection[str]) -> list[str]:
    gguf = sorted(file for file in listed if file.endswith(".gguf"))
    named = [file for file in gguf if file == model.file]
    if model.quantization is not None:
        pattern = re.compile(rf"(?i).*[-._/]{model.quantization}(-00001-of-\d+)?\.gguf")
        named = [
            file for file in gguf if pattern.fullmatch(file) and not Path(file).name.startswith("mmproj")
        ]
    if len(named) != 1:
        several = "more than one such file" if named else "no such file"
        there = _listed(named or gguf) or f"no GGUF file at all, but {_listed(sorted(listed))}"
        raise UnsupportedModel(f"{model}: the repository has {several}; it has {there}")
    return gguf_parts(named[0])


def _place(folder: Path, wanted: list[str]) -> Path:
    """Return the GGUF file that is wanted, the first of several parts; otherwise the folder."""
    return folder / wanted[0] if wanted[0].endswith(".gguf") else folder


def _listed(files: Collection[str]) -> str:
    shown = ", ".join(sorted(files)[:LISTED])
    return f"{shown}, and {len(files) - LISTED} more" if len(files) > LISTED else shown


def _checksum(entry: RepoFile) -> str:
    """Return what the hub says: SHA-256 of a large file, Git's SHA-1 of another."""
    return entry.lfs.sha256 if entry.lfs else entry.blob_id


def _is_whole(file: Path, entry: RepoFile) -> bool:
    """Return whether the content of a file is what the hub says."""
    size = file.stat().st_size
    hashed = hashlib.sha256() if entry.lfs else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with file.open("rb") as content:
        while piece := content.read(PIECE):
            hashed.update(piece)
    return hashed.hexdigest() == _checksum(entry)


def _damaged(model: HubModel, file: str) -> HubError:
    return HubError(f"{model}: {file} arrived damaged, and was deleted; start again to fetch it again")


@contextmanager
def _plain_errors(model: HubModel, endpoint: str) -> Iterator[None]:
    """Say in plain words what the hub has refused."""
    import httpx2
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
        RevisionResolutionError,
    )

    place = f"{endpoint}/{model.repository}"
    try:
        yield
    except GatedRepoError:
        raise HubError(
            f"{model} is given only to those who accept its terms: accept them at {place}, and set HF_TOKEN to a token "
            "of that account"
        ) from None
    except RepositoryNotFoundError:
        raise HubError(
            f"there is no folder {model} here, and no model of that name at {endpoint}; for a private one, set HF_TOKEN"
        ) from None
    except RevisionNotFoundError:
        raise HubError(
            f"{model.repository} has no revision {model.revision!r}: {place}/refs lists them"
        ) from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        hint = "HF_TOKEN is not one that may read it" if status in (401, 403) else "start again to go on"
        raise HubError(f"{model}: {endpoint} answered {status}; {hint}") from None
    except (RevisionResolutionError, LocalEntryNotFoundError, httpx2.HTTPError, ConnectionError) as error:
        if constants.HF_HUB_OFFLINE or isinstance(error, OfflineModeIsEnabled):
            raise HubError(
                f"{model} is not whole in {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE forbids fetching it"
            ) from None
        cause = error.__cause__ or error
        raise HubError(
            f"{model} is not whole in {constants.HF_HUB_CACHE}, and {endpoint} cannot be reached ({cause}); what has "
            "arrived is kept, and with a network the rest follows"
        ) from None
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise HubError(f"{model} does not fit on the disk of {constants.HF_HUB_CACHE}") from None
        raise
