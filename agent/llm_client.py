"""Shared by all uses of LiteLLM models: preflight checks, keys, prices, and JSON from replies.

LiteLLM takes seconds to import, so it is imported when a model is used.
"""

from __future__ import annotations

import json
from typing import Any

from environment.errors import BadInput

EXAMPLE = "openai/gpt-4.1"
_SECONDS = 30.0
"""Maximum seconds to wait for the reply to the test request."""


def require_model(model: str, api_base: str | None, *, setting: str, needed_by: str = "", hint: str = "") -> None:
    """Raise BadInput when LiteLLM knows no provider for `model` or its key is missing.

    `setting` names the model, `needed_by` says what asks for it (default: the setting), and `hint` how to do without a
    key. A self-hosted model at `api_base` needs no key.
    """
    import litellm

    litellm.suppress_debug_info = True  # the error below says it in one line
    try:
        litellm.get_llm_provider(model=model, api_base=api_base)
    except litellm.exceptions.BadRequestError as error:
        own = setting.replace("model", "api_base")
        raise BadInput(
            f"{setting}={model} names no provider that LiteLLM knows; write provider/model, for example {EXAMPLE}, or "
            f"openai/NAME and {own} for a self-hosted server"
        ) from error
    if api_base is None and (missing := missing_keys(model)):
        needs = f"{needed_by} needs" if needed_by else f"{setting}={model} needs"
        raise BadInput(f"{needs} {' and '.join(missing)} in the environment or in .env{hint and '; '}{hint}")


def require_reply(model: str, api_base: str | None, *, setting: str) -> None:
    """Send a one-word test request, before anything is spent. Raise BadInput if it fails, for example for lack of a
    key."""
    import litellm
    from openai import OpenAIError

    try:
        litellm.completion(
            model=model,
            messages=[{"role": "user", "content": "Reply with the word ready."}],
            timeout=_SECONDS,
            num_retries=0,
            drop_params=True,
            api_base=api_base,
            api_key=key_for(model, api_base),
        )
    except OpenAIError as error:
        where = f" at {api_base}" if api_base else ""
        raise BadInput(f"{setting}={model}{where} cannot be asked: {' '.join(str(error).split())[:200]}") from error


def missing_keys(model: str) -> list[str]:
    """Return the environment variables with keys that LiteLLM needs for `model` and does not find."""
    import litellm

    missing: list[str] = litellm.validate_environment(model)["missing_keys"]
    return [name for name in missing if name.endswith(("KEY", "TOKEN"))]


def key_for(model: str, api_base: str | None) -> str | None:
    """Return a placeholder for the key that LiteLLM insists on and a self-hosted server may not need, or None."""
    return "none" if api_base is not None and missing_keys(model) else None


def price_of(reply: Any) -> float | None:
    """Return the US dollars of one reply, None where LiteLLM does not know the price."""
    import litellm

    try:
        return float(litellm.completion_cost(completion_response=reply)) or None
    except Exception:  # LiteLLM raises a bare Exception for a model without a price
        return None


def json_object(text: str) -> Any:
    """Return the first JSON object in a reply, which may be wrapped in prose or a code fence. Raise ValueError."""
    start = text.find("{")
    if start < 0:
        raise ValueError("no JSON object")
    try:
        return json.JSONDecoder().raw_decode(text, start)[0]
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
