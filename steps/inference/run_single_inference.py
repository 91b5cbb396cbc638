"""The one step of the deployed pipeline."""

from __future__ import annotations

from typing import Annotated

from zenml import get_step_context, step

from serving.answer import Answer, Question


@step(enable_cache=False, enable_artifact_visualization=False)
def run_single_inference(question: str, inbox_address: str, query_date: str) -> Annotated[Answer, "answer"]:
    """Answers one question about one inbox with the model that this process has loaded."""
    asked = Question(question=question, inbox_address=inbox_address, query_date=query_date)
    return get_step_context().pipeline_state.answer(asked)
