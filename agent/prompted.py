"""A LiteLLM model prompted with the agent's instructions and tools, as a comparison for a trained policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, convert_to_openai_messages
from pydantic import BaseModel, ConfigDict

from environment.tools import tool_schemas
from training.llm_client import (
    REQUEST_TIMEOUT,
    call_arguments,
    key_for,
    price_of,
    repeated,
    require_model,
    require_reply,
)

COST = "cost"
"""Key of a reply's metadata: its price in US dollars, None if LiteLLM knows none."""


class PromptedModel(BaseModel):
    """A LiteLLM model with the interface that the agent's graph calls, at temperature 0 where supported."""

    model_config = ConfigDict(frozen=True)

    model: str
    api_base: str | None = None
    max_tokens: int

    def require_ready(self, setting: str) -> None:
        """Raise BadInput when the model cannot be asked. The message begins with `setting`, which names the model."""
        require_model(self.model, self.api_base, setting=setting)
        require_reply(self.model, self.api_base, setting=setting)

    async def ainvoke(self, messages: Sequence[AnyMessage], **_: Any) -> AIMessage:
        """Return the next reply with its usage and cost. Raise LiteLLM's errors, which derive from `openai.OpenAIError`."""
        import litellm

        async def ask() -> Any:
            return await litellm.acompletion(
                model=self.model,
                messages=convert_to_openai_messages(list(messages)),
                tools=tool_schemas(),
                temperature=0.0,
                max_tokens=self.max_tokens,
                drop_params=True,
                timeout=REQUEST_TIMEOUT,
                num_retries=0,
                api_base=self.api_base,
                api_key=key_for(self.model, self.api_base),
            )

        reply = await repeated(ask)
        message, usage = reply.choices[0].message, reply.usage
        calls, malformed = [], False
        for call in message.tool_calls or []:
            if (arguments := call_arguments(call.function.arguments or "{}")) is None:
                malformed = True
                continue
            calls.append({"name": call.function.name, "args": arguments, "id": call.id})
        text = message.content or ""
        return AIMessage(
            content=text if not malformed or calls else f"{text}<tool_call>",
            tool_calls=calls,
            usage_metadata={
                "input_tokens": usage.prompt_tokens,
                "output_tokens": usage.completion_tokens,
                "total_tokens": usage.total_tokens,
            },
            response_metadata={"finish_reason": reply.choices[0].finish_reason, COST: price_of(reply)},
        )
