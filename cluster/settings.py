"""Settings of a ZenML stack on Kubernetes. Credentials are in ZenML secrets, which the settings name."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, field_validator


class StackSettings(BaseModel):
    """A stack: the cluster, the artifact store, the image registry, and the requirements of the cluster."""

    stack_name: str = Field(
        default="email-agent-k8s",
        pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$",
        description="name of the stack, of lower-case letters, digits and '-'; its components are named after it",
    )
    kubernetes_context: str | None = Field(default=None, description="context of the kubeconfig (see `kubectl config`)")
    kubernetes_namespace: str = Field(default="zenml", description="namespace of pods and deployments; must exist")
    service_account: str = Field(
        default="email-agent", description="service account of the orchestrator's and the steps' pods; must exist"
    )
    min_gpus: int = Field(
        default=1,
        ge=0,
        description="GPUs that one node must have; 0: training needs none, or nodes are added on demand",
    )

    artifact_store: str | None = Field(default=None, description="s3://BUCKET/PATH on any S3-compatible storage")
    artifact_store_endpoint: str | None = Field(default=None, description="URL of storage other than Amazon's")
    artifact_store_secret: str | None = Field(
        default=None,
        description="ZenML secret with aws_access_key_id and aws_secret_access_key; null: the pods' own identity",
    )

    container_registry: str | None = Field(default=None, description="registry for images, as HOST or HOST/PATH")
    container_registry_secret: str | None = Field(
        default=None, description="ZenML secret with username and password; null: the login of docker on this machine"
    )

    service_type: Literal["LoadBalancer", "NodePort", "ClusterIP"] = Field(
        default="LoadBalancer", description="how a deployed agent is reached from outside"
    )

    @field_validator("artifact_store")
    @classmethod
    def _pods_reach_it(cls, value: str | None) -> str | None:
        if value is not None and not (value.startswith("s3://") and value.removeprefix("s3://").strip("/")):
            raise ValueError("pods on other machines cannot open a local folder: use s3://BUCKET/PATH")
        return value

    @field_validator("artifact_store_endpoint", "container_registry")
    @classmethod
    def _holds_no_credentials(cls, value: str | None) -> str | None:
        if value is not None and "@" in urlsplit(value if "//" in value else f"//{value}").netloc:
            raise ValueError(
                "credentials do not belong here: create a ZenML secret and name it in the key with _secret"
            )
        return value
