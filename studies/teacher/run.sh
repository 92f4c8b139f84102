#!/usr/bin/env bash
# Trains a teacher of 24M parameters for some minutes of a GPU, asks whether it passes the gate, and races plans on it.
#   CLASSICS=classics-0.txt.xz PROSE=prose.txt.xz OUT=runs/teacher bash studies/teacher/run.sh
# Training that has not done its STEPS after TRAIN seconds is cooled down in COOL more steps; all ends after TIME seconds.
# KEEP holds the weights in bf16 (teacher.00, .01, ... of 15 MiB) as soon as they are there, and results.tgz.
# A later call goes on from such a folder, with the moments anew and half the rate: BEGUN=kept SEED=1. TRAIN=0 only asks
# and races. At toy size, a minute or two on a CPU: TOY=1 CLASSICS=sample PROSE=sample OUT=runs/toy
set -uo pipefail
: "${CLASSICS:=}" "${PROSE:?held-out books}" "${OUT:=runs/teacher}" "${KEEP:=$OUT/kept}" "${BEGUN:=}" "${TOY:=}"
: "${TIME:=570}" "${TRAIN:=360}" "${STEPS:=$((TRAIN * 11))}" "${COOL:=250}" "${SEED:=0}" "${FLAGS:=}"
: "${VIEWS:=8}" "${RACE:=96}" "${PLANS:=comb rotation stride golden iid}" "${COUNTS:=2 4 8 16 32 64}" "${ONE:=1024}"
shape="--hidden 384 --blocks 10 --heads 6 --cond 64 --dropout 0 --length 1024"
if [ -n "$TOY" ]; then
  STEPS=$((TRAIN == 360 ? 6 : STEPS)) COOL=2 VIEWS=1 RACE=4 PLANS="comb iid" COUNTS="2 4" ONE=64
  shape="--hidden 32 --blocks 2 --heads 2 --cond 8 --dropout 0 --length 64"
  FLAGS="--batch 4 --warmup 2 --eval_batches 1 --precision fp32 --no-compile $FLAGS"
fi
[ "$TRAIN" = 0 ] || : "${CLASSICS:?the text to train on}"
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../common.sh"
deadline "$TIME"

prepare() { # pocket's tokenizer is the one that this text's first preparation made
  [ -e "$OUT/corpus/index.json" ] || unmask prepare "$CLASSICS" --tokenizer pocket --test 0 --no-progress --out "$OUT/corpus"
}

train() {
  [ -z "$BEGUN" ] || shape="--from $OUT/begun --warmup 50 --muon_lr 0.01 --lr 7.5e-4"
  # shellcheck disable=SC2086
  LIMIT=$((TRAIN / 3 + 30)) trained "$OUT/teacher" "$TRAIN" "$STEPS" "$COOL" --config "$here/teacher.yaml" $shape --data "$OUT/corpus" \
    --seed "$SEED" $FLAGS || [ -d "$OUT/teacher/checkpoint" ]
}

gate() { LIMIT= python "$here/gate.py" "$OUT/bf16" --prose "$PROSE" --views "$VIEWS" --out "$OUT/gate.json"; }

bounds() { # FOLDER PLAN COUNTS...: each plan by itself, so that one that is cut off takes no other with it
  unmask evaluate --only_bounds --data "$PROSE" -n "$RACE" --models "teacher=$OUT/bf16" --plans "$2" --steps "${@:3}" --out "$OUT/$1" \
    >"$OUT/logs/$1.log" 2>&1
  results
}

race() {
  local plan
  bounds one-token permutation "$ONE" &
  # shellcheck disable=SC2086
  for plan in $PLANS; do bounds "race-$plan" "$plan" $COUNTS & done
  wait
  LIMIT=20 python "$here/steps.py" "$OUT" >"$OUT/race.md"
  results
  bounds best-order comb "$ONE" # the other yardstick: one token a step in a good order
}

[ -z "$BEGUN" ] || joined "$BEGUN" teacher "$OUT/begun"
if [ "$TRAIN" = 0 ]; then
  ln -sfn begun "$OUT/bf16"
else
  { prepare && train && rm -rf "$OUT/bf16" && narrow "$OUT/teacher/checkpoint" "$OUT/bf16" && slices "$OUT/bf16" teacher; } >"$OUT/logs/train.log" 2>&1
  results
fi
shared
{ gate && results; } >"$OUT/gate.md" 2>"$OUT/logs/gate.log" &
race 2>"$OUT/logs/race.log"
wait
cat "$OUT/gate.md" "$OUT/race.md"
finish
