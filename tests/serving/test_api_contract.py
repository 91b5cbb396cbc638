"""What /openapi.json says is what the service does: requests made from it, good and bad, get what it documents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.fakes.policy import MailPolicy
from tests.serving.scripted_service import scripted_app, served

pytestmark = pytest.mark.service

KEY = "a key of this service"
# A string that is no date, or an address without mail, is valid in a schema's eyes and rightly refused.
EXCLUDED = [positive_data_acceptance]
TAKES_NOTHING = ["/model", "/health", "/metrics", "/v1/models"]
OPERATIONS = [
    *[(path, "POST") for path in ("/invoke", "/stream", "/submit", "/feedback", "/v1/chat/completions")],
    *[(path, "GET") for path in ("/answers/{answer_id}", "/inboxes", "/examples", *TAKES_NOTHING)],
]


@pytest.fixture(scope="module")
def api(policy: MailPolicy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with served(scripted_app(policy, tmp_path_factory.mktemp("contract"), key=KEY)) as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_every_operation_does_what_is_documented(api: Any, path: str, method: str, mode: GenerationMode) -> None:
    if mode is GenerationMode.NEGATIVE and path in TAKES_NOTHING:
        return

    # The key is put back into every request, so a case whose only fault was its missing key would count as accepted: the same
    # cases every time.
    @settings(max_examples=10, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(case=api[path][method].as_strategy(mode))
    def check(case: schemathesis.Case) -> None:
        case.call_and_validate(timeout=300, headers={"Authorization": f"Bearer {KEY}"}, excluded_checks=EXCLUDED)

    check()


def test_every_operation_and_status_is_documented(tmp_path: Path) -> None:
    paths = scripted_app(MailPolicy(), tmp_path).fastapi.openapi()["paths"]
    assert {(path, method.upper()) for path, methods in paths.items() for method in methods} == set(OPERATIONS)
    asking = {"200", "400", "401", "403", "404", "408", "413", "415", "421", "422", "429", "500", "503", "504"}
    assert set(paths["/invoke"]["post"]["responses"]) == asking
    assert set(paths["/stream"]["post"]["responses"]) == asking
    reply = paths["/invoke"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert reply == {"$ref": "#/components/schemas/Reply"}
