"""The only step of the deployed pipeline."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel
from zenml import get_step_context, step

from serving.bodies import Question


@step(enable_cache=False, enable_artifact_visualization=False)
def run_single_inference(
    question: str, inbox_address: str, query_date: str, request_id: str
) -> Annotated[BaseModel, "answer"]:
    """Answer one question with the model that this process has loaded: an `Answer`, or the `Attempt` of another task.

    The deployed service runs the pipeline after it has answered; `request_id` then names the answer that it gave.
    """
    service = get_step_context().pipeline_state
    if request_id:
        return service.take_recorded(request_id)
    return service.answer(Question(question=question, inbox_address=inbox_address, query_date=query_date))
