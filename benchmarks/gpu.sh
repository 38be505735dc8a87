#!/usr/bin/env bash
# What needs a GPU, within nine minutes: the tests that are skipped without one, steps beside
# PyTorch's own and beside what advise predicts, the time that doctor adds to a step, the FP8 and the
# fp16 rehearsal beside the GPU, the parts of a trainer's step, and the feed with its copies to the
# device. Leaves JSON files, logs and summary.md in FOLDER; exits with 1 if a part failed.
#
#     bash benchmarks/gpu.sh [FOLDER]         # benchmarks/results/gpu by default
#     TOY=1 bash benchmarks/gpu.sh FOLDER     # the same parts on a CPU, as small as can be
#
# A part that takes longer than its time is ended, and those after it still run.
set -u
cd "$(dirname "$0")/.." || exit 1
out=${1:-benchmarks/results/gpu}
mkdir -p "$out" || exit 1
rm -rf "$out"/{tests,steps,doctor,fp8,rehearsal,parts,feed}.log
rm -rf "$out"/{steps,doctor,fp8,rehearsal,feed}.json "$out"/parts "$out"/parts.tsv "$out"/summary.md
python=${PYTHON:-python}
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH}

if [ -n "${TOY:-}" ]; then
  tests=(tests/feed/test_prefetching.py)
  steps=(--device cpu --models resnet10t --batch 2 --pixels 32 --recipes fp32 fp16+act2
    --rounds 1 --steps 1 --backend eager --compiled fp32 fp16+act2
    --gpu h200)
  doctor=(--device cpu --models resnet10t --batch 2 --pixels 32 --recipes fp32
    --rounds 1 --steps 1 --skipped 1)
  rehearsal=(--steps 2)
  parts=(--device cpu --recipes fp32 --steps 1 --warmup 0 --rounds 1)
  feed=(--device cpu --images 64 --rounds 1 --model resnet10t --workers 0)
else
  mapfile -t tests < <(grep -rlE "needs a GPU|cuda.is_available" tests --include='test_*.py' |
    grep -vE "distributed|cli/")
  steps=(--device cuda --models resnet18 convnext_tiny efficientnet_b0 vit_base_patch16_224
    --compiled --rounds 3)
  doctor=(--device cuda --models resnet50 --rounds 3)
  rehearsal=()
  parts=(--device cuda --recipes fp32,bf16,fp16,o2 --rounds 2)
  feed=(--device cuda --images 2048 --rounds 2 --workers 8)
fi

failed=0
part() { # NAME SECONDS COMMAND...
  local name=$1 most=$2 began=$SECONDS code
  shift 2
  [ -z "${TOY:-}" ] || most=900 # it may share its cores
  timeout --kill-after=10 "$most" "$@" >"$out/$name.log" 2>&1
  code=$?
  [ $code -eq 0 ] || failed=1
  printf '%s\t%s\t%s\n' "$name" $((SECONDS - began)) $code >>"$out/parts.tsv"
}

part tests 100 "$python" -m pytest -q -n 4 -m "not slow" "${tests[@]}"
part steps 150 "$python" benchmarks/gpu_steps.py "${steps[@]}" --out "$out/steps.json"
part doctor 60 "$python" benchmarks/gpu_doctor.py "${doctor[@]}" --out "$out/doctor.json"
part fp8 30 "$python" benchmarks/fp8_distance.py --out "$out/fp8.json"
part rehearsal 40 "$python" benchmarks/rehearsal.py "${rehearsal[@]}" --out "$out/rehearsal.json"
part parts 50 "$python" -m halfstep bench step digits "${parts[@]}" --quiet --out "$out/parts"
part feed 60 "$python" benchmarks/feed.py "${feed[@]}" --out "$out/feed.json"
"$python" benchmarks/gpu_summary.py "$out" || failed=1
exit $failed
