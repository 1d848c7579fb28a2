#!/usr/bin/env bash
# Every GPU probe in the present Python (`--target host`), its evidence, and proof that each can fail.
#
#   tools/gpu_run.sh OUT [NCCL]
#
# OUT takes the evidence. NCCL is a libnccl.so.2 of 2.30.3 or newer: with it two ranks share each GPU,
# which runs NCCL's code where there is one GPU, and is never counted as a pass on two.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$1 nccl=${2:-}
python=${PYTHON:-python3}
mkdir -p "$out"
one=versions,linkage,driver,nccl_init,ddp_step,ddp_step_gloo,fsdp_step,amp_tf32,compile_gpu
one=$one,gpu_balance,oom,allreduce_bandwidth,allreduce_bandwidth_gloo
shared=nccl_init,ddp_step,fsdp_step,allreduce_bandwidth

say() { printf '\n== %s (%ss)\n' "$*" "$SECONDS"; }

say "one rank on each GPU"
"$python" build.py probe --target host --probes "$one" --reports "$out/one" -- -q -n 4
cp "$out/one/report.json" "$out/one-rank.json"

if [ -n "$nccl" ]; then
  say "two ranks on each GPU"
  LD_PRELOAD=$nccl "$python" build.py probe --target host --probes "$shared" \
    --ranks-per-gpu 2 --reports "$out/shared" -- -q
  cp "$out/shared/report.json" "$out/shared-gpu.json"
fi

say "faults"
fault() {  # CODE that must come, then the command
  local want=$1 said
  shift
  said=$(env TORCHPROOF_TIMEOUT=60 "$@" 2>>"$out/faults.log" | tail -n 1)
  case $said in
    *"\"code\": \"$want\""*) printf 'fails as it must: %s\n' "$said" ;;
    *) printf 'NOT SEEN %s: %s\n' "$want" "$said" ;;
  esac
}
slim='{"archs": ["sm_100"], "slim": true, "cuda": "cu130"}'
old='{"driver_floor": "999.1", "cuda": "cu130"}'
sabotage="$python tests/fixtures/sabotage.py"
{
  fault no_device CUDA_VISIBLE_DEVICES= "$python" probes/driver.py
  fault no_kernel_image TORCHPROOF_LOCK="$slim" "$python" probes/driver.py
  fault driver_too_old TORCHPROOF_LOCK="$old" "$python" probes/driver.py
  stub=$(mktemp -d)
  ln -s "${STUBS:-/usr/local/cuda/lib64/stubs}/libcuda.so" "$stub/libcuda.so.1"
  fault libcuda_stub LD_LIBRARY_PATH="$stub" "$python" probes/driver.py
  rm -r "$stub"
  fault tf32_always NVIDIA_TF32_OVERRIDE=1 "$python" probes/amp_tf32.py
  fault tf32_never NVIDIA_TF32_OVERRIDE=0 "$python" probes/amp_tf32.py
  fault autocast_off $sabotage autocast_off probes/amp_tf32.py
  fault not_compiled TORCHDYNAMO_DISABLE=1 "$python" probes/compile_gpu.py
  fault gpu_idle "$python" probes/gpu_balance.py --delay
  fault oom_unseen $sabotage silent_oom probes/oom.py
  fault wrong_sum $sabotage wrong_sum probes/nccl_init.py
  fault wrong_sum $sabotage wrong_sum probes/allreduce_bandwidth.py --max-bytes 65536
  fault rank_died $sabotage killed_rank probes/nccl_init.py
  fault rank_failed TORCHPROOF_RANKS_PER_GPU=2 "$python" probes/nccl_init.py
  if [ -n "$nccl" ]; then
    two=(TORCHPROOF_RANKS_PER_GPU=2 "LD_PRELOAD=$nccl")
    fault gradient_mismatch "${two[@]}" $sabotage wrong_gradient_sum probes/ddp_step.py
    fault gradient_not_reduced "${two[@]}" $sabotage no_sync probes/ddp_step.py
    fault weights_differ "${two[@]}" $sabotage other_weights probes/ddp_step.py
    fault fsdp_mismatch "${two[@]}" $sabotage wrong_scatter probes/fsdp_step.py
    fault hang TORCHPROOF_TIMEOUT=40 "${two[@]}" $sabotage sleeping_rank probes/nccl_init.py
  fi
} | tee "$out/faults.txt"
say "done"
