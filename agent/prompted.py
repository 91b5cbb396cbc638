"""A LiteLLM model prompted with the agent's instructions and tools, as a comparison for a trained policy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, convert_to_openai_messages
from pydantic import BaseModel, ConfigDict

from environment.errors import BadInput
from environment.tools import tool_schemas

_SECONDS = 120.0
_RETRIES = 2
COST = "cost"
"""Key of a reply's metadata: its price in US dollars, None if LiteLLM knows none."""


class PromptedModel(BaseModel):
    """A LiteLLM model with the interface that the agent's graph calls, at temperature 0 where supported."""

    model_config = ConfigDict(frozen=True)

    model: str
    api_base: str | None = None
    max_tokens: int
    optional_arguments: bool = False

    def require_ready(self, setting: str) -> None:
        """Raise BadInput when the model cannot be asked. The message begins with `setting`, which names the model."""
        import litellm

        litellm.suppress_debug_info = True
        try:
            litellm.get_llm_provider(model=self.model, api_base=self.api_base)
        except litellm.exceptions.BadRequestError as error:
            raise BadInput(
                f"{setting}={self.model} names no provider that LiteLLM knows; write provider/model, for example openai/gpt-4.1"
            ) from error
        missing = self._missing_keys()
        if missing and self.api_base is None:
            raise BadInput(f"{setting}={self.model} needs {' and '.join(missing)} in the environment or in .env")

    async def ainvoke(self, messages: Sequence[AnyMessage], **_: Any) -> AIMessage:
        """Return the next reply with its usage and cost. Raise LiteLLM's errors, which derive from `openai.OpenAIError`."""
        import litellm

        reply = await litellm.acompletion(
            model=self.model,
            messages=convert_to_openai_messages(list(messages)),
            tools=tool_schemas(self.optional_arguments),
            temperature=0.0,
            max_tokens=self.max_tokens,
            drop_params=True,
            timeout=_SECONDS,
            num_retries=_RETRIES,
            api_base=self.api_base,
            # LiteLLM insists on a key, which a self-hosted server may not need.
            api_key="none" if self.api_base and self._missing_keys() else None,
        )
        message, usage = reply.choices[0].message, reply.usage
        calls, malformed = [], False
        for call in message.tool_calls or []:
            try:
                arguments = json.loads(call.function.arguments or "{}")
            except ValueError:
                malformed = True
                continue
            if isinstance(arguments, dict):
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

    def _missing_keys(self) -> list[str]:
        from agent.judges.settings import missing_keys  # judges price their replies with this module

        return missing_keys(self.model)


def price_of(reply: Any) -> float | None:
    """Return the US dollars of one LiteLLM reply, None where LiteLLM does not know the price."""
    import litellm

    try:
        return float(litellm.completion_cost(completion_response=reply)) or None
    except Exception:  # LiteLLM raises a bare Exception for a model without a price
        return None
