"""The service as an ASGI application, independent of its deployment."""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from fastapi_offline import FastAPIOffline
from starlette.types import ASGIApp

from environment.home import VERSION
from serving.access import Keys, Origins
from serving.answering import Answering
from serving.bodies import Reply
from serving.errors import add_error_responses
from serving.feedback import FeedbackQueue
from serving.mail_tools import MailToolServer
from serving.metrics import Metrics
from serving.middleware import Doors, Envelope
from serving.routes import chat, feedback, inboxes, mcp, monitoring, questions
from serving.security import authentication
from serving.service import AnswerService
from serving.settings import ServingSettings

PAGE = Path(__file__).with_name("page")


class ServiceApp:
    """The application and its parts. `asgi` is what a server runs."""

    def __init__(
        self,
        load: Callable[[], AnswerService],
        unload: Callable[[], None],
        record: Callable[[Reply], None],
        *,
        name: str,
        settings: ServingSettings,
        keys: Keys,
        origins: Origins,
    ) -> None:
        """`load` returns the service at startup, `unload` ends it, `record` writes the pipeline run of one answer."""
        self.settings = settings
        self.metrics = Metrics()
        self.feedback = FeedbackQueue(settings.feedback_folder)
        self.answering = Answering(
            load,
            unload,
            record,
            name=name,
            settings=settings,
            metrics=self.metrics,
            feedback=self.feedback,
            several_keys=len(keys) > 1,
        )
        self.fastapi = FastAPIOffline(
            title="E-mail search agent",
            description="Answers questions about a mailbox and cites the mails that prove the answer.",
            version=VERSION,
            lifespan=self._lifespan,
            redirect_slashes=False,  # the redirect would name whatever host the request names
        )
        authenticated = authentication(keys)
        questions.add_routes(self.fastapi, self.answering, authenticated)
        chat.add_routes(self.fastapi, self.answering, authenticated)
        feedback.add_routes(self.fastapi, self.feedback, self.metrics, authenticated)
        inboxes.add_routes(self.fastapi, self.answering, authenticated)
        self.mail_tools = MailToolServer(self.answering)
        mcp.add_routes(self.fastapi, self.mail_tools, authenticated)
        monitoring.add_routes(self.fastapi, self.answering, self.metrics, authenticated)
        _add_page(self.fastapi)
        add_error_responses(self.fastapi)
        self.asgi: ASGIApp = Envelope(Doors(self.fastapi, origins), self.metrics)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        async with self.answering.opened(), self.mail_tools.opened():
            yield


def _add_page(fastapi: FastAPI) -> None:
    @fastapi.get("/", include_in_schema=False)
    async def index() -> FileResponse:
        return FileResponse(PAGE / "index.html", media_type="text/html", headers={"Cache-Control": "no-cache"})

    fastapi.mount("/page", StaticFiles(directory=PAGE), name="page")
