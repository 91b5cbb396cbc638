"""A ZenML stack as code: build its components from settings, compare them with the registered ones, and register them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from zenml.client import Client
from zenml.enums import StackComponentType
from zenml.integrations.kubernetes import KUBERNETES_ORCHESTRATOR_FLAVOR
from zenml.stack.utils import validate_stack_component_config

from cluster import flavors
from cluster.settings import StackSettings
from training.errors import BadInput

OWN_FLAVORS = {
    StackComponentType.ORCHESTRATOR: flavors.ResilientOrchestratorFlavor,
    StackComponentType.STEP_OPERATOR: flavors.ResilientStepOperatorFlavor,
}
START_WITHIN_SECONDS = 300
"""Maximum delay of a scheduled run in seconds. Without a limit, Kubernetes later starts a run that a pause or a long
run prevented, and stops the schedule after more than 100 prevented runs.
"""
NEEDED = ("kubernetes_context", "artifact_store", "container_registry")


@dataclass(frozen=True)
class Component:
    """A component of the configured stack."""

    kind: StackComponentType
    name: str
    flavor: str
    configuration: dict[str, Any]


@dataclass(frozen=True)
class Change:
    """The change of a component or of the stack by its registration; `keys` are the configuration keys that differ."""

    action: Literal["create", "update", "keep"]
    what: str
    name: str
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.action:<6}  {self.what} {self.name}" + (f" ({', '.join(self.keys)})" if self.keys else "")


def components_of(settings: StackSettings) -> list[Component]:
    """Build the components from settings. Raises BadInput if a setting without default is missing."""
    if missing := [key for key in NEEDED if getattr(settings, key) is None]:
        raise BadInput(f"{', '.join(missing)}: needed for a stack; see configs/stack_k8s.yaml")
    name, namespace = settings.stack_name, settings.kubernetes_namespace
    cluster = {"kubernetes_context": settings.kubernetes_context, "kubernetes_namespace": namespace}
    store: dict[str, Any] = {"path": settings.artifact_store}
    if settings.artifact_store_endpoint:
        store["client_kwargs"] = {"endpoint_url": settings.artifact_store_endpoint}
    if settings.artifact_store_secret:
        store["authentication_secret"] = settings.artifact_store_secret
    registry = {"uri": settings.container_registry}
    if settings.container_registry_secret:
        registry["authentication_secret"] = settings.container_registry_secret
    return [
        Component(
            StackComponentType.ORCHESTRATOR,
            f"{name}-orchestrator",
            flavors.FLAVOR,
            cluster
            | {
                "api_request_timeout": flavors.REQUEST_SECONDS,
                "service_account_name": settings.service_account,
                # The pod of a step with a step operator submits its job, and needs the rights for it.
                "step_pod_service_account_name": settings.service_account,
                # Otherwise every pod's manifest holds the server's token.
                "pass_zenml_token_as_secret": True,
                # Two runs of one schedule would train the same twice and compete for GPUs.
                "concurrency_policy": "Forbid",
                "starting_deadline_seconds": START_WITHIN_SECONDS,
                "successful_jobs_history_limit": 3,
                "failed_jobs_history_limit": 3,
            },
        ),
        Component(
            StackComponentType.STEP_OPERATOR,
            f"{name}-gpu",
            flavors.FLAVOR,
            # Used inside the cluster only, where no kubeconfig has the context of this machine.
            {"kubernetes_namespace": namespace, "incluster": True, "api_request_timeout": flavors.REQUEST_SECONDS},
        ),
        Component(StackComponentType.ARTIFACT_STORE, f"{name}-artifacts", "s3", store),
        Component(StackComponentType.CONTAINER_REGISTRY, f"{name}-registry", "default", registry),
        Component(StackComponentType.IMAGE_BUILDER, f"{name}-images", "local", {}),
        Component(
            StackComponentType.DEPLOYER,
            f"{name}-deployer",
            "kubernetes",
            {
                "kubernetes_context": settings.kubernetes_context,
                "namespace": namespace,
                "service_type": settings.service_type,
            },
        ),
    ]


def planned_changes(name: str, components: Iterable[Component]) -> list[Change]:
    """Return the changes that `register` would make.

    Raises:
        BadInput: a component of that name has another flavor, or ZenML refuses a value.
    """
    wanted = list(components)
    changes = [_component_change(component) for component in wanted]
    try:
        stack = Client().get_stack(name, allow_name_prefix_match=False)
    except KeyError:
        return [*changes, Change("create", "stack", name)]
    registered = {kind: [component.name for component in of_kind] for kind, of_kind in stack.components.items()}
    differ = tuple(c.kind.value for c in wanted if registered.get(c.kind) != [c.name])
    return [*changes, Change("update" if differ else "keep", "stack", name, differ)]


def register(name: str, components: Sequence[Component]) -> list[Change]:
    """Register or update the components and return the changes. Idempotent.

    Other components of the stack, such as an alerter, stay. Raises BadInput as `planned_changes` does.
    """
    changes = planned_changes(name, components)
    client = Client()
    register_flavors()
    for component, change in zip(components, changes, strict=False):
        if change.action == "create":
            client.create_stack_component(component.name, component.flavor, component.kind, component.configuration)
        elif change.action == "update":
            # An update keeps omitted keys; None removes them.
            gone = {key: None for key in change.keys if key not in component.configuration}
            client.update_stack_component(component.name, component.kind, configuration=component.configuration | gone)
    ids: dict[StackComponentType, UUID] = {
        component.kind: client.get_stack_component(component.kind, component.name, allow_name_prefix_match=False).id
        for component in components
    }
    if changes[-1].action == "create":
        client.create_stack(name, ids)
    elif changes[-1].action == "update":
        client.update_stack(name, component_updates=ids)
    return changes


def register_flavors() -> None:
    """Register our flavors with ZenML, once."""
    for kind, flavor in OWN_FLAVORS.items():
        if not Client().list_flavors(name=flavors.FLAVOR, type=kind).total:
            Client().create_flavor(f"{flavor.__module__}.{flavor.__name__}", kind)


def _component_change(component: Component) -> Change:
    what = component.kind.value.replace("_", " ")
    # Our flavors have the configuration of those that they extend, and are registered with the stack only.
    configured_as = KUBERNETES_ORCHESTRATOR_FLAVOR if component.flavor == flavors.FLAVOR else component.flavor
    try:
        valid = validate_stack_component_config(component.configuration, configured_as, component.kind)
    except ValueError as error:
        raise BadInput(f"{what} {component.name}: {' '.join(str(error).split())}") from None
    assert valid is not None, "a flavor of ZenML's own can be imported"
    try:
        registered = Client().get_stack_component(component.kind, component.name, allow_name_prefix_match=False)
    except KeyError:
        return Change("create", what, component.name)
    if registered.flavor_name != component.flavor:
        raise BadInput(
            f"{what} {component.name} is registered with flavor {registered.flavor_name}, not {component.flavor}: "
            f"delete it, or choose another stack_name"
        )
    configuration = valid.model_dump(mode="json", exclude_unset=True)
    keys = sorted(configuration.keys() | registered.configuration.keys())
    differ = tuple(key for key in keys if configuration.get(key) != registered.configuration.get(key))
    return Change("update" if differ else "keep", what, component.name, differ)


def require_remote_stack(step_settings: dict[str, dict[str, Any]]) -> None:
    """Raise BadInput for a step on a step operator if the active stack cannot run it.

    Raises:
        BadInput: the active stack has no step operator, or a local artifact store.
    """
    steps = [name for name, settings in step_settings.items() if settings.get("step_operator")]
    if not steps:
        return
    stack = Client().active_stack_model
    if not stack.components.get(StackComponentType.STEP_OPERATOR):
        raise BadInput(
            f"step {steps[0]} wants a step operator and stack {stack.name} has none: `zenml stack set NAME` "
            "(`python run.py --pipeline stack` registers one)"
        )
    (store,) = stack.components[StackComponentType.ARTIFACT_STORE]
    if store.flavor_name == "local":
        raise BadInput(
            f"step {steps[0]} runs on another machine, which cannot reach the local artifact store of stack {stack.name}: "
            "use a stack whose artifacts are in s3://"
        )
