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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.agent.scripted_policy import call_text
from tests.local_server import running

ENTITY = "team"
KEY = "k" * 40
CREATED = "2026-11-23T00:00:00Z"


class ServerlessService(ThreadingHTTPServer):
    """Keeps models, their checkpoints (step -> files) and the training jobs that it was sent."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, make_adapter: Callable[[Path, int], Path]) -> None:
        """`make_adapter` writes an adapter for a folder and a seed, and returns where."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.make_adapter = make_adapter
        self.models: dict[str, dict[str, Any]] = {}
        self.checkpoints: dict[str, dict[int, dict[str, bytes]]] = {}
        self.jobs: list[dict[str, Any]] = []
        self.sampled_from: list[str] = []
        self.downloads: list[str] = []
        self.fail_job: str | None = None
        """What the next training job fails with."""
        self.same_replies = False
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @classmethod
    @contextmanager
    def serving(cls, make_adapter: Callable[[Path, int], Path]) -> Iterator[ServerlessService]:
        server = cls(make_adapter)
        with running(server):
            yield server

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


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ServerlessService

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/graphql":
            self._reply({"data": self._graphql(asked["query"], asked.get("variables") or {})})
        elif not self._allowed():
            self._reply({"error": {"message": "invalid API key"}}, 401)
        elif self.path == "/v1/preview/models":
            with self.server.lock:
                self._reply(self.server.create_model(asked))
        elif self.path == "/v1/preview/training-jobs":
            with self.server.lock:
                self._reply({"id": self.server.train(asked)})
        elif self.path == "/v1/chat/completions":
            self._reply(self._completion(asked))
        else:
            self._reply({"error": {"message": f"no route {self.path}"}}, 404)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        if url.path == "/v1/health":
            self._reply({})
        elif found := re.fullmatch(r"/v1/preview/models/([\w-]+)/checkpoints", url.path):
            steps = sorted(self.server.checkpoints[found[1]], reverse=query.get("order") == ["desc"])
            rows = [{"id": f"checkpoint-{step}", "step": step, "metrics": {}} for step in steps]
            self._page(rows, query)
        elif found := re.fullmatch(r"/v1/preview/training-jobs/job-(\d+)/events", url.path):
            self._page(self.server.events(int(found[1])), query)
        elif found := re.fullmatch(r"/files/([\w.-]+)/(\w+)/([\w.-]+)", url.path):
            files = self.server.artifact(found[1], found[2])
            self.server.downloads.append(f"{found[1]}:{found[2]}")
            self._send(_manifest(files) if found[3] == "manifest" else files[found[3]])
        else:
            self._reply({"error": {"message": f"no route {self.path}"}}, 404)

    def do_DELETE(self) -> None:
        steps = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["steps"]
        found = re.fullmatch(r"/v1/preview/models/([\w-]+)/checkpoints", self.path)
        assert found
        for step in steps:
            del self.server.checkpoints[found[1]][step]
        self._reply({"deleted_count": len(steps), "not_found_steps": []})

    def _allowed(self) -> bool:
        return self.headers["Authorization"] == f"Bearer {KEY}"

    def _page(self, rows: list[dict[str, Any]], query: dict[str, list[str]]) -> None:
        """One page of a cursor-paginated list."""
        ids = [row["id"] for row in rows]
        first = ids.index(query["after"][0]) + 1 if "after" in query else 0
        size = int(query.get("limit", ["20"])[0])
        self._reply({"data": rows[first : first + size], "has_more": first + size < len(rows)})

    def _completion(self, asked: dict[str, Any]) -> dict[str, Any]:
        server = self.server
        with server.lock:
            server.sampled_from.append(asked["model"])
            number = 0 if server.same_replies else len(server.sampled_from)
        known = [f"wandb-artifact:///{m['entity']}/{m['project']}/{m['name']}" for m in server.models.values()]
        assert asked["model"] in known and asked["logprobs"]
        text, finish = "I do not know.", "stop"
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if number % 2:
            arguments = {"answer": "nobody", "source_ids": []}
            function = {"name": "return_final_answer_tool", "arguments": json.dumps(arguments)}
            message = {"role": "assistant", "content": None}
            message["tool_calls"] = [{"id": "call_x", "type": "function", "function": function}]
            text, finish = call_text(function["name"], arguments), "tool_calls"
        tokens = [{"token": f"token_id:{ord(c)}", "bytes": [ord(c)], "logprob": -0.5, "top_logprobs": []} for c in text]
        choice = {"index": 0, "finish_reason": finish, "message": message, "logprobs": {"content": tokens}}
        return {"id": "x", "object": "chat.completion", "created": 0, "model": asked["model"], "choices": [choice]}

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
            names = self.server.artifact(collection, alias)
            edges = [{"node": {"name": name, "directUrl": self._file(collection, alias, name)}} for name in names]
            files = {"pageInfo": {"endCursor": None, "hasNextPage": False}, "edges": edges}
            membership = {"artifactMembership": {"files": files}}
            return {"project": {"artifactCollection": {"__typename": "ArtifactSequence", **membership}}}
        assert "ArtifactMembershipByName" in query, query
        collection, alias = variables["name"].split(":")
        files = self.server.artifact(collection, alias)
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
        return f"{self.server.url}/files/{collection}/{alias}/{name}"

    def _reply(self, body: dict[str, Any], status: int = 200) -> None:
        self._send(json.dumps(body).encode(), status)

    def _send(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Keeps the test output quiet."""


def _manifest(files: dict[str, bytes]) -> bytes:
    digests = {name: base64.b64encode(hashlib.md5(content).digest()).decode() for name, content in files.items()}
    contents = {name: {"digest": digests[name], "size": len(content)} for name, content in files.items()}
    policy = {"storagePolicy": "wandb-storage-policy-v1", "storagePolicyConfig": {"storageLayout": "V2"}}
    return json.dumps({"version": 1, **policy, "contents": contents}).encode()
