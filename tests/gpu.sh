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
export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-$LOG/inductor}"

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
bench() { # SECTION SECONDS
    section "$1" "$2" python tests/benchmarks gpu "$1" --device "$DEVICE" --seconds $(($2 * SCALE * 8 / 10))
}

python - <<'PYTHON'
import os
import segmentation_models_pytorch, torch, transformers

name = torch.cuda.get_device_name() if os.environ["DEVICE"] == "cuda" else "CPU (a rehearsal)"
print(f"{name}, {os.cpu_count()} cores, torch {torch.__version__}, transformers "
      f"{transformers.__version__}, segmentation_models.pytorch {segmentation_models_pytorch.__version__}\n")
PYTHON

# While the tests run, compiled kernels are written to the cache, which the timed section reads.
COMPILERS=()
if [ "$DEVICE" = cuda ]; then
    for model in dpt_small dpt_base dpt_large; do
        timeout 230 python tests/benchmarks gpu compiled --models "$model" --rounds 1 >/dev/null 2>&1 &
        COMPILERS+=($!)
    done
fi
section tests 230 python -m pytest -m gpu -n "$WORKERS" --durations 5 "${@:-tests}"
for pid in "${COMPILERS[@]}"; do kill "$pid" 2>/dev/null; wait "$pid" 2>/dev/null; done

bench predict 80
bench train 90
bench compiled 130
bench loader 50
printf 'Errors and warnings: %s\n' "$LOG"
