"""Check every scenario in the sandbox before training: its tests fail before the reference patch, and pass after it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.coding.errors import SandboxUnavailable
from tasks.coding.sandbox_client import SANDBOX_PATIENCE, SandboxClient
from tasks.coding.scenarios import CodingScenario
from training.errors import BadInput


async def require_checked(
    scenarios: Sequence[CodingScenario],
    sandbox_url: str,
    *,
    patience: float = SANDBOX_PATIENCE,
    concurrent: int = 8,
    passed: Path | None = None,
) -> None:
    """Run every scenario's tests before and after its reference patch.

    The file `passed` holds the digests of scenarios that have passed. They are not checked again, for example when a run
    is resumed. A busy or restarting sandbox is waited for, up to `patience` seconds.

    Raises:
        BadInput: a scenario's tests pass before the patch, or fail after it, or the sandbox fails.
    """
    slots = asyncio.Semaphore(concurrent)
    known = frozenset(passed.read_text().split()) if passed is not None and passed.exists() else frozenset()
    async with SandboxClient(sandbox_url, patience=patience) as sandbox:

        async def check(scenario: CodingScenario) -> str | None:
            digest = scenario.digest()
            if digest in known:
                return None
            async with slots:
                before = await sandbox.test(scenario, {"changed": {}, "deleted": []})
                if all(before):
                    return f"{scenario.id}: its tests pass before the repair"
                after = await sandbox.test(scenario, await _reference_patch(scenario, sandbox))
            if not all(after):
                return f"{scenario.id}: its tests fail after the repair"
            if passed is not None:
                passed.parent.mkdir(parents=True, exist_ok=True)
                with passed.open("a") as file:
                    file.write(f"{digest}\n")
            return None

        try:
            problems = [problem for problem in await asyncio.gather(*map(check, scenarios)) if problem]
        except SandboxUnavailable as error:
            raise BadInput(
                f"the check of the bugs before training: the sandbox failed ({error}); see what the service printed, start "
                "it with a larger capacity if it is only busy, and start the same command again"
            ) from error
    if problems:
        raise BadInput(f"scenario {'; '.join(problems)}; exclude the unusable ones (excluded_bugs)")


async def _reference_patch(scenario: CodingScenario, sandbox: SandboxClient) -> dict[str, Any]:
    """Return the reference repair: its patch, or the changes that its cells make."""
    if (known := scenario.reference_patch()) is not None:
        return known
    workspace = await sandbox.open(scenario)
    try:
        for cell in (scenario.prelude(), *scenario.oracle_cells()):
            await sandbox.execute(workspace, cell)
        return await sandbox.changes(workspace)
    finally:
        await sandbox.destroy(workspace)
