"""The default company, generated once."""

from __future__ import annotations

import pytest

from environment.sources.synthetic import synthetic_company
from tests.environment.generated_company import Company


@pytest.fixture(scope="session")
def company() -> Company:
    return Company(synthetic_company())
