#!/usr/bin/env bash
# Which shadow is right more often where every text can be checked? Sudoku grids of 4 x 4, the same model, text and steps
# trained as a masked and as a uniform model, drawn in few steps; no judge.
#   OUT=runs/shadows-tasks bash studies/duo/tasks.sh
# What comes of it: $KEEP/tasks.json and a table. At toy size, a minute or two on a CPU: TOY=1 bash studies/duo/tasks.sh
set -uo pipefail
: "${OUT:=runs/shadows-tasks}" "${KEEP:=$OUT/kept}" "${GRIDS:=1000000}" "${STEPS:=2000}" "${TEXTS:=16384}" "${LIMIT:=150}"
: "${COUNTS:=2 4 8 16}" "${TOY:=}" "${FLAGS:=--hidden 128 --blocks 4 --heads 4 --batch 4096 --precision bf16 --compile}"
if [ -n "$TOY" ]; then
  GRIDS=500 STEPS=30 TEXTS=12 COUNTS="2 4" LIMIT=300 FLAGS="--hidden 32 --blocks 1 --heads 2 --batch 16 --precision fp32"
fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
tasks=$(cd "$(dirname "$0")/../tasks" && pwd)
mkdir -p "$OUT/logs" "$KEEP"
end=$(($(date +%s) + LIMIT))
left() { local s=$((end - $(date +%s))); echo $((s > 1 ? s : 1)); }
python() { timeout -k 10 "$(left)" "${PYTHON:-python3}" "$@"; }

one() { # NAME PLANS OPTIONS...
  # shellcheck disable=SC2086
  python -m unmask train --data "$OUT/corpus" --length 17 --dropout 0 $FLAGS --steps "$STEPS" --optimiser muon --muon_lr 0.02 \
    --lr 1.5e-3 --beta2 0.95 --warmup 100 --decay linear --ema 0.99 --eval_every "$STEPS" --save_every 100000 \
    --log_every 100 --no-progress --no-tensorboard --out "$OUT/$1" "${@:3}" || return
  # shellcheck disable=SC2086
  python -m unmask evaluate --models "teacher=$OUT/$1" --plans $2 --steps $COUNTS --control_steps $COUNTS --temperatures 1 \
    -n "$TEXTS" --no-bracket --no-bounds --precision fp32 --check "$tasks/sudoku.py:check" --out "$OUT/drawn-$1"
}

[ -e "$OUT/corpus/index.json" ] || {
  python "$tasks/sudoku.py" 4 "$GRIDS" 1 >"$OUT/grids.txt"
  python -m unmask prepare "$OUT/grids.txt" --vocab_size 257 --validation 0.01 --test 0 --no-progress --out "$OUT/corpus"
} >"$OUT/logs/data.log" 2>&1
one masked "comb permutation iid" --exact_counts >"$OUT/logs/masked.log" 2>&1 &
for name in uniform curriculum; do
  kind="--process uniform"
  [ "$name" = uniform ] || kind="--objective duo"
  # shellcheck disable=SC2086
  one "$name" "ancestral greedy_tail psi:share=0.05" $kind >"$OUT/logs/$name.log" 2>&1 &
done
wait
"${PYTHON:-python3}" - "$OUT" "$KEEP/tasks.json" <<'P'
import json, pathlib, sys
found = []
for folder in sorted(pathlib.Path(sys.argv[1]).glob("drawn-*")):
    for cell in json.loads((folder / "results.json").read_text())["cells"]:
        if cell["steps"]:
            scores = {name: score["value"] for name, score in cell["scores"].items()}
            where = {key: cell[key] for key in ("plan", "steps", "nfe", "count", "seconds") if key in cell}
            found.append({"model": folder.name[6:], **where, "scores": scores})
pathlib.Path(sys.argv[2]).write_text(json.dumps(found) + "\n")
print("| model | plan | steps | NFE | valid |\n| --- | --- | ---: | ---: | ---: |")
for cell in sorted(found, key=lambda cell: (cell["steps"], -cell["scores"]["check_valid"])):
    print(f"| {cell['model']} | `{cell['plan']}` | {cell['steps']} | {cell['nfe']:.2f} | {cell['scores']['check_valid']:.4f} |")
P
tar -czf "$KEEP/tasks-logs.tgz" -C "$OUT" logs
