"""The service as an ASGI application, independent of its deployment."""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from fastapi_offline import FastAPIOffline
from starlette.types import ASGIApp

from environment.home import VERSION
from serving.access import Keys, Origins
from serving.answering import Answering, Deployed, MailAnswering
from serving.errors import add_error_responses
from serving.feedback import FeedbackQueue
from serving.mail_tools import MailToolServer
from serving.metrics import Metrics
from serving.middleware import Doors, Envelope
from serving.routes import chat, feedback, inboxes, mcp, monitoring, questions
from serving.security import authentication
from serving.settings import ServingSettings
from serving.task_service import TaskAnswering

PAGE = Path(__file__).with_name("page")


class ServiceApp:
    """The application and its parts. `asgi` is what a server runs."""

    def __init__(
        self,
        load: Callable[[], Any],
        unload: Callable[[], None],
        record: Callable[[Any], None],
        *,
        name: str,
        settings: ServingSettings,
        keys: Keys,
        origins: Origins,
        task: str | None = None,
    ) -> None:
        """`load` returns the service at startup, `unload` ends it, `record` writes the pipeline run of one answer.

        `task` is the title of the task whose agent answers; None is mail.
        """
        self.settings = settings
        self.metrics = Metrics()
        self.fastapi = FastAPIOffline(
            title=task or "E-mail search agent",
            description="Plays an episode of its task for each question."
            if task
            else "Answers questions about a mailbox and cites the mails that prove the answer.",
            version=VERSION,
            lifespan=self._lifespan,
            redirect_slashes=False,  # the redirect would name whatever host the request names
        )
        authenticated = authentication(keys)
        deployed = Deployed(load, unload, record, name, settings, self.metrics, several_keys=len(keys) > 1)
        self.answering: Answering[Any]
        self._world: contextlib.AbstractAsyncContextManager[None] = contextlib.nullcontext()
        if task is None:
            ratings = FeedbackQueue(settings.feedback_folder)
            self.answering = mail = MailAnswering(deployed, ratings)
            questions.add_routes(self.fastapi, mail, authenticated)
            chat.add_routes(self.fastapi, mail, authenticated)
            feedback.add_routes(self.fastapi, ratings, self.metrics, authenticated)
            inboxes.add_routes(self.fastapi, mail, authenticated)
            mail_tools = MailToolServer(mail)
            self._world = mail_tools.opened()
            mcp.add_routes(self.fastapi, mail_tools, authenticated)
            _add_page(self.fastapi)
        else:
            self.answering = of_task = TaskAnswering(deployed)
            questions.add_task_route(self.fastapi, of_task, authenticated)
        monitoring.add_routes(self.fastapi, self.answering, self.metrics, authenticated)
        add_error_responses(self.fastapi)
        self.asgi: ASGIApp = Envelope(Doors(self.fastapi, origins), self.metrics)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        async with self.answering.opened(), self._world:
            yield


def _add_page(fastapi: FastAPI) -> None:
    @fastapi.get("/", include_in_schema=False)
    async def index() -> FileResponse:
        return FileResponse(PAGE / "index.html", media_type="text/html", headers={"Cache-Control": "no-cache"})

    fastapi.mount("/page", StaticFiles(directory=PAGE), name="page")
