"""Measure how a GRPO step of the torch backend scales with the size of groups, conversations and batch.

  python -m benchmarks.backend_scale                          about fifteen minutes on two cores
  python -m benchmarks.backend_scale --plot docs/scale.svg    needs matplotlib==3.11.2

Each point is measured in its own process: rollouts and update of conversations of random ids with three replies each. The
default is two groups of four conversations with 600 tokens; each row varies one of these numbers. The computed share is the
number of computed tokens, relative to computing every conversation separately. The exponent is that of the best-fitting
power law (1: linear). Figures go to stdout, the last line is JSON; progress goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.backend import SideFailed, run_side
from benchmarks.backend_sides.job import Conversation, Job, ModelSize, Turn
from benchmarks.output import progress, show
from training.backends.torch.hardware import physical_cores

GROUPS, ROLLOUTS, TOKENS = 2, 4, 600
REPLIES, REPLY_TOKENS, OPENING_SHARE = 3, 32, 0.4
AXES: dict[str, Sequence[int]] = {
    "rollouts in a group": (2, 4, 8, 16),
    "tokens in a conversation": (300, 600, 1200, 2000),
    "groups in a step": (1, 2, 4, 8),
}
PARTS = ("rollouts", "update")


def main() -> int:
    """Measure all points. Return the exit code: 0 done, 2 it could not be done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "--model",
        type=Path,
        default=Path("models/smollm2-135m-instruct"),
        help="a folder (default SmolLM2-135M-Instruct's)",
    )
    add("--threads", type=int, default=physical_cores(), help="default: one per physical core")
    add("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="of the products (default bfloat16)")
    add("--plot", type=Path, help="file for the log-log plot")
    arguments = parser.parse_args()
    if not (arguments.model / "config.json").is_file():
        print(
            f"error: --model {arguments.model}: expected a folder with config.json and safetensors weights",
            file=sys.stderr,
        )
        return 2
    figures: dict[str, Any] = {"model": arguments.model.name, "dtype": arguments.dtype, "threads": arguments.threads}
    try:
        with tempfile.TemporaryDirectory() as scratch:
            for axis, values in AXES.items():
                figures[axis] = measure_axis(axis, values, arguments, Path(scratch))
    except SideFailed as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    if arguments.plot:
        plot(figures, arguments.plot)
    print(json.dumps(figures))
    return 0


def measure_axis(axis: str, values: Sequence[int], arguments: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Measure seconds and memory at each value, and print them as a table."""
    points: list[dict[str, Any]] = []
    for value in values:
        progress(f"{axis}: {value}")
        sizes = dict(zip(AXES, (ROLLOUTS, TOKENS, GROUPS), strict=True)) | {axis: value}
        rollouts, tokens, groups = (sizes[name] for name in AXES)
        points.append({"value": value, **measure(rollouts, tokens, groups, arguments, scratch)})
    exponents = {part: round(exponent(values, [point[f"{part}_s"] for point in points]), 2) for part in PARTS}
    names = ("value", "rollouts_s", "update_s", "computed_share", "peak_memory_gb")
    rows = [tuple(point[name] for name in names) for point in points]
    show(f"{axis} (exponents: {exponents})", names, rows)
    return {"points": points, "exponents": exponents}


def measure(rollouts: int, tokens: int, groups: int, arguments: argparse.Namespace, scratch: Path) -> dict[str, float]:
    """Return the seconds of the rollouts and of the update of one step, peak memory in GB, and the share of all tokens that is computed."""
    chance, vocabulary = random.Random(0), ModelSize.of(arguments.model).vocabulary

    def ids(count: int) -> list[int]:
        return [chance.randrange(100, vocabulary) for _ in range(count)]

    def conversation(opening: list[int]) -> Conversation:
        between = (tokens - len(opening) - REPLIES * REPLY_TOKENS) // (REPLIES - 1)
        parts = [between] * (REPLIES - 1) + [0]
        return Conversation(opening, [Turn(ids(REPLY_TOKENS), ids(part)) for part in parts])

    openings = [ids(int(tokens * OPENING_SHARE)) for _ in range(groups)]
    job = Job(
        model=str(arguments.model.resolve()),
        dtype=arguments.dtype,
        threads=arguments.threads,
        repeats=1,
        gemm_size=0,
        groups=[[conversation(opening) for _ in range(rollouts)] for opening in openings],
        demonstrations=[conversation(ids(64))],
        decode_prompts=[ids(32)],
        decode_tokens=1,
    )
    job.write(scratch / "job.json")
    measured = run_side("ours", scratch / "job.json", job)
    whole = sum(len(each.ids) for each in job.conversations)
    return {
        "rollouts_s": round(measured["rollouts"]["seconds"], 2),
        "update_s": round(measured["training"]["grpo"]["seconds"], 2),
        "computed_share": round(measured["training"]["grpo"]["unique_tokens"] / whole, 3),
        "peak_memory_gb": round(measured["peak_memory_gb"], 2),
    }


def exponent(values: Sequence[float], seconds: Sequence[float]) -> float:
    """Return the slope of the least-squares line through the points on logarithmic axes."""
    x, y = [math.log(value) for value in values], [math.log(value) for value in seconds]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((one - mean_x) ** 2 for one in x)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread


def plot(figures: dict[str, Any], file: Path) -> None:
    """Draw one log-log chart per varied number."""
    import matplotlib.pyplot as plt

    figure, charts = plt.subplots(1, len(AXES), figsize=(12, 3.6), sharey=True, layout="constrained")
    for chart, axis in zip(charts, AXES, strict=True):
        points = figures[axis]["points"]
        for part in PARTS:
            label = f"{part} (exponent {figures[axis]['exponents'][part]})"
            chart.loglog([p["value"] for p in points], [p[f"{part}_s"] for p in points], "o-", label=label)
        chart.set_xticks([p["value"] for p in points], [str(p["value"]) for p in points])
        chart.minorticks_off()
        chart.set_xlabel(axis)
        chart.grid(visible=True, alpha=0.3)
        chart.legend(fontsize="small")
    charts[0].set_ylabel("seconds")
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(main())
