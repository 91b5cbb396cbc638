#!/bin/bash
# Run a check of this kit. The machine needs torch and pip, no network. See docs/gpu.md.
#   bash run.sh gpu_check                      ten minutes; the last line is JSON
#   bash run.sh default [ARGUMENT ...]         the default profile: data, training, evaluation
#   bash run.sh real_mail MAILS QUESTIONS      the 1.5B model, for ten minutes of training and sixty answers
# GPU_KIT names the folder to install into (default: /tmp/gpu_kit).
set -euo pipefail

usage() { sed -n '2,6s/^# //p' "$0" >&2 && exit 2; }
case ${1:-} in gpu_check | default) ;; real_mail) [ $# -ge 3 ] || usage ;; *) usage ;; esac
kit=$(cd "$(dirname "$0")" && pwd)
work=$(realpath -m "${GPU_KIT:-/tmp/gpu_kit}")
if [ ! -e "$work/ready" ]; then
    mkdir -p "$work"
    (cd "$kit" && sha256sum --quiet --check pieces.sha256)
    cat "$kit"/piece-* | tar -x -C "$work"
    # Torch and what it brings are the machine's own, wherever they are installed: a virtual environment would hide them.
    python3 -m pip install --quiet --no-index --no-deps --find-links "$work/wheels" --target "$work/site" -r "$work/requirements.txt"
    touch "$work/ready"
fi
export PYTHONPATH="$work/site" PIP_NO_INDEX=1 PIP_FIND_LINKS="$work/wheels" ZENML_CONFIG_PATH="$work/zenml" ZENML_ANALYTICS_OPT_IN=false
# One GPU computes larger batches than the CPU for which these are set.
large=(--set torch.kv_cache_tokens=120000 --set torch.step_tokens=4096 --set torch.max_running=64
    --set torch.micro_batch_tokens=8192 --set torch.recorded_tokens=4096 --set max_concurrent=64)

# Paths in arguments are relative to the folder of the caller, so only the check, which takes none, changes it.
case $1 in
    gpu_check) cd "$work/project" && exec python3 -m benchmarks.gpu_check "${@:2}" ;;
    default) exec python3 "$work/project/run.py" --pipeline all "${@:2}" ;;
    real_mail)
        exec python3 "$work/project/run.py" --pipeline all --config "$work/project/configs/enron_laptop.yaml" \
            --set emails="$2" --set train_questions="$3" \
            --set torch.base_weights=auto "${large[@]}" --set stop_seconds=600 "${@:4}"
        ;;
esac
