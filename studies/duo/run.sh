#!/usr/bin/env bash
# Which shadow is better for few steps? Rounds of MCD on a masked model beside rounds of DCD on uniform ones, and what all
# of them are worth at equal forwards, in one report.
#   CORPUS=corpora/teacher HELD=corpora/judge MDLM=runs/mdlm DUO=runs/duo CURRICULUM=runs/duo-curriculum AR=runs/ar \
#       OUT=runs/shadows bash studies/duo/run.sh
# CORPUS is distilled on, HELD is scored on. CURRICULUM and AR may be left out; then DCD starts from DUO. Lanes go side by
# side on one GPU; one that fails stops no other, and the same call goes on where it stopped. KEEP gets results.tgz
# (tables, report, logs), features.tar (for features.py, where mauve-text is) and the last students in bf16.
# At toy size, in two minutes on a CPU: TOY=1 CORPUS=... (a model of 16 tokens a text will do)
set -uo pipefail
: "${CORPUS:?a folder of unmask prepare, with the tokenizer of the models}" "${HELD:?a folder with held-out text}"
: "${MDLM:?a masked model}" "${DUO:?a uniform model}" "${CURRICULUM:=}" "${AR:=}" "${OUT:=runs/shadows}" "${KEEP:=$OUT/kept}"
: "${ROUNDS:=5}" "${ROUND_STEPS:=200}" "${DELTA:=0.0078125}" "${JUDGE:=pocket-judge}" "${TEXTS:=512}" "${BLOCKS:=504}"
: "${COUNTS:=4 8 16 32 64}" "${HEATS:=1.0 0.85}" "${MAUVE:=504}" "${MAUVE_COUNTS:=8 32}" "${LIMIT:=200}" "${TOY:=}"
: "${FLAGS:=--batch 128 --lr 3e-4 --warmup 100 --ema 0.999 --precision bf16 --eval_every 200}"
MASKED="comb iid" UNIFORM="ancestral greedy_tail psi:share=0.05"
if [ -n "$TOY" ]; then
  ROUNDS=2 ROUND_STEPS=2 DELTA=0.125 TEXTS=6 BLOCKS=6 COUNTS="2 4" MAUVE=8 MAUVE_COUNTS=4 FLAGS="--batch 4 --warmup 1"
fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$OUT/logs" "$OUT/features" "$KEEP"
end=$(($(date +%s) + LIMIT))
left() { local s=$((end - $(date +%s))); echo $((s > 1 ? s : 1)); }
python() { timeout -k 20 "$(left)" "${PYTHON:-python3}" "$@"; }
say() { echo "$(date +%T) after $SECONDS s: $*"; }

distil() { # NAME TEACHER METHOD OPTIONS...
  # shellcheck disable=SC2086
  python -m unmask distill --teacher "$2" --method "$3" --data "$CORPUS" --rounds "$ROUNDS" --round_steps "$ROUND_STEPS" \
    --delta "$DELTA" $FLAGS --save_every 100000 --samples 64 --sample_steps 8 --no-progress --no-tensorboard \
    --out "$OUT/$1" "${@:4}"
}

worth() { # NAME FOLDER: bounds, cells, features
  # shellcheck disable=SC2086
  python -m unmask evaluate --only_bounds --data "$HELD" -n "$BLOCKS" --models "teacher=$2" --plans $MASKED $UNIFORM \
    --steps $COUNTS --cells "$OUT/cells" --out "$OUT/bounds-$1"
  # shellcheck disable=SC2086
  python -m unmask evaluate --models "teacher=$2" --plans $MASKED $UNIFORM --steps $COUNTS --control_steps $COUNTS \
    --temperatures $HEATS -n "$TEXTS" --data "$HELD" --judge "$JUDGE" --no-bracket --no-bounds --cells "$OUT/cells" \
    --out "$OUT/alone-$1"
  # shellcheck disable=SC2086
  python "$here/features.py" make "$1=$2" --data "$HELD" --judge "$JUDGE" --n "$MAUVE" --steps $MAUVE_COUNTS \
    --out "$OUT/features/features-$1.npz"
  say "$1 is scored"
}

one() { # NAME TEACHER METHOD OPTIONS...: a student from its rounds to what it is worth
  distil "$@" && worth "$1" "$OUT/$1/rounds/$ROUNDS"
}

declare -A model=([mdlm]=$MDLM [duo]=$DUO)
[ -z "$CURRICULUM" ] || model[curriculum]=$CURRICULUM
(one mcd "$MDLM" mcd) >"$OUT/logs/mcd.log" 2>&1 &
(one mcd-plain "$MDLM" mcd --tau 1 --tau_drop 0) >"$OUT/logs/mcd-plain.log" 2>&1 &
(one dcd "${CURRICULUM:-$DUO}" dcd) >"$OUT/logs/dcd.log" 2>&1 &
for name in "${!model[@]}"; do (worth "$name" "${model[$name]}") >"$OUT/logs/$name.log" 2>&1 & done
wait

all=("teacher=$MDLM" "duo=$DUO")
[ -z "$CURRICULUM" ] || all+=("curriculum=$CURRICULUM")
for name in mcd mcd-plain dcd; do [ ! -e "$OUT/$name/rounds/$ROUNDS" ] || all+=("$name=$OUT/$name/rounds/$ROUNDS"); done
[ -z "$AR" ] || all+=("ar=$AR")
end=$(($(date +%s) + 60)) # the cells are there by now
# shellcheck disable=SC2086
python -m unmask evaluate --models "${all[@]}" --plans $MASKED $UNIFORM --steps $COUNTS --control_steps $COUNTS \
  --temperatures $HEATS -n "$TEXTS" --data "$HELD" --judge "$JUDGE" --no-bracket --no-bounds --cells "$OUT/cells" \
  --out "$OUT/all" >"$OUT/logs/all.log" 2>&1
# shellcheck disable=SC2086
python -m unmask evaluate --only_bounds --data "$HELD" -n "$BLOCKS" --models "${all[@]}" --plans $MASKED $UNIFORM \
  --steps $COUNTS --cells "$OUT/cells" --out "$OUT/bounds" >>"$OUT/logs/all.log" 2>&1
for name in mcd dcd; do
  python -c 'import sys, torch; from unmask.checkpoint.io import load, save
save(load(sys.argv[1]), sys.argv[2], dtype=torch.bfloat16)' "$OUT/$name/rounds/$ROUNDS" "$OUT/bf16-$name" &&
    tar -cf "$KEEP/$name.tar" -C "$OUT" "bf16-$name"
done >>"$OUT/logs/all.log" 2>&1
python "$here/table.py" "$OUT" | tee "$OUT/table.md"
(cd "$OUT" && find . \( -name 'results.json' -o -name 'per-text.json.xz' -o -name 'report.*' -o -name 'rounds.json' -o -name 'metrics.jsonl' -o -name '*.log' \
  -o -name '*.md' \) -not -path './cells/*' -print0 | tar --null -czf .results -T -)
mv "$OUT/.results" "$KEEP/results.tgz"
tar -cf "$KEEP/features.tar" -C "$OUT/features" .
say "all is in $KEEP: $(du -k "$KEEP"/* | tr '\n\t' '; ')"
