#!/usr/bin/env bash
# Four models of pocket's shape on the same batches, side by side on one GPU: masked, uniform, uniform after Duo's
# curriculum, causal. They are what studies/duo/run.sh compares.
#   CORPUS=corpora/teacher OUT=runs/duo bash studies/duo/train.sh
# One that has not done its STEPS after TRAIN seconds ends where it is, with its averaged weights; all ends after TIME
# seconds. One that fails stops no other and is named at the end. KEEP holds, written anew after every model, models.00, .01,
# ... (all in bf16; `joined KEEP models FOLDER` of studies/common.sh makes folders of them) and results.tgz (logs, metrics).
# Stopped, the same call goes on.
# At toy size, in a minute on a CPU:
#   CORPUS=corpora/sample OUT=runs/toy STEPS=6 SHAPE="--preset tiny --length 64" FLAGS="--batch 4 --warmup 2" bash studies/duo/train.sh
set -uo pipefail
: "${CORPUS:?a folder of unmask prepare}" "${OUT:=runs/duo}" "${STEPS:=1200}" "${SOFT:=$((STEPS / 2))}" "${TRAIN:=250}"
: "${TIME:=$((TRAIN + 90))}" "${SHAPE:=--preset pocket --length 256}" "${NAMES:=mdlm duo curriculum ar}"
: "${FLAGS:=--batch 512 --optimiser muon --muon_lr 0.02 --lr 2e-3 --warmup 100 --weight_decay 0.01 --beta2 0.95 --ema 0.99 --precision bf16 --compile}"
. "$(dirname "$0")/../common.sh"
deadline "$TIME"

options() { # of a model, by its name
  case $1 in
  mdlm*) echo "--objective mdlm" ;;
  duo*) echo "--objective mdlm --process uniform" ;;
  curriculum*) echo "--objective duo --soft_steps $SOFT" ;;
  ar*) echo "--objective ar" ;;
  esac
}

train() { # NAME
  # shellcheck disable=SC2046,SC2086
  trained "$OUT/$1" "$TRAIN" "$STEPS" 0 $(options "$1") $SHAPE --dropout 0 --decay linear $FLAGS --data "$CORPUS" --eval_every 400 \
    --save_every 200 --log_every 50 --keep 1 --no-progress --no-tensorboard
}

keep() { # NAME: its weights in bf16 with those that are there, one model at a time
  (
    flock 8
    [ -z "${1:-}" ] || { mkdir -p "$OUT/bf16" && narrow "$OUT/$1" "$OUT/bf16/$1" && slices "$OUT/bf16" models; }
  ) 8>"$OUT/lock-models"
  results
}

for name in $NAMES; do
  {
    train "$name" && keep "$name" && say "$name is done"
    keep
  } >"$OUT/logs/$name.log" 2>&1 &
done
wait
keep
tail -qn 1 "$OUT"/logs/*.log
finish
