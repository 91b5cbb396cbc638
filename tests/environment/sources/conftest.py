"""The default company, generated once."""

from __future__ import annotations

import pytest
from generated_company import Company

from environment.sources.synthetic import synthetic_company


@pytest.fixture(scope="session")
def company() -> Company:
    return Company(synthetic_company())
