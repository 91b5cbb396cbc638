"""W&B's serverless training on loopback: the training API as ART's client speaks it, and the GraphQL of W&B's artifacts.

It samples no tokens and computes no gradients: replies alternate between two kinds, and each training job leaves a LoRA
adapter of random weights as the artifact of the model's next step.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fakes.language_model import call_text, called, completion
from tests.fakes.server import Answer, FakeServer, Request

ENTITY = "team"
KEY = "k" * 40
CREATED = "2026-11-23T00:00:00Z"


class ServerlessService(FakeServer):
    """Keeps models, their checkpoints (step -> files) and the training jobs that it was sent."""

    protocol = "HTTP/1.1"

    def __init__(self, make_adapter: Callable[[Path, int], Path]) -> None:
        """`make_adapter` writes an adapter for a folder and a seed, and returns where."""
        super().__init__()
        self.make_adapter = make_adapter
        self.models: dict[str, dict[str, Any]] = {}
        self.checkpoints: dict[str, dict[int, dict[str, bytes]]] = {}
        self.jobs: list[dict[str, Any]] = []
        self.sampled_from: list[str] = []
        self.downloads: list[str] = []
        self.fail_job: str | None = None
        """What the next training job fails with."""
        self.refusals: list[int] = []
        """Statuses of the next requests for a training job, which start none; 0 starts it and fails all the same."""
        self.failed_downloads = 0
        """How many of the next downloads fail."""
        self.same_replies = False
        self.lock = threading.Lock()

    def create_model(self, asked: dict[str, Any]) -> dict[str, Any]:
        known = {"entity": asked["entity"] or ENTITY, "project": asked["project"], "name": asked["name"]}
        assert asked["return_existing"]
        for model in self.models.values():
            if known.items() <= model.items():
                return model
        id = f"model-{len(self.models)}"
        self.models[id] = {"id": id, **known, "base_model": asked["base_model"], "run_id": f"run-{id}"}
        self.checkpoints[id] = {0: {}}
        return self.models[id]

    def train(self, job: dict[str, Any]) -> str:
        self.jobs.append(job)
        if self.fail_job is None:
            steps = self.checkpoints[job["model_id"]]
            with tempfile.TemporaryDirectory() as scratch:
                folder = self.make_adapter(Path(scratch), len(self.jobs))
                steps[max(steps) + 1] = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
        return f"job-{len(self.jobs) - 1}"

    def events(self, job: int) -> list[dict[str, Any]]:
        if self.fail_job is not None:
            return [{"id": "e0", "type": "training_failed", "data": {"error_message": self.fail_job}}]
        sequences = len(self.jobs[job]["trajectory_groups"])
        step = {"loss": 0.5, "grad_norm": 0.1, "entropy": 1.0}
        return [
            {"id": "e0", "type": "training_started", "data": {"num_sequences": sequences}},
            *({"id": f"e{number + 1}", "type": "gradient_step", "data": step} for number in range(sequences)),
            {"id": "end", "type": "training_ended", "data": {}},
        ]

    def artifact(self, collection: str, alias: str) -> dict[str, bytes]:
        """The files of a LoRA artifact; aliases are `step{N}`, versions `v{N}`."""
        [id] = [id for id, model in self.models.items() if model["name"] == collection]
        return self.checkpoints[id][int(re.sub(r"\D", "", alias))]

    def respond(self, request: Request) -> Answer:
        known = request.method, request.path
        asked = request.json()
        if known == ("POST", "/graphql"):
            return {"data": self._graphql(asked["query"], asked.get("variables") or {})}
        if request.method == "POST" and request.headers["Authorization"] != f"Bearer {KEY}":
            return 401, {"error": {"message": "invalid API key"}}
        if known == ("POST", "/v1/preview/models"):
            with self.lock:
                return self.create_model(asked)
        if known == ("POST", "/v1/preview/training-jobs"):
            with self.lock:
                status = self.refusals.pop(0) if self.refusals else None
                if status:
                    return status, {"error": {"message": "not now"}}
                id = self.train(asked)
                return (500, {"error": {"message": "lost"}}) if status == 0 else {"id": id}
        if known == ("POST", "/v1/chat/completions"):
            return self._completion(asked)
        if known == ("GET", "/v1/health"):
            return {}
        if found := re.fullmatch(r"/v1/preview/models/([\w-]+)/checkpoints", request.path):
            if request.method == "DELETE":
                for step in asked["steps"]:
                    del self.checkpoints[found[1]][step]
                return {"deleted_count": len(asked["steps"]), "not_found_steps": []}
            steps = sorted(self.checkpoints[found[1]], reverse=request.query.get("order") == ["desc"])
            return _page([{"id": f"checkpoint-{step}", "step": step, "metrics": {}} for step in steps], request)
        if found := re.fullmatch(r"/v1/preview/training-jobs/job-(\d+)/events", request.path):
            return _page(self.events(int(found[1])), request)
        if found := re.fullmatch(r"/files/([\w.-]+)/(\w+)/([\w.-]+)", request.path):
            files = self.artifact(found[1], found[2])
            if self.failed_downloads and found[3] != "manifest":
                self.failed_downloads -= 1
                return 404, {"error": {"message": "not yet"}}
            self.downloads.append(f"{found[1]}:{found[2]}")
            return _manifest(files) if found[3] == "manifest" else files[found[3]]
        return 404, {"error": {"message": f"no route {request.path}"}}

    def _completion(self, asked: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            self.sampled_from.append(asked["model"])
            number = 0 if self.same_replies else len(self.sampled_from)
        known = [f"wandb-artifact:///{m['entity']}/{m['project']}/{m['name']}" for m in self.models.values()]
        assert asked["model"] in known and asked["logprobs"]
        text = "I do not know."
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if number % 2:
            call = "return_final_answer_tool", {"answer": "nobody", "source_ids": []}
            text, message = call_text(*call), called(*call)
        tokens = [{"token": f"token_id:{ord(c)}", "bytes": [ord(c)], "logprob": -0.5, "top_logprobs": []} for c in text]
        return completion(message, model=asked["model"], logprobs=[tokens])

    def _graphql(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        if "serverInfo" in query:
            return {"serverInfo": {"features": []}}
        if "viewer" in query:
            viewer = {"id": "v", "entity": ENTITY, "username": "someone", "email": "someone@example.com", "flags": "{}"}
            return {"viewer": {**viewer, "teams": {"edges": []}}}
        if "currentManifest" in query:
            collection, alias = variables["id"].split("/")
            return {"artifact": {"currentManifest": {"file": {"directUrl": self._file(collection, alias, "manifest")}}}}
        if "GetArtifactMembershipFileUrls" in query:
            collection, alias = variables["collection"], variables["alias"]
            names = self.artifact(collection, alias)
            edges = [{"node": {"name": name, "directUrl": self._file(collection, alias, name)}} for name in names]
            page = {"pageInfo": {"endCursor": None, "hasNextPage": False}, "edges": edges}
            listed = {"artifactMembership": {"files": page}}
            return {"project": {"artifactCollection": {"__typename": "ArtifactSequence", **listed}}}
        assert "ArtifactMembershipByName" in query, query
        collection, alias = variables["name"].split(":")
        files = self.artifact(collection, alias)
        project = {"id": "p", "internalId": "1", "name": variables["project"], "entity": {"name": variables["entity"]}}
        sequence = {"__typename": "ArtifactSequence", "name": collection, "project": project}
        index = int(re.sub(r"\D", "", alias))
        artifact = {
            **{
                "__typename": "Artifact",
                "id": f"{collection}/{alias}",
                "artifactSequence": sequence,
                "versionIndex": index,
            },
            **{"artifactType": {"name": "lora"}, "description": None, "metadata": "{}", "tags": [], "aliases": []},
            **{"ttlDurationSeconds": -2, "ttlIsInherited": True, "historyStep": None, "state": "COMMITTED"},
            **{"size": sum(map(len, files.values())), "digest": "d", "digestAlgorithm": "MANIFEST_MD5"},
            **{"commitHash": "c", "fileCount": len(files), "createdAt": CREATED, "updatedAt": None},
        }
        membership = {
            **{"__typename": "ArtifactCollectionMembership", "id": "m", "versionIndex": index, "createdAt": CREATED},
            **{"aliases": [{"__typename": "ArtifactAlias", "id": "a", "alias": alias}]},
            **{"artifactCollection": sequence, "artifact": artifact},
        }
        return {"project": {"artifactCollectionMembership": membership}}

    def _file(self, collection: str, alias: str, name: str) -> str:
        return f"{self.url}/files/{collection}/{alias}/{name}"


def _page(rows: list[dict[str, Any]], request: Request) -> dict[str, Any]:
    """One page of a cursor-paginated list."""
    ids = [row["id"] for row in rows]
    first = ids.index(request.query["after"][0]) + 1 if "after" in request.query else 0
    size = int(request.query.get("limit", ["20"])[0])
    return {"data": rows[first : first + size], "has_more": first + size < len(rows)}


def _manifest(files: dict[str, bytes]) -> bytes:
    digests = {name: base64.b64encode(hashlib.md5(content).digest()).decode() for name, content in files.items()}
    contents = {name: {"digest": digests[name], "size": len(content)} for name, content in files.items()}
    policy = {"storagePolicy": "wandb-storage-policy-v1", "storagePolicyConfig": {"storageLayout": "V2"}}
    return json.dumps({"version": 1, **policy, "contents": contents}).encode()
