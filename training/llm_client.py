"""Shared by all uses of LiteLLM models: preflight checks, keys, retries, refusals, prices, and JSON from replies.

LiteLLM takes seconds to import, so it is imported when a model is used.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_exponential

from training.errors import BadInput

Result = TypeVar("Result")

ATTEMPTS = 6
"""Requests until a reply is usable. With the pauses, a provider that is overloaded has a minute to recover."""
BACKOFF = 2.0
"""Seconds before the second request, doubled before each further one."""
REQUEST_TIMEOUT = 600.0
"""Seconds per request, the default of OpenAI's client: a self-hosted model on a processor takes minutes."""
TEST_SECONDS = 30.0
"""Maximum seconds to wait for the reply to the test request."""
TEST_MESSAGES = [{"role": "user", "content": "Reply with the word ready."}]
_MAX_ERROR_CHARS = 200
_REFUSALS = {
    400: "does not accept the request",
    401: "refuses the key; set it in the environment or in .env",
    403: "refuses the key; set it in the environment or in .env",
    404: "is not there; check {setting} and {api_base}",
    422: "does not accept the request",
}
"""HTTP statuses of requests that will never succeed, so that retries are useless."""


def require_model(
    model: str,
    api_base: str | None,
    *,
    setting: str,
    example: str = "openai/gpt-4.1",
    needed_by: str = "",
    hint: str = "",
    keys: bool = True,
) -> None:
    """Raise BadInput when LiteLLM knows no provider for `model` or its key is missing.

    `setting` names the model, `needed_by` says what asks for it (default: the setting), and `hint` how to do without a
    key. A self-hosted model at `api_base` needs no key. Without `keys`, keys are not checked.
    """
    import litellm

    litellm.suppress_debug_info = True  # the error below says it in one line
    try:
        litellm.get_llm_provider(model=model, api_base=api_base)
    except litellm.exceptions.BadRequestError as error:
        raise BadInput(
            f"{setting}={model} names no provider that LiteLLM knows; write provider/model, for example {example}, or "
            f"openai/NAME and {api_base_of(setting)} for a self-hosted server"
        ) from error
    if keys and api_base is None and (missing := missing_keys(model)):
        needs = f"{needed_by} needs" if needed_by else f"{setting}={model} needs"
        raise BadInput(f"{needs} {' and '.join(missing)} in the environment or in .env{hint and '; '}{hint}")


def require_reply(model: str, api_base: str | None, *, setting: str) -> None:
    """Send a one-word test request, before anything is spent. Raise BadInput if it fails, for example for lack of a
    key.
    """
    import litellm
    from openai import OpenAIError

    try:
        litellm.completion(
            model=model,
            messages=TEST_MESSAGES,
            timeout=TEST_SECONDS,
            num_retries=0,
            drop_params=True,
            api_base=api_base,
            api_key=key_for(model, api_base),
        )
    except OpenAIError as error:
        where = f" at {api_base}" if api_base else ""
        raise BadInput(f"{setting}={model}{where} cannot be asked: {_shortened(str(error))}") from error


def api_base_of(setting: str) -> str:
    """Return the name of the setting with the base URL of the model that `setting` names."""
    return setting.replace("model", "api_base")


def missing_keys(model: str) -> list[str]:
    """Return the environment variables with keys that LiteLLM needs for `model` and does not find."""
    import litellm

    missing: list[str] = litellm.validate_environment(model)["missing_keys"]
    return [name for name in missing if name.endswith(("KEY", "TOKEN"))]


def key_for(model: str, api_base: str | None) -> str | None:
    """Return a placeholder for the key that LiteLLM insists on and a self-hosted server may not need, or None."""
    return "none" if api_base is not None and missing_keys(model) else None


async def repeated(ask: Callable[[], Awaitable[Result]]) -> Result:
    """Return the first result of `ask`, which is called up to `ATTEMPTS` times.

    Errors of the provider, timeouts and unusable replies (`ValueError`) are repeated after `BACKOFF` seconds, doubled
    before each further attempt. Raises the error of the last attempt. A refusal and `BadInput` are raised at once.
    """
    retrying = AsyncRetrying(
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_exponential(multiplier=BACKOFF),
        retry=retry_if_exception(_may_pass),
        reraise=True,
    )
    return await retrying(ask)


def refusal(error: BaseException, setting: str) -> str | None:
    """Return why the model refuses every request like this one, None if another may succeed. `setting` names the model."""
    if refuses_content(error):
        return None
    reason = _REFUSALS.get(getattr(error, "status_code", 0))
    return reason and reason.format(setting=setting, api_base=api_base_of(setting))


def refuses_content(error: BaseException) -> bool:
    """Return whether this request is too long for the model or filtered, which says nothing about others."""
    from litellm.exceptions import ContentPolicyViolationError, ContextWindowExceededError

    return isinstance(error, ContentPolicyViolationError | ContextWindowExceededError)


def error_text(error: BaseException) -> str:
    """Return kind and text of an error as one line of at most 200 characters."""
    return _shortened(f"{type(error).__name__}: {error}")


def _shortened(text: str) -> str:
    return " ".join(text.split())[:_MAX_ERROR_CHARS]


def _may_pass(error: BaseException) -> bool:
    from openai import OpenAIError  # base class of LiteLLM's errors

    if isinstance(error, BadInput):
        return False
    return (
        isinstance(error, OpenAIError | TimeoutError | ValueError) and getattr(error, "status_code", 0) not in _REFUSALS
    )


def price_of(reply: Any) -> float | None:
    """Return the US dollars of one reply, None where LiteLLM does not know the price."""
    import litellm

    try:
        return float(litellm.completion_cost(completion_response=reply)) or None
    except Exception:  # LiteLLM raises a bare Exception for a model without a price
        return None


def price_of_tokens(model: str, prompt_tokens: int, completion_tokens: int) -> float | None:
    """Return the US dollars of a request of this size, None where LiteLLM does not know the price."""
    import litellm

    try:
        costs = litellm.cost_per_token(model=model, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)
    except Exception:  # LiteLLM raises a bare Exception for a model without a price
        return None
    return sum(costs) or None


def json_object(text: str) -> Any:
    """Return the first JSON object in a reply, which may be wrapped in prose or a code fence. Raise ValueError."""
    return json_objects(text)[0]


def json_objects(text: str) -> list[Any]:
    """Return all JSON objects in a reply, in order, without those inside another. Raise ValueError if there is none."""
    found, start = [], text.find("{")
    while start >= 0:
        try:
            value, end = json.JSONDecoder().raw_decode(text, start)
            found.append(value)
        except RecursionError:
            raise ValueError("JSON nested too deeply") from None
        except ValueError:
            end = start + 1
        start = text.find("{", end)
    if not found:
        raise ValueError("no JSON object")
    return found


def call_arguments(text: str) -> dict[str, Any] | None:
    """Return the arguments of a tool call; None if `text` is no JSON object, nested too deeply, or holds what no file can."""
    try:
        arguments = json.loads(text)
        json.dumps(arguments, ensure_ascii=False).encode()  # raises for half of an escaped character
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None
