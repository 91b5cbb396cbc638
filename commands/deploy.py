"""`--pipeline deploy`: the inference pipeline as a service with a name and a URL."""

from __future__ import annotations

import socket
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from zenml.config import DeploymentSettings
from zenml.deployers import BaseDeployer
from zenml.deployers.base_deployer import BaseDeployerSettings
from zenml.enums import StackComponentType

from cluster.errors import RunFailed
from cluster.zenml_settings import component_settings, parsed, require_zenml_settings
from configs.config import Config
from environment.home import HOME
from pipelines.inference import DEPLOYMENT, HIGHEST_PORT, PORT, deployer_settings, inference_pipeline
from pipelines.service_pipeline import ServiceNotStarted
from reports.console import say
from serving.key_file import read_keys
from serving.runner import open_door
from serving.settings import ServingSettings
from steps.artifact_names import MODEL_NAME
from steps.inference.service_lifecycle import episode_settings, example_questions, load_service
from steps.model_registry import describe_other_mail, describe_version, find_checkpoint, find_mail_database
from steps.project import MODELS
from steps.published_model import publish_base_model, published_base_model
from tasks import answering_plugin, trained_settings
from training.backends.base_model import base_model_here, resolve_base_model
from training.backends.prompt_template import require_tokenizer
from training.backends.serving import serving_settings
from training.checkpoint import Checkpoint
from training.errors import BadInput
from training.record.experiment import MAIL_TASK


def run_deploy(
    config: Config,
    name: str,
    *,
    checkpoint: str | None,
    unpromoted: bool = False,
    base_model: str | None,
    mail: str | None = None,
) -> None:
    """Deploy the trained agent and print its URL. With `mail` "latest" it searches the mail that was prepared last.

    Raises:
        BadInput: nothing is there to serve, the service would be open to everybody, or users cannot ask the task.
    """
    plugin = None if config.task == MAIL_TASK else answering_plugin(config.task)
    if plugin is not None and mail is not None:
        raise BadInput(f"--mail: no effect on task={config.task}; leave it out")
    # A pod has its own checkout, where only a relative path means something.
    service = config.deployment
    here = HOME if BaseDeployer.get_active_deployer().flavor == "local" else Path()
    try:
        serving = ServingSettings(
            keys=read_keys(Path(service.access_keys).expanduser()) if service.access_keys else (),
            allowed_hosts=service.allowed_hosts,
            timeout=service.question_timeout,
            max_waiting=service.max_waiting,
            feedback_folder=here / Path(service.feedback_folder).expanduser(),
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"{first['loc'][0]}: {first['msg'].removeprefix('Value error, ')}") from None
    of_task: dict[str, Any] = {}
    if plugin is not None:
        model = plugin.model_name(config.for_task(plugin.settings))
        of_task = {"task": config.task, "title": plugin.title, "model": model}
    url = deploy_inference(
        name,
        **of_task,
        checkpoint=checkpoint,
        unpromoted=unpromoted,
        base_model=base_model,
        latest_mail=mail == "latest",
        port=service.port,
        address=service.address,
        serving=serving,
        settings=config.settings,
    )
    say(f"{name} answers at {url}/invoke ({'how' if plugin else 'page'}: {url}/{'docs' if plugin else ''})")
    say(f"zenml deployment describe|logs|deprovision {name}")


