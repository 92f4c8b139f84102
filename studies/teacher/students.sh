#!/usr/bin/env bash
# What does distillation add to the 24M teacher? Students of 300 million tokens each, side by side on one GPU, and what they
# and the teacher are worth in few steps: N-step bounds, and texts to judges with temperature and top-p as the teacher's controls.
#   CLASSICS=classics-0.txt.xz PROSE=prose.txt.xz TEACHER=runs/teacher/bf16 STUDENTS="mcd-s0 sdtt-s0" OUT=runs/students bash studies/teacher/students.sh
# A student is METHOD-sSEED: mcd and sdtt at tau = 1, curriculum (mcd as the paper sharpens it), comb (mcd along the plan, its
# number of steps drawn from 4 to 64 a text), cd4lm, elbo. BEGUN is a folder of slices to take the teacher from, as run.sh leaves them.
# Distillation that is not done after SHARE per cent of TIME ends, and the student of the last whole round counts. KEEP holds
# the first student in bf16 (NAME.00, ...: 48 MB, and no more comes back from a lent machine), and results.tgz, written
# anew after every plan. Stopped, the same call goes on.
# CONTROL= leaves the teacher's temperatures and top-p out, where they were measured before.
# At toy size, minutes on a CPU: TOY=1 CLASSICS=sample PROSE=sample TEACHER=runs/toy/bf16 (of run.sh) OUT=runs/toy-students
set -uo pipefail
: "${CLASSICS:?the text to distil on}" "${PROSE:?held-out books}" "${BEGUN:=}" "${CONTROL=yes}"
: "${OUT:=runs/students}" "${TEACHER:=$OUT/begun}" "${STUDENTS:=mcd-s0 sdtt-s0}" "${TIME:=570}" "${SHARE:=60}" "${TOY:=}"
: "${ROUNDS:=5}" "${ROUND_STEPS:=916}" "${DELTA:=0.001953125}" "${SPAN:=4 64}" "${COUNTS:=4 8 16 32 64}" "${TEXTS:=256}" "${BLOCKS:=128}"
: "${JUDGES:=pocket-judge}" "${FLAGS:=--batch 64 --lr 3e-4 --warmup 100 --ema 0.999 --precision bf16 --compile --eval_every 458}"
if [ -n "$TOY" ]; then
  ROUNDS=2 ROUND_STEPS=2 DELTA=0.125 COUNTS="2 4" TEXTS=4 BLOCKS=4 SPAN="2 4" FLAGS="--batch 4 --warmup 1 --eval_batches 1"
fi
. "$(cd "$(dirname "$0")" && pwd)/../common.sh"
deadline "$TIME"
shared
PLANS="comb iid"

options() { # of a student, by its name
  case $1 in
  mcd-s*) echo "--method mcd --tau 1 --tau_drop 0" ;;
  sdtt-s*) echo "--method sdtt --rounds $ROUNDS" ;;
  curriculum-s*) echo "--method mcd" ;;
  comb-s*) echo "--method mcd --tau 1 --tau_drop 0 --plan comb --plan_steps $SPAN" ;;
  cd4lm-s*) echo "--method cd4lm" ;;
  elbo-s*) echo "--method elbo" ;;
  *) echo "no student $1: mcd, sdtt, curriculum, comb, cd4lm or elbo, then -s and a seed" >&2; return 1 ;;
  esac
}

worth() { # FOLDER MODELS -- OPTIONS...: bounds and texts, each plan by itself, so that one that is cut off takes no other with it
  local folder=$1 plan judge
  local -a models=()
  while shift && [ "$1" != -- ]; do models+=("$1"); done
  for plan in $PLANS; do
    # shellcheck disable=SC2086
    unmask evaluate --only_bounds --data "$PROSE" -n "$BLOCKS" --models "${models[@]}" --plans "$plan" --steps $COUNTS --cells "$OUT/cells" \
      --out "$OUT/bounds-$folder-$plan"
    results
    for judge in $JUDGES; do
      # shellcheck disable=SC2086
      unmask evaluate --models "${models[@]}" --plans "$plan" --steps $COUNTS --control_steps $COUNTS -n "$TEXTS" --data "$PROSE" \
        --judge "$judge" --no-bracket --no-bounds --cells "$OUT/cells" --out "$OUT/drawn-$folder-$plan-$(basename "$judge")" "${@:2}"
      results
    done
    say "$folder is scored on $plan"
  done
}

student() { # NAME
  local run="$OUT/$1" last how
  how=$(options "$1") || return
  # shellcheck disable=SC2086
  LIMIT=$((TIME * SHARE / 100)) unmask distill --teacher "$TEACHER" --data "$OUT/corpus" --rounds "$ROUNDS" --round_steps "$ROUND_STEPS" $how \
    $([ "${1%-s*}" = cd4lm ] || [ "${1%-s*}" = elbo ] || echo "--delta $DELTA") $FLAGS --seed "${1##*-s}" --save_every 100000 --samples 32 \
    --sample_steps 8 --no-progress --no-tensorboard --out "$run"
  last=$(last_round "$run") || return
  say "$1 has the student of round ${last##*/} of $ROUNDS"
  [ "$1" != "${STUDENTS%% *}" ] || { narrow "$last" "$OUT/bf16/$1" && slices "$OUT/bf16/$1" "$1"; }
  worth "$1" "teacher=$TEACHER" "$1=$last" -- --temperatures 1
}

[ -z "$BEGUN" ] || joined "$BEGUN" teacher "$OUT/begun"
for name in $STUDENTS; do options "$name" >/dev/null || exit 2; done
[ -e "$OUT/corpus/index.json" ] ||
  unmask prepare "$CLASSICS" --tokenizer "$TEACHER" --test 0 --no-progress --out "$OUT/corpus" >"$OUT/logs/prepare.log" 2>&1
for name in $STUDENTS; do student "$name" >"$OUT/logs/$name.log" 2>&1 & done
[ -z "$CONTROL" ] ||
  worth teacher "teacher=$TEACHER" -- --temperatures 1 0.9 0.8 --top_ps 0.95 0.9 >"$OUT/logs/teacher.log" 2>&1 &
wait
finish
