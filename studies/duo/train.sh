#!/usr/bin/env bash
# Four models of pocket's shape on the same batches, side by side on one GPU: masked, uniform, uniform after Duo's
# curriculum, causal. They are what studies/duo/run.sh compares.
#   CORPUS=corpora/teacher OUT=runs bash studies/duo/train.sh
# One that has not done its STEPS after TRAIN seconds ends where it is, with its averaged weights. One that fails stops no
# other and is named at the end. KEEP holds two files, written anew after every model: models.tar (each in bf16),
# results.tgz (logs and metrics). Stopped, the same call goes on.
# At toy size, in a minute on a CPU:
#   CORPUS=corpora/sample OUT=runs/toy STEPS=6 SHAPE="--preset tiny --length 64" FLAGS="--batch 4 --warmup 2" bash studies/duo/train.sh
set -uo pipefail
: "${CORPUS:?a folder of unmask prepare}" "${OUT:=runs}" "${KEEP:=$OUT/kept}" "${STEPS:=1200}" "${SOFT:=$((STEPS / 2))}" "${TRAIN:=250}"
: "${SHAPE:=--preset pocket --length 256}" "${NAMES:=mdlm duo curriculum ar}"
: "${FLAGS:=--batch 512 --optimiser muon --muon_lr 0.02 --lr 2e-3 --warmup 100 --weight_decay 0.01 --beta2 0.95 --ema 0.99 --precision bf16 --compile}"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} TORCHINDUCTOR_COMPILE_THREADS=${TORCHINDUCTOR_COMPILE_THREADS:-4}
mkdir -p "$OUT/logs" "$KEEP"

options() { # of a model, by its name
  case $1 in
  mdlm*) echo "--objective mdlm" ;;
  duo*) echo "--objective mdlm --process uniform" ;;
  curriculum*) echo "--objective duo --soft_steps $SOFT" ;;
  ar*) echo "--objective ar" ;;
  esac
}

train() { # NAME
  local left=$((TRAIN - SECONDS)) run="$OUT/$1" done_
  # shellcheck disable=SC2046,SC2086
  local -a how=("${PYTHON:-python3}" -m unmask train $(options "$1") $SHAPE --dropout 0 --decay linear $FLAGS --data "$CORPUS"
    --eval_every 400 --save_every 200 --log_every 50 --keep 1 --no-progress --no-tensorboard --out "$run")
  # --foreground: else it may signal twice, which means leave at once
  timeout --foreground -k 30 "$((left > 1 ? left : 1))" "${how[@]}" --steps "$STEPS" && return
  done_=$(find "$run/state" -name 'step-*' 2>/dev/null | sed 's/.*step-0*//' | sort -n | tail -n 1)
  [ -n "$done_" ] || return 1
  echo "$1 was ended after $done_ steps: its rate has not come down to zero"
  timeout --foreground -k 10 60 "${how[@]}" --steps "$done_" # no further step: written as what it is
}

narrow() { # a model in bf16
  "${PYTHON:-python3}" -c 'import sys, torch; from unmask.checkpoint.io import load, save
save(load(sys.argv[1]), sys.argv[2], dtype=torch.bfloat16)' "$OUT/$1" "$OUT/bf16/$1"
}

keep() { # at once, so that nothing is lost if time runs out
  (
    flock 9
    tar -cf "$KEEP/.models" -C "$OUT/bf16" . && mv "$KEEP/.models" "$KEEP/models.tar"
    (cd "$OUT" && find . \( -name 'metrics.jsonl' -o -name 'run.json' -o -name '*.log' \) -not -path './kept/*' -print0 |
      tar --null -czf .results -T -) && mv "$OUT/.results" "$KEEP/results.tgz"
  ) 9>"$OUT/lock"
}

mkdir -p "$OUT/bf16"
for name in $NAMES; do
  {
    if train "$name" && narrow "$name"; then echo "$name is done after $SECONDS s"; else echo "$name has failed after $SECONDS s"; fi
    keep
  } >"$OUT/logs/$name.log" 2>&1 &
done
wait
keep
tail -qn 2 "$OUT"/logs/*.log
echo "all is in $KEEP after $SECONDS s: $(du -k "$KEEP"/* | tr '\n\t' '; ')"
