#!/usr/bin/env bash
# Which shadow is right more often where every text can be checked? Sudoku grids of 4 x 4, the same model, text and steps
# trained as a masked and as a uniform model, drawn in few steps; no judge.
#   OUT=runs/shadows-tasks bash studies/duo/tasks.sh
# All ends within TIME seconds. A model that is not done after SHARE per cent of them ends where it is, with its averaged
# weights. A stage that fails stops no other and is named at the end. KEEP gets results.tgz (drawn-NAME, logs, table.md) anew
# after every stage. Stopped, the same call goes on. At toy size, in minutes on a CPU: TOY=1
set -uo pipefail
: "${OUT:=runs/shadows-tasks}" "${GRIDS:=200000}" "${STEPS:=1000}" "${TEXTS:=16384}" "${TIME:=480}" "${SHARE:=65}"
: "${COUNTS:=2 4 8 16}" "${FIRST:=4 16}" "${TOY:=}" "${FLAGS:=--hidden 128 --blocks 4 --heads 4 --batch 4096 --precision bf16 --compile}"
if [ -n "$TOY" ]; then
  GRIDS=500 STEPS=30 TEXTS=12 COUNTS="2 4" FIRST=4 FLAGS="--hidden 32 --blocks 1 --heads 2 --batch 16 --precision fp32"
fi
here=$(cd "$(dirname "$0")/.." && pwd)
. "$here/common.sh"
deadline $((TIME - 20)) # the last table takes the rest

train() { # NAME OPTIONS...
  # shellcheck disable=SC2086
  trained "$OUT/$1" $((TIME * SHARE / 100)) "$STEPS" 0 --data "$OUT/corpus" --length 17 --dropout 0 $FLAGS --optimiser muon \
    --muon_lr 0.02 --lr 1.5e-3 --beta2 0.95 --warmup 100 --decay linear --ema 0.99 --eval_every "$STEPS" --save_every 100000 \
    --log_every 100 --no-progress --no-tensorboard "${@:2}"
}

drawn() { # NAME PLANS COUNTS
  # shellcheck disable=SC2086
  unmask evaluate --models "$1=$OUT/$1" --plans $2 --steps $3 --temperatures 1 -n "$TEXTS" --no-bracket --no-bounds \
    --precision fp32 --check "$here/tasks/sudoku.py:check" --cells "$OUT/cells" --out "$OUT/drawn-$1"
}

keep() { # at once, so that nothing is lost if time runs out
  (
    flock 8
    table >"$OUT/.table" && mv "$OUT/.table" "$OUT/table.md"
  ) 8>"$OUT/lock-table"
  results
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
  python "$here/tasks/sudoku.py" 4 "$GRIDS" 1 >"$OUT/grids.txt" &&
    unmask prepare "$OUT/grids.txt" --vocab_size 257 --validation 0.01 --test 0 --no-progress --out "$OUT/corpus"
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
cat "$OUT/table.md"
finish
