"""Names the application runner to ZenML, and makes this checkout the source root of a service.

ZenML's service program imports a deployment's classes from its source root. Unless a variable or a `.zen` folder names
one, that is the folder of ZenML's own program, where a package `fastapi` hides the library. So this module must be
importable from there: it imports only ZenML and `environment.home`. The runner is imported after the source root is set.
"""

from __future__ import annotations

import os
import sys

from zenml.deployers.server.app import BaseDeploymentAppRunner, BaseDeploymentAppRunnerFlavor
from zenml.utils import source_utils

from environment.home import CODE


class ServiceRunnerFlavor(BaseDeploymentAppRunnerFlavor):
    """Names `serving.runner.ServiceRunner`."""

    @property
    def name(self) -> str:
        return "email-agent"

    @property
    def implementation_class(self) -> type[BaseDeploymentAppRunner]:
        """The runner. ZenML asks for it in the process that becomes the service, which from then on runs in this checkout."""
        source_utils.set_custom_source_root(str(CODE))
        sys.path.insert(0, str(CODE))
        os.chdir(CODE)  # the processes that the service starts import from the working directory
        runner: type[BaseDeploymentAppRunner] = source_utils.load("serving.runner.ServiceRunner")
        return runner

    @property
    def requirements(self) -> list[str]:
        return [*super().requirements, "fastapi"]


# ZenML's local deployer runs its module as a program, whose classes are then others than the imported ones.
_checked = getattr(sys.modules["__main__"], BaseDeploymentAppRunnerFlavor.__name__, BaseDeploymentAppRunnerFlavor)
_checked.register(ServiceRunnerFlavor)