def deploy_inference(
    name: str,
    *,
    task: str = MAIL_TASK,
    title: str | None = None,
    model: str = MODEL_NAME,
    checkpoint: str | None = None,
    unpromoted: bool = False,
    base_model: str | None = None,
    latest_mail: bool = False,
    models_dir: Path = MODELS,
    episode: dict[str, Any] | None = None,
    port: int = PORT,
    address: str = "127.0.0.1",
    serving: ServingSettings | None = None,
    settings: dict[str, Any] | None = None,
) -> str:
    """Deploy or update the service `name` and return its URL once it answers.

    All that the service needs is looked up first, so that anything missing is reported here and not in the log of a
    service that did not start. The service is pinned to what was found. Arguments are those of `load_service`; ZenML's
    `settings` take precedence over `port` and `address`, which apply to the local deployer only.

    Another `task` than mail has a `title`, and its versions are registered as `model`.

    The default `checkpoint` is that of the version in production. With `unpromoted`, the latest version stands in if
    nothing is in production. With `latest_mail` it searches the mail that was prepared last.

    Raises:
        BadInput: nothing is trained or promoted yet, the checkpoint is damaged or belongs to another base model, or the
            service would be open to everybody.
        RunFailed: the service did not start.
    """
    zenml_settings = _zenml_settings(port, address, serving or ServingSettings(), settings or {}, title)
    stored = find_checkpoint(checkpoint, unpromoted=unpromoted, model=model)
    stored.checkpoint.require_task(task)
    manifest = stored.checkpoint.manifest
    named = f"step {manifest.step} of run {manifest.name}"
    database = find_mail_database(stored, latest=latest_mail) if task == MAIL_TASK else None
    source = base_model or stored.checkpoint.manifest.base_model_source
    if BaseDeployer.get_active_deployer().flavor == "local":
        base = resolve_base_model(source, models_dir, progress=say)
        stored.checkpoint.require_base(base)
        require_tokenizer(base.path)
        serving_settings(manifest.config)
        if database is not None:
            database.load().close()
            example_questions(manifest.data)
    else:
        _require_base_elsewhere(source, stored.checkpoint, models_dir)
    if database is None:
        trained_settings(task, manifest.config)
    else:
        episode_settings(manifest.config, episode)
    say(f"{name} serves {describe_version(stored.model_version) if stored.model_version else named}")
    if database is not None and (other := describe_other_mail(stored, database)):
        say(other)
    pinned = {
        "checkpoint": stored.reference,
        **({"mail_database": str(database.id)} if database is not None else {}),
        "base_model": str(Path(source).resolve()) if Path(source).exists() else source,
        # Another machine keeps models in its own checkout.
        **({"models_dir": str(models_dir.resolve())} if models_dir != MODELS else {}),
        "episode": episode or {},
    }
    configured = inference_pipeline.with_options(on_init=load_service, on_init_kwargs=pinned, settings=zenml_settings)
    try:
        deployment = configured.deploy(deployment_name=name)
    except ServiceNotStarted as error:
        raise RunFailed(error.message) from error
    assert deployment.url is not None, "a running deployment has a URL"
    return deployment.url


def _require_base_elsewhere(source: str, checkpoint: Checkpoint, models_dir: Path) -> None:
    """Put the base model into the artifact store if it is only here; nothing is downloaded to this machine.

    Raises BadInput if it is not the model that was trained.
    """
    if published_base_model(source, checkpoint.manifest.base_model_checksum):
        return
    if here := base_model_here(source, models_dir):
        checkpoint.require_base(here)
        publish_base_model(here, source)
        return
    say(f"{source} is not in the artifact store: every replica of the service fetches it from its source")


def _zenml_settings(
    port: int, address: str, serving: ServingSettings, settings: dict[str, Any], title: str | None = None
) -> dict[str, Any]:
    """Return ZenML's settings of the pipeline. Raises `BadInput` if everybody could ask the service."""
    require_zenml_settings(settings, {})
    given, keys = component_settings(settings, StackComponentType.DEPLOYER)
    local = BaseDeployer.get_active_deployer().flavor == "local"
    deployer = {**deployer_settings(port, address), **given} if local else given
    read = parsed(
        BaseDeployer.get_active_deployer().settings_class or BaseDeployerSettings, deployer, "settings.deployer"
    )
    if read.lcm_timeout < 1:
        raise BadInput(f"settings.deployer.lcm_timeout={read.lcm_timeout}: expected seconds above 0")
    if local:
        address = read.address
        _require_address(address)
        if not all(1 <= number <= HIGHEST_PORT for number in (read.port or PORT, *read.port_range)):
            raise BadInput(f"settings.deployer: port and port_range are numbers from 1 to {HIGHEST_PORT}")
    else:
        address = DEPLOYMENT.uvicorn_host
    key = read.auth_key or ("generated by ZenML" if read.generate_auth_key else None)
    if problem := open_door(address, key, serving):
        raise BadInput(problem)
    told = {"serving": serving.model_dump(mode="json"), **({"task": title} if title else {})}
    runner = {"deployment_app_runner_kwargs": told}
    chosen = parsed(DeploymentSettings, settings.get("deployment") or {}, "settings.deployment")
    deployment = DEPLOYMENT.model_copy(update={**chosen.model_dump(exclude_unset=True), **runner})
    others = {name: values for name, values in settings.items() if name not in keys}
    return {**others, "deployer": deployer, "deployment": deployment}


def _require_address(address: str) -> None:
    """Raise `BadInput` unless a service can listen there: ZenML stops a running service before it finds out."""
    try:
        ip = IPv4Address(address)
    except AddressValueError:
        raise BadInput(
            f"address={address}: the local deployer needs an IPv4 address, such as 127.0.0.1 or 0.0.0.0"
        ) from None
    with socket.socket() as probe:
        try:
            probe.bind((str(ip), 0))
        except OSError:
            raise BadInput(f"address={address}: this machine has no such address") from None
