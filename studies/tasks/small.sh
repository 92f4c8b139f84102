#!/usr/bin/env bash
# 4 x 4 Sudoku on a CPU, one thread: the shape of run.sh, its chain and blind control, and what they write, one after the other.
#   OUT=runs/tasks-cpu bash studies/tasks/small.sh        about two hours of one core; stopped, the same call goes on
#   STEPS=40 CHAINED=10 TEXTS=8 HEADLINE=12 OUT=runs/toy bash studies/tasks/small.sh      at toy size
set -euo pipefail
: "${OUT:=runs/tasks-cpu}" "${GRIDS:=200000}" "${STEPS:=10000}" "${CHAINED:=2000}" "${TEXTS:=4096}" "${HEADLINE:=16384}"
: "${UNMASK:=unmask}" "${PYTHON:=python3}"
export OMP_NUM_THREADS=1
here=$(cd "$(dirname "$0")" && pwd)
run="$OUT/sudoku4-s0"
mkdir -p "$run"

train() { # NAME OPTIONS...
  $UNMASK train --data "$OUT/corpus" --batch 128 --precision fp32 --optimiser muon --beta2 0.95 --warmup 100 --decay linear \
    --save_every 500 --log_every 100 --no-progress --no-tensorboard --out "$run/$1" "${@:2}"
}

chain() { # NAME OPTIONS...: a head beside the model
  train "$1" --objective chain --from "$run/model" --plan comb --plan_steps 2 4 8 --lr 2e-3 \
    --muon_lr 0.01 --weight_decay 0.01 --ema 0.998 --eval_every 0 "${@:2}"
}

draw() { # MODEL NAME TEXTS STEPS PLANS...
  $UNMASK evaluate --models teacher="$run/$1" --out "$run/draw-$2" --cells "$run/cells" -n "$3" --steps $4 --control_steps $4 \
    --temperatures 1 --no-bracket --no-bounds --check "$here/sudoku.py:check" --batch 1024 --precision fp32 --plans "${@:5}"
  $PYTHON "$here/collect.py" sudoku4 0 "$run" "$OUT/sudoku4-s0.json"
}

[ -e "$OUT/corpus/index.json" ] || {
  $PYTHON "$here/sudoku.py" 4 "$GRIDS" 1 >"$OUT/grids.txt"
  $UNMASK prepare "$OUT/grids.txt" --vocab_size 257 --validation 0.01 --test 0 --no-progress --out "$OUT/corpus"
}
train model --steps "$STEPS" --length 17 --hidden 128 --blocks 4 --heads 4 --dropout 0 --exact_counts --muon_lr 0.02 \
  --lr 1.5e-3 --ema 0.998 --eval_every "$STEPS"
draw model one "$HEADLINE" 17 permutation
draw model few "$HEADLINE" "2 4 8" comb
chain chain --steps "$CHAINED"
draw chain chained "$HEADLINE" "2 4 8" comb
chain blind --steps $((CHAINED / 4)) --set blind=true
draw blind blind "$TEXTS" "2 4 8" comb
chain placed --steps "$CHAINED" --set places=true
draw placed placed "$HEADLINE" "2 4 8" comb
$PYTHON "$here/lost.py" "$OUT/lost.json" model="$run/model" chain="$run/chain" placed="$run/placed"
draw model rest "$TEXTS" "2 4 8" permutation iid rotation golden stride confidence left_to_right
draw chain chained-rest "$TEXTS" "2 4 8" permutation rotation confidence golden
draw model ones "$HEADLINE" 17 comb confidence
