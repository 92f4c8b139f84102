#!/usr/bin/env bash
# Which shadow is better for few steps? Rounds of MCD on a masked model beside rounds of DCD on uniform ones, and what all
# of them are worth at equal forwards.
#   CORPUS=corpora/teacher HELD=corpora/judge MDLM=runs/duo/mdlm DUO=runs/duo/duo CURRICULUM=runs/duo/curriculum AR=runs/duo/ar \
#       OUT=runs/shadows bash studies/duo/run.sh
# CORPUS is distilled on, HELD is scored on. CURRICULUM and AR may be left out; then DCD starts from DUO. Lanes go side by
# side on one GPU, and all ends within TIME seconds. Rounds that are not done after SHARE per cent of them end, and the
# student of the last whole round is scored. A stage that fails stops no other and is named at the end. KEEP gets, anew
# after every stage, results.tgz (all that tables are made of, logs, features.npz of every model for features.py, where
# mauve-text is) and the last students in bf16 (students.00, ...). Stopped, the same call goes on. With results.tgz
# unpacked in OUT, `shadows` in docs/results/studies.yaml says how the page is made.
# At toy size, in minutes on a CPU: TOY=1 CORPUS=... (a model of 16 tokens a text will do)
set -uo pipefail
: "${CORPUS:?a folder of unmask prepare, with the tokenizer of the models}" "${HELD:?a folder with held-out text}"
: "${MDLM:?a masked model}" "${DUO:?a uniform model}" "${CURRICULUM:=}" "${AR:=}" "${OUT:=runs/shadows}" "${TIME:=540}"
: "${ROUNDS:=5}" "${ROUND_STEPS:=200}" "${DELTA:=0.0078125}" "${JUDGE:=pocket-judge}" "${TEXTS:=512}" "${BLOCKS:=504}"
: "${COUNTS:=4 8 16 32 64}" "${FIRST:=4 8}" "${HEATS:=1.0 0.85}" "${MAUVE:=504}" "${MAUVE_COUNTS:=8 32}"
: "${SHARE:=45}" "${TOY:=}" "${FLAGS:=--batch 128 --lr 3e-4 --warmup 100 --ema 0.999 --precision bf16 --eval_every 200}"
MASKED="comb iid" UNIFORM="ancestral greedy_tail psi:share=0.05"
if [ -n "$TOY" ]; then
  ROUNDS=2 ROUND_STEPS=2 DELTA=0.125 TEXTS=6 BLOCKS=6 COUNTS="4 8" FIRST=4 MAUVE=8 MAUVE_COUNTS=4 FLAGS="--batch 4 --warmup 1"
fi
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../common.sh"
deadline $((TIME - 20)) # the last table and the last file take the rest
mkdir -p "$OUT/bf16"

keep() { # NAME: the student's weights too
  (
    flock 8
    [ -z "${1:-}" ] || { narrow "$1" "$OUT/bf16/$2" && slices "$OUT/bf16" students; }
    "${PYTHON:-python3}" "$here/table.py" "$OUT" >"$OUT/.table" && mv "$OUT/.table" "$OUT/table.md"
  ) 8>"$OUT/lock-kept"
  results
}

distil() { # NAME TEACHER METHOD OPTIONS...
  # shellcheck disable=SC2086
  LIMIT=$((TIME * SHARE / 100)) unmask distill --teacher "$2" --method "$3" --data "$CORPUS" --rounds "$ROUNDS" \
    --round_steps "$ROUND_STEPS" --delta "$DELTA" $FLAGS --save_every 100000 --samples 64 --sample_steps 8 --no-progress \
    --no-tensorboard --out "$OUT/$1" "${@:4}"
}

bounds() { # NAME COUNTS MODELS...
  # shellcheck disable=SC2086
  unmask evaluate --only_bounds --data "$HELD" -n "$BLOCKS" --models "${@:3}" --plans $MASKED $UNIFORM --steps $2 \
    --cells "$OUT/cells" --out "$OUT/bounds-$1"
  keep
}

written() { # NAME COUNTS MODELS...
  # shellcheck disable=SC2086
  unmask evaluate --models "${@:3}" --plans $MASKED $UNIFORM --steps $2 --temperatures $HEATS -n "$TEXTS" \
    --data "$HELD" --judge "$JUDGE" --no-bracket --no-bounds --cells "$OUT/cells" --out "$OUT/written-$1"
  keep
}

worth() { # NAME FOLDER: the steps that count first, then all; what the first call made is there in the second
  local counts
  for counts in "$FIRST" "$COUNTS"; do
    bounds "$1" "$counts" "teacher=$2"
    written "$1" "$counts" "teacher=$2"
  done
  # shellcheck disable=SC2086
  python "$here/features.py" make "$1=$2" --data "$HELD" --judge "$JUDGE" --n "$MAUVE" --steps $MAUVE_COUNTS \
    --out "$OUT/features-$1.npz"
  keep
  say "$1 is scored"
}

student() { # NAME TEACHER METHOD OPTIONS...: from its rounds to what the last whole one is worth
  local last
  distil "$@"
  last=$(last_round "$OUT/$1") || return
  say "$1 has the student of round ${last##*/} of $ROUNDS"
  keep "$last" "$1"
  worth "$1" "$last"
}

rival() { # a causal model needs a masked one beside it, whose cells are shared
  worth mdlm "$MDLM"
  [ -z "$AR" ] || { bounds ar "$FIRST" "teacher=$MDLM" "ar=$AR" && written ar "$FIRST" "teacher=$MDLM" "ar=$AR"; }
}

student mcd "$MDLM" mcd >"$OUT/logs/mcd.log" 2>&1 &
student mcd-plain "$MDLM" mcd --tau 1 --tau_drop 0 >"$OUT/logs/mcd-plain.log" 2>&1 &
student dcd "${CURRICULUM:-$DUO}" dcd >"$OUT/logs/dcd.log" 2>&1 &
rival >"$OUT/logs/mdlm.log" 2>&1 &
worth duo "$DUO" >"$OUT/logs/duo.log" 2>&1 &
[ -z "$CURRICULUM" ] || worth curriculum "$CURRICULUM" >"$OUT/logs/curriculum.log" 2>&1 &
wait
keep
cat "$OUT/table.md"
finish
