#!/usr/bin/env bash
# Which shadow is right more often where every text can be checked? Sudoku grids of 4 x 4, the same model, text and steps
# trained as a masked and as a uniform model, drawn in few steps; no judge.
#   OUT=runs/shadows-tasks bash studies/duo/tasks.sh
# All ends within LIMIT seconds. A model that is not done after SHARE per cent of them ends where it is, with its averaged
# weights. A stage that fails stops no other and is named at the end. KEEP gets tasks.tgz (drawn-NAME/results.json, logs) and
# the table, anew after every stage. Stopped, the same call goes on. At toy size, in minutes on a CPU: TOY=1
set -uo pipefail
: "${OUT:=runs/shadows-tasks}" "${KEEP:=$OUT/kept}" "${GRIDS:=200000}" "${STEPS:=1000}" "${TEXTS:=16384}" "${LIMIT:=480}" "${SHARE:=65}"
: "${COUNTS:=2 4 8 16}" "${FIRST:=4 16}" "${TOY:=}" "${FLAGS:=--hidden 128 --blocks 4 --heads 4 --batch 4096 --precision bf16 --compile}"
if [ -n "$TOY" ]; then
  GRIDS=500 STEPS=30 TEXTS=12 COUNTS="2 4" FIRST=4 FLAGS="--hidden 32 --blocks 1 --heads 2 --batch 16 --precision fp32"
fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} TORCHINDUCTOR_COMPILE_THREADS=${TORCHINDUCTOR_COMPILE_THREADS:-4}
tasks=$(cd "$(dirname "$0")/../tasks" && pwd)
mkdir -p "$OUT/logs" "$KEEP"
end=$((LIMIT - 20)) # what takes a while to leave has 10 seconds, the last table the rest
say() { echo "$(date +%T) after $SECONDS s: $*"; }

by() { # SECOND ARGUMENTS...: python, until then. --foreground: else it may signal twice, which means leave at once
  local left=$(($1 - SECONDS)) code=0 said="${*:2}"
  timeout --foreground -k 10 "$((left > 1 ? left : 1))" "${PYTHON:-python3}" "${@:2}" || code=$?
  [ $code = 0 ] || say "ended with $code ($([ $code = 124 ] && echo "its time was up" || echo failed)): ${said:0:160}" >&2
  return $code
}

train() { # NAME OPTIONS...
  local run="$OUT/$1" stopped
  local -a how
  # shellcheck disable=SC2206
  how=(-m unmask train --data "$OUT/corpus" --length 17 --dropout 0 $FLAGS --optimiser muon --muon_lr 0.02 --lr 1.5e-3
    --beta2 0.95 --warmup 100 --decay linear --ema 0.99 --eval_every "$STEPS" --save_every 100000 --log_every 100
    --no-progress --no-tensorboard --out "$run" "${@:2}")
  by $((end * SHARE / 100)) "${how[@]}" --steps "$STEPS" && return
  stopped=$(find "$run/state" -name 'step-*' 2>/dev/null | sed 's/.*step-0*//' | sort -n | tail -n 1)
  [ -n "$stopped" ] || return 1
  say "$1 was ended after $stopped steps: its rate has not come down to zero"
  by $end "${how[@]}" --steps "$stopped" # no further step: written as what it is
}

drawn() { # NAME PLANS COUNTS
  # shellcheck disable=SC2086
  by $end -m unmask evaluate --models "$1=$OUT/$1" --plans $2 --steps $3 --temperatures 1 -n "$TEXTS" --no-bracket --no-bounds \
    --precision fp32 --check "$tasks/sudoku.py:check" --cells "$OUT/cells" --out "$OUT/drawn-$1"
}

table() { # of all that is drawn by now
  "${PYTHON:-python3}" - "$OUT" <<'P'
import json, pathlib, sys
found = [cell for folder in pathlib.Path(sys.argv[1]).glob("drawn-*") if (folder / "results.json").is_file()
         for cell in json.loads((folder / "results.json").read_text())["cells"] if cell["steps"]]
print("| model | plan | steps | NFE | valid |\n| --- | --- | ---: | ---: | ---: |")
for cell in sorted(found, key=lambda cell: (cell["steps"], -cell["scores"]["check_valid"]["value"])):
    valid = cell["scores"]["check_valid"]["value"]
    print(f"| {cell['model']} | `{cell['plan']}` | {cell['steps']} | {cell['nfe']:.2f} | {valid:.4f} |")
P
}

keep() { # at once, so that nothing is lost if time runs out
  (
    flock 9
    table >"$KEEP/.table" && mv "$KEEP/.table" "$KEEP/table.md"
    (cd "$OUT" && find logs drawn-* ./*/metrics.jsonl -type f 2>/dev/null | tar -czf .tasks -T -)
    mv "$OUT/.tasks" "$KEEP/tasks.tgz"
  ) 9>"$OUT/lock"
}

one() { # NAME PLANS OPTIONS...
  local counts
  train "$1" "${@:3}" || return
  keep
  for counts in "$FIRST" "$COUNTS"; do # the cells of the first call are there in the second
    drawn "$1" "$2" "$counts" && say "$1 is drawn in $counts steps"
    keep
  done
}

[ -e "$OUT/corpus/index.json" ] || {
  by $end "$tasks/sudoku.py" 4 "$GRIDS" 1 >"$OUT/grids.txt" &&
    by $end -m unmask prepare "$OUT/grids.txt" --vocab_size 257 --validation 0.01 --test 0 --no-progress --out "$OUT/corpus"
} >"$OUT/logs/data.log" 2>&1
one masked "comb permutation iid" --exact_counts >"$OUT/logs/masked.log" 2>&1 &
for name in uniform curriculum; do
  kind="--process uniform"
  [ "$name" = uniform ] || kind="--objective duo"
  # shellcheck disable=SC2086
  one "$name" "ancestral greedy_tail psi:share=0.05" $kind >"$OUT/logs/$name.log" 2>&1 &
done
wait
keep
cat "$KEEP/table.md"
grep -H "ended with\|was ended after" "$OUT"/logs/*.log
say "all is in $KEEP: $(du -k "$KEEP"/* | tr '\n\t' '; ')"
