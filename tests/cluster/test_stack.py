"""Registration of the stack in a separate ZenML store: creation, updates and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from zenml.client import Client
from zenml.enums import StackComponentType

from cluster.settings import StackSettings
from cluster.stack import components_of, planned_changes, register, require_remote_stack
from configs.loading import load_config
from configs.schema import ConfigError
from training.errors import BadInput

pytestmark = pytest.mark.service

KINDS = {
    StackComponentType.ORCHESTRATOR,
    StackComponentType.STEP_OPERATOR,
    StackComponentType.ARTIFACT_STORE,
    StackComponentType.CONTAINER_REGISTRY,
    StackComponentType.IMAGE_BUILDER,
    StackComponentType.DEPLOYER,
}


def settings(**values: Any) -> StackSettings:
    known = {
        "stack_name": "tested",
        "kubernetes_context": "emulated",
        "artifact_store": "s3://bucket/mail",
        "artifact_store_secret": "s3-keys",
        "container_registry": "registry.example.com/mail",
    }
    return StackSettings.model_validate({**known, **values})


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client()
    yield client
    for stack in client.list_stacks(name="startswith:tested").items:
        client.delete_stack(stack.id)
    for kind in KINDS:
        for component in client.list_stack_components(type=kind, name="startswith:tested").items:
            client.delete_stack_component(component.id, kind)


def actions(changes: list[Any]) -> set[str]:
    return {change.action for change in changes}


def test_registering_again_changes_nothing(client: Client) -> None:
    components = components_of(settings())
    assert actions(planned_changes("tested", components)) == {"create"}
    assert not client.list_stacks(name="tested").items, "a plan registers nothing"
    assert actions(register("tested", components)) == {"create"}
    stack = client.get_stack("tested")
    assert set(stack.components) == KINDS
    identifiers = {kind: [c.id for c in of_kind] for kind, of_kind in stack.components.items()}
    assert actions(register("tested", components)) == {"keep"}
    assert {
        kind: [c.id for c in of_kind] for kind, of_kind in client.get_stack("tested").components.items()
    } == identifiers


def test_a_change_updates_only_the_components_it_concerns(client: Client) -> None:
    register("tested", components_of(settings(artifact_store_endpoint="https://minio.example.com")))
    changed = components_of(settings(artifact_store="s3://other", kubernetes_namespace="training"))
    updates = {str(change) for change in planned_changes("tested", changed) if change.action != "keep"}
    assert updates == {
        "update  orchestrator tested-orchestrator (kubernetes_namespace)",
        "update  step operator tested-gpu (kubernetes_namespace)",
        "update  artifact store tested-artifacts (client_kwargs, path)",
        "update  deployer tested-deployer (namespace)",
    }
    register("tested", changed)
    store = client.get_stack_component(StackComponentType.ARTIFACT_STORE, "tested-artifacts")
    assert store.configuration == {"path": "s3://other", "authentication_secret": "s3-keys"}
    assert actions(planned_changes("tested", changed)) == {"keep"}


def test_a_component_that_was_exchanged_comes_back_and_others_stay(client: Client) -> None:
    components = components_of(settings())
    register("tested", components)
    client.create_stack_component("tested-other", "local", StackComponentType.IMAGE_BUILDER, {})
    client.update_stack("tested", component_updates={StackComponentType.IMAGE_BUILDER: "tested-other"})
    assert str(planned_changes("tested", components)[-1]) == "update  stack tested (image_builder)"
    register("tested", components)
    (builder,) = client.get_stack("tested").components[StackComponentType.IMAGE_BUILDER]
    assert builder.name == "tested-images"


def test_another_flavor_under_the_same_name_is_refused(client: Client) -> None:
    client.create_stack_component("tested-gpu", "kubernetes", StackComponentType.STEP_OPERATOR, {})
    client.create_stack_component("tested-orchestrator", "local", StackComponentType.ORCHESTRATOR, {})
    with pytest.raises(BadInput, match="tested-orchestrator is registered with flavor local, not resilient_kubernetes"):
        register("tested", components_of(settings()))
    assert not client.list_stacks(name="tested").items


def test_the_configuration_of_the_components() -> None:
    by_kind = {component.kind: component.configuration for component in components_of(settings())}
    orchestrator = by_kind[StackComponentType.ORCHESTRATOR]
    assert orchestrator["concurrency_policy"] == "Forbid"
    assert orchestrator["pass_zenml_token_as_secret"] is True
    assert orchestrator["service_account_name"] == orchestrator["step_pod_service_account_name"] == "email-agent"
    # A step's pod submits the GPU job, and has no kubeconfig.
    operator = by_kind[StackComponentType.STEP_OPERATOR]
    assert operator == {"kubernetes_namespace": "zenml", "incluster": True, "api_request_timeout": 30}
    assert by_kind[StackComponentType.DEPLOYER]["kubernetes_context"] == "emulated"


@pytest.mark.parametrize("missing", ["kubernetes_context", "artifact_store", "container_registry"])
def test_settings_without_a_default_are_required(missing: str) -> None:
    with pytest.raises(BadInput, match=f"{missing}: needed"):
        components_of(settings(**{missing: None}))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("artifact_store=/data/artifacts", "s3://BUCKET/PATH"),
        ("artifact_store=s3://", "s3://BUCKET/PATH"),
        ("artifact_store_endpoint=https://me:secret@minio.example.com", "ZenML secret"),
        ("container_registry=me:secret@registry.example.com", "ZenML secret"),
        ("min_gpus=-1", ">= 0"),
        ("service_type=Ingress", "LoadBalancer"),
        ("kubernetes_contex=x", "did you mean 'stack.kubernetes_context'"),
    ],
)
def test_mistakes_in_the_configuration_are_named(override: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [override])
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_step_operator_needs_a_stack_that_its_pod_can_use(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"train_agent": {"step_operator": True}}
    require_remote_stack({})
    with pytest.raises(BadInput, match="train_agent wants a step operator"):
        require_remote_stack(wanted)  # the default stack has none
    register("tested", components_of(settings()))
    client.create_stack_component("tested-local", "local", StackComponentType.ARTIFACT_STORE, {})
    remote = client.get_stack("tested")
    client.update_stack("tested", component_updates={StackComponentType.ARTIFACT_STORE: "tested-local"})
    local = client.get_stack("tested")
    with monkeypatch.context() as active:  # an active stack could not be deleted afterwards
        active.setattr(Client, "active_stack_model", remote)
        require_remote_stack(wanted)
        active.setattr(Client, "active_stack_model", local)
        with pytest.raises(BadInput, match="cannot reach the local artifact store of stack tested"):
            require_remote_stack(wanted)
