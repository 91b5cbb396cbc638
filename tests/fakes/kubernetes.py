"""An emulated Kubernetes API server on loopback that the real clients talk to, and the schemas of real ones."""

from __future__ import annotations

from typing import Any

import kubernetes_validate

from tests.fakes.server import Answer, FakeServer, Request

VERSIONS = ("1.35", "1.36", "1.37")
"""Kubernetes versions whose schemas a manifest must satisfy."""


def require_valid(manifest: dict[str, Any]) -> None:
    """Raises for a manifest with a key or value that one of the versions does not know; a key without a value is none."""
    for version in VERSIONS:
        kubernetes_validate.validate(_valued(manifest), version, strict=True)


def _valued(value: Any) -> Any:
    """Without the keys whose value is null: API servers ignore those, and ZenML leaves some in security contexts."""
    if isinstance(value, dict):
        return {key: _valued(inner) for key, inner in value.items() if inner is not None}
    return [_valued(inner) for inner in value] if isinstance(value, list) else value


def merged(old: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7396)."""
    if not isinstance(old, dict) or not isinstance(patch, dict):
        return patch
    values = {**old, **{key: merged(old.get(key), value) for key, value in patch.items()}}
    return {key: value for key, value in values.items() if value is not None}


class ApiServer(FakeServer):
    """Keeps what is posted, by path. `refused` has the (verb, resource) pairs that access reviews deny."""

    def __init__(self, port: int = 0) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.refused: set[tuple[str, str]] = set()
        self.failing: dict[str, int] = {}
        """Start of a path -> status that every request to it is answered with."""
        super().__init__(port)

    def put(self, path: str, **fields: Any) -> None:
        metadata = {"name": path.rpartition("/")[2], **fields.pop("metadata", {})}
        self.objects[path] = {"metadata": metadata, **fields}

    def of_kind(self, plural: str) -> list[dict[str, Any]]:
        return [value for path, value in self.objects.items() if path.split("/")[-2] == plural]

    def answer(self, method: str, path: str, body: Any, labels: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Status and body of the answer; `labels` are those that a list is limited to."""
        for start, status in self.failing.items():
            if path.startswith(start):
                return status, {"kind": "Status", "reason": "refused", "message": "refused by the test"}
        if path.rstrip("/") == "/version":
            known = ("buildDate", "compiler", "gitCommit", "gitTreeState", "goVersion", "major", "minor", "platform")
            return 200, {"gitVersion": "v1.34.0", **dict.fromkeys(known, "")}
        if path.endswith("subjectaccessreviews"):
            asked = body["spec"]["resourceAttributes"]
            resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
            return 201, {**body, "status": {"allowed": (asked["verb"], resource) not in self.refused}}
        if method == "POST":
            created = f"{path}/{body['metadata']['name']}"
            if created in self.objects:
                return 409, {"kind": "Status", "reason": "AlreadyExists", "message": created}
            self.objects[created] = body
            return 201, body
        if path in self.objects:
            if method == "PATCH":
                self.objects[path] = merged(self.objects[path], body)
            elif method == "DELETE":
                return 200, self.objects.pop(path)
            return 200, self.objects[path]
        if method == "GET" and path.rpartition("/")[2] in ("nodes", "jobs", "pods", "cronjobs"):
            found = [value for key, value in self.objects.items() if key.rpartition("/")[0] == path]
            return 200, {
                "items": [value for value in found if labels.items() <= value["metadata"].get("labels", {}).items()]
            }
        return 404, {"kind": "Status", "reason": "NotFound", "message": path}

    def respond(self, request: Request) -> Answer:
        selector = request.query.get("labelSelector", [""])[0]
        labels = dict(label.split("=", 1) for label in selector.split(",") if label)
        return self.answer(request.method, request.path, request.json(), labels)
