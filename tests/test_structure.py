"""Structure of the code: allowed imports, file lengths, and a cheap --help."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = {
    "environment": set(),
    "training": set(),
    "reports": set(),
    "tasks": {"training"},
    "sandbox": set(),
    "agent": {"environment", "training"},
    "benchmarks": {"agent", "environment", "sandbox", "tasks", "training"},
    "cluster": {"training"},
    "configs": {"agent", "cluster", "tasks", "training"},
    "materializers": {"environment", "training"},
    "serving": {"agent", "environment", "training", "materializers", "tasks"},
    "steps": {"agent", "configs", "environment", "materializers", "reports", "serving", "tasks", "training"},
    "pipelines": {"configs", "steps", "training"},
    "commands": {
        *("cluster", "configs", "environment", "materializers", "pipelines", "reports"),
        *("serving", "steps", "tasks", "training"),
    },
}
"""Room -> rooms of ours that it may import."""

TRAINING_ROOMS = {
    "record": set(),
    "scoring": {"record"},
    "backends": {"record", "scoring"},
    "guard": {"record", "scoring", "backends"},
    "loop": {"record", "scoring", "backends", "guard"},
}
"""Room of training/ -> other rooms of it that it may import."""

LIBRARIES = {
    "zenml": {"cluster", "commands", "pipelines", "steps", "materializers", "serving", "run.py"},
    "torch": {"training/backends", "benchmarks/backend", "benchmarks/gpu_check"},
    "art": {
        *("agent", "tasks", "training", "benchmarks/backend"),
        *("benchmarks/judge_agreement.py", "benchmarks/ruler.py"),
    },
    "langchain_core": {"agent"},
    "langchain_openai": {"agent"},
    "langgraph": {"agent"},
}
"""Library -> places that may import it."""

MAX_LINES = 350


def sources() -> list[Path]:
    return [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]


@cache
def imports(file: Path) -> list[tuple[str, list[str]]]:
    """Return the imports of a file, wherever they stand: each module, with the names that are imported from it."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    named = [(alias.name, []) for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    from_modules = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return named + [(node.module, [alias.name for alias in node.names]) for node in from_modules if node.module]


def imported(file: Path) -> list[str]:
    return [module for module, _ in imports(file)]


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_one_way(room: str) -> None:
    files = list((ROOT / room).rglob("*.py"))
    assert files
    for file in files:
        for name in imported(file):
            top = name.partition(".")[0]
            assert top not in ROOMS or top == room or top in ROOMS[room], f"{file.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("room", TRAINING_ROOMS)
def test_imports_inside_training_point_one_way(room: str) -> None:
    files = list((ROOT / "training" / room).rglob("*.py"))
    assert files
    for file in files:
        for name in imported(file):
            place = (name + "..").split(".")[1] if name.startswith("training.") else room
            allowed = place not in TRAINING_ROOMS or place == room or place in TRAINING_ROOMS[room]
            assert allowed, f"{file.relative_to(ROOT)} imports {name}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Counts imports inside functions and for type checkers too."""
    module_of = {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in sources()}
    module_of = {name.removesuffix(".__init__"): file for name, file in module_of.items()}
    graph = {
        name: {found for found in _modules(file) if found in module_of and found != name}
        for name, file in module_of.items()
    }
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def _modules(file: Path) -> set[str]:
    """Return the modules that a file imports, also those that it imports from a package."""
    return {name for module, names in imports(file) for name in (module, *(f"{module}.{name}" for name in names))}


def test_the_agent_knows_five_modules_of_the_trainer_only() -> None:
    allowed = {f"training.{module}" for module in ("errors", "llm_client", "loopback", "guard.standstill", "task")}
    for file in (ROOT / "agent").rglob("*.py"):
        ours = {name for name in imported(file) if name.startswith("training")}
        assert ours <= allowed, f"{file.relative_to(ROOT)} imports {ours - allowed}"


@pytest.mark.parametrize("library", LIBRARIES)
def test_libraries_stay_in_their_rooms(library: str) -> None:
    for file in sources():
        place = str(file.relative_to(ROOT))
        if any(name.partition(".")[0] == library for name in imported(file)):
            assert place.startswith(tuple(LIBRARIES[library])), f"{place} imports {library}"


@pytest.mark.parametrize("room", [*ROOMS, "tests"])
def test_files_are_short(room: str) -> None:
    for file in (ROOT / room).rglob("*.py"):
        lines = len(file.read_text().splitlines())
        assert lines <= MAX_LINES, f"{file.relative_to(ROOT)} has {lines} lines"


def test_no_file_is_named_after_nothing() -> None:
    for file in sources():
        assert file.stem not in {"utils", "util", "helpers", "helper", "misc", "common", "manager"}, file


def test_help_answers_before_anything_heavy_is_imported() -> None:
    code = "import sys, run\ntry:\n    run.main(['--help'])\nexcept SystemExit:\n    print(sorted(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    options = [
        "pipeline",
        "config",
        "no-cache",
        "checkpoint",
        "name",
        "set",
        "summary",
        "dry-run",
        "schedule",
        "resume",
    ]
    options += ["from", "to", "merged", "serve"]
    for option in (*options, "schedule-list", "schedule-pause", "schedule-resume", "schedule-delete"):
        assert f"--{option} " in shown or f"--{option}\n" in shown
    for library in ("'zenml'", "'torch'", "'pydantic'", "'art'"):
        assert library not in shown
