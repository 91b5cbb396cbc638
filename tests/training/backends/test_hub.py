"""A model that the Hugging Face Hub does not give is one line that names the reason, in a dry run too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import huggingface_hub
import pytest
from huggingface_hub.utils import _http

from training.backends.base_model import find_base_model, resolve_base_model
from training.errors import BadInput

pytestmark = pytest.mark.service

MODEL = "owner/misspelt"
Find = Callable[[str, Path], object]
ENTRANCES = pytest.mark.parametrize("find", [resolve_base_model, find_base_model])


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list]:
    """Replies of the Hub: each request gets the last one of the list, or raises it."""
    replies: list = []

    def answer(request: object) -> object:
        if isinstance(replies[-1], Exception):
            raise replies[-1]
        return httpx2.Response(request=request, **replies[-1])

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(_http.time, "sleep", lambda seconds: None)
    huggingface_hub.set_client_factory(lambda: httpx2.Client(transport=httpx2.MockTransport(answer)))
    yield replies
    huggingface_hub.set_client_factory(_http.default_client_factory)


@ENTRANCES
@pytest.mark.parametrize("name", ["ProxyError", "RemoteProtocolError", "ReadTimeout", "ConnectError"])
def test_a_hub_out_of_reach_names_the_way_out(hub: list, tmp_path: Path, find: Find, name: str) -> None:
    hub.append(getattr(httpx2, name)("no way"))
    with pytest.raises(BadInput, match=f"^base_model: {MODEL} is not in the local cache and the Hub cannot be reached"):
        find(MODEL, tmp_path)


@ENTRANCES
@pytest.mark.parametrize(
    ("status", "code", "said"),
    [(404, "RepoNotFound", f"the Hub has no public model {MODEL}"), (403, "GatedRepo", f"{MODEL} is gated")],
)
def test_the_answer_of_the_hub_is_told(
    hub: list, tmp_path: Path, find: Find, status: int, code: str, said: str
) -> None:
    hub.append({"status_code": status, "headers": {"X-Error-Code": code}})
    with pytest.raises(BadInput, match=f"^base_model: {said}"):
        find(MODEL, tmp_path)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("No space left on device")])
def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception) -> None:
    def full(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", full)
    with pytest.raises(BadInput, match="^base_model: no space left in the Hub's cache .*: free some"):
        resolve_base_model(MODEL, tmp_path)


def test_another_fault_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def faulty(*_: object, **__: object) -> str:
        raise RuntimeError("etag is empty")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", faulty)
    with pytest.raises(RuntimeError, match="etag is empty"):
        resolve_base_model(MODEL, tmp_path)
