#!/usr/bin/env bash
# Ten minutes on one GPU: the tests marked gpu, then times beside transformers and
# segmentation_models.pytorch. Prints the tables of .github/guide/serving.md ("GPU") in Markdown.
# DEVICE=cpu bash tests/gpu.sh rehearses every line with tiny models and without a GPU.
# A section that fails or takes too long is reported, and the next one starts. Arguments are those of pytest.
set -uo pipefail
cd "$(dirname "$0")/.."
export DEVICE="${DEVICE:-cuda}" WANDB_MODE=offline
SCALE="${SCALE:-1}"    # of the seconds of each section
WORKERS="${WORKERS:-4}" # processes of the tests
LOG="$(mktemp -d)"

section() { # NAME SECONDS COMMAND...
    local name=$1 seconds=$(($2 * SCALE)) start=$SECONDS code=0
    shift 2
    timeout --kill-after=10 "$seconds" "$@" 2>"$LOG/$name.err" || code=$?
    case $code in
        0) printf '\n%s: ended well in %d s\n\n' "$name" $((SECONDS - start)) ;;
        124 | 137) printf '\n%s: **stopped after %d s**\n\n' "$name" "$seconds" ;;
        *) printf '\n%s: **failed, exit code %d**\n\n```\n' "$name" "$code"
           tail -n 5 "$LOG/$name.err"
           printf '```\n\n' ;;
    esac
}
bench() { # SECTION SECONDS ARGUMENTS...
    local name=$1 seconds=$2
    shift 2
    section "$name" "$seconds" python tests/benchmarks "$@" --dtype bf16 --device "$DEVICE"
}

python - <<'PYTHON'
import os
import segmentation_models_pytorch, torch, transformers

name = torch.cuda.get_device_name() if os.environ["DEVICE"] == "cuda" else "CPU (a rehearsal)"
print(f"{name}, {os.cpu_count()} cores, torch {torch.__version__}, transformers "
      f"{transformers.__version__}, segmentation_models.pytorch {segmentation_models_pytorch.__version__}\n")
PYTHON

section tests 230 python -m pytest -m gpu -n "$WORKERS" --durations 5 "${@:-tests}"

MODELS="dpt_base dpt_large dpt_small"
[ "$DEVICE" = cpu ] && MODELS=dpt_tiny
for model in $MODELS; do
    bench "$model" 60 --model "$model" --batch 8 --train
    bench "$model-compiled" 60 --model "$model" --batch 8 --train --against dpt-compile,transformers-compile,smp-compile
done
printf 'Errors and warnings: %s\n' "$LOG"
