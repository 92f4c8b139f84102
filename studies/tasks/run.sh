#!/usr/bin/env bash
# The tasks that need no judge: data, a model, a chain beside it, students of it, texts on every plan, and what is right.
#   OUT=runs/tasks-found bash studies/tasks/run.sh
#   TASKS=records SEEDS="0 1 2" SCALE=150 TIME=600 OUT=... bash studies/tasks/run.sh
# Every task and seed goes its own way beside the others; after TIME seconds what is done counts. A model that has not done
# its steps after 45% of TIME ends there, by its averaged weights; a chain and its blind control have a quarter of TIME each, each
# of STUDENTS a fifth. $OUT gets TASK-sSEED.json (for `python -m tools.results slim`) and logs.tar.gz. Seed FIRST meets every plan, the others the headline's.
# At toy size, in minutes on a CPU: TOY=1 TASKS=sudoku4 OUT=runs/toy bash studies/tasks/run.sh
set -uo pipefail
: "${OUT:=runs/tasks-found}" "${WORK:=runs/tasks}" "${TASKS:=records sudoku9 sudoku4 equations}" "${SEEDS:=0}"
: "${SCALE:=100}" "${TIME:=480}" "${TEXTS:=2048}" "${HEADLINE:=16384}" "${PARTS:=4}" "${FIRST:=0}" "${STUDENTS=mcd sdtt}" "${TOY:=}"
here=$(cd "$(dirname "$0")" && pwd)
KEEP=$OUT OUT=$WORK . "$here/../common.sh"
deadline "$TIME"
every_plan="comb permutation iid rotation golden stride confidence left_to_right"

settings() { # of a task: sizes, optimiser steps for the model and its chain, and numbers of steps to write in
  script=records kind="" some="$every_plan" ones="$every_plan" shape="--hidden 256 --blocks 7 --heads 8" exact="" focus=""
  one=$HEADLINE
  case $1 in
    records) length=128 made=240000 batch=256 steps=1800 chained=600 counts="4 8 16 32 64" eighth=16 one=$((HEADLINE / 2))
             focus="--plan comb --plan_steps 16" ;; # the chain learns what the headline asks of it
    equations) script=equations length=336 made=200000 batch=256 steps=2400 chained=600 counts="8 16 42" eighth=42
               ones=confidence HEADLINE=$TEXTS ;;
    sudoku9) script=sudoku kind=9 length=82 made=1500000 batch=768 steps=2600 chained=800 counts="4 8 10 16 32" eighth=10
             HEADLINE=$TEXTS ;;
    sudoku4) script=sudoku kind=4 length=17 made=1000000 batch=4096 steps=2000 chained=600 counts="2 4 8" eighth=2
             TEXTS=$HEADLINE shape="--hidden 128 --blocks 4 --heads 4" exact="--precision fp32" ;;
    *) echo "no task $1: records, sudoku9, sudoku4 or equations" >&2; return 1 ;;
  esac
  fast="--precision bf16 --compile" rows="" distilled=200
  if [ -n "$TOY" ]; then
    made=2000 batch=16 steps=40 chained=10 distilled=2 TEXTS=8 HEADLINE=12 one=6 shape="--hidden 64 --blocks 2 --heads 2"
    counts=${counts:0:3} fast="--precision fp32 --no-compile" rows="--batch 12"
  fi
  steps=$((steps * SCALE / 100)) chained=$((chained * SCALE / 100))
}

data() { # made by PARTS processes; $1 is the folder
  local part each=$((made / PARTS))
  for part in $(seq "$PARTS"); do
    # shellcheck disable=SC2086
    python "$here/$script.py" $kind "$each" "$part" >"$1-$part.txt" &
  done
  [ "$kind" != 9 ] || for part in $(seq "$PARTS"); do
    python "$here/sudoku.py" puzzles $((TEXTS / PARTS)) "$((100 + part))" >"$1-puzzles-$part" &
  done
  wait
  [ "$kind" != 9 ] || cat "$1"-puzzles-* >"$1-puzzles.txt"
  unmask prepare "$1"-[0-9]*.txt --vocab_size 257 --validation 0.01 --test 0 --no-progress --out "$1"
}

train() { # at most so many seconds, the folder, then the rest; ended early, it is what it is by then
  # shellcheck disable=SC2086
  LIMIT=$1 unmask train --data "$corpus" --no-progress --no-tensorboard --log_every 100 --save_every 100000 --seed "$seed" \
    --optimiser muon --beta2 0.95 --warmup 100 --decay linear --ema 0.99 $fast --out "$2" "${@:3}" ||
    [ -e "$2/checkpoint" ]
}

draw() { # the model, a name, texts, then the rest
  # shellcheck disable=SC2086
  unmask evaluate --models teacher="$1" --out "$run/draw-$2" --cells "$run/cells" -n "$3" --temperatures 1 --no-bracket \
    --no-bounds --check "$here/$script.py:check" $exact $rows "${@:4}"
}

collect() { # also after the end
  timeout 60 "${PYTHON:-python3}" "$here/collect.py" "$task" "$seed" "$run" "$OUT/$task-s$seed.json" || echo "ended with $?: what was drawn is not collected anew"
}

cells() { # the model, its name, numbers of steps: a process for every three plans
  local model=$1 name=$2 three
  local -a asked
  read -ra asked <<<"$some"
  for ((three = 0; three < ${#asked[@]}; three += 3)); do
    # shellcheck disable=SC2086
    draw "$model" "$name-$three" "$TEXTS" --plans "${asked[@]:three:3}" --steps $3 --control_steps $3 &
  done
  wait
}

plain() { # without the chain: the headline first
  draw "$run/model" one "$one" --plans permutation --steps "$length" --control_steps "$length" &
  draw "$run/model" eighth "$HEADLINE" --plans comb iid --steps "$eighth" --control_steps "$eighth" &
  wait
  collect
  cells "$run/model" plain "$counts"
  collect
  some=$ones cells "$run/model" all "$length"
  [ "$kind" != 9 ] || python "$here/control.py" "$run/model" "$corpus-puzzles.txt" "$run/control-plain.json" ${TOY:+4}
}

beside() { # NAME OPTIONS...: a chain beside the model
  # shellcheck disable=SC2086
  train "$((TIME / 4))" "$run/$1" --steps "$chained" --objective chain --from "$run/model" --batch "$batch" --lr 2e-3 \
    --muon_lr 0.01 --weight_decay 0.01 --eval_every 0 $focus "${@:2}"
}

chained() { # the chain, and what it writes
  beside chain || return
  [ "$TEXTS" = "$HEADLINE" ] || # in case that time ends before all are written
    draw "$run/chain" chained-some "$TEXTS" --plans comb --steps "$eighth" --control_steps "$eighth" &
  draw "$run/chain" chained-eighth "$HEADLINE" --plans comb --steps "$eighth" --control_steps "$eighth"
  wait
  collect
  cells "$run/chain" chained "$counts"
  [ "$kind" != 9 ] || python "$here/control.py" "$run/chain" "$corpus-puzzles.txt" "$run/control-chain.json" ${TOY:+4}
}

blind() { # the control: the same head, which sees no token of its step
  # shellcheck disable=SC2086
  beside blind --set blind=true && draw "$run/blind" blind "$TEXTS" --plans comb --steps $counts --control_steps $counts
}

student() { # a method: the model distilled, delta from 2/L, and what the student of the last whole round writes
  local last
  # shellcheck disable=SC2086
  LIMIT=$((TIME / 5)) unmask distill --teacher "$run/model" --data "$corpus" --method "$1" --tau 1 --tau_drop 0 --rounds 3 --round_steps "$distilled" \
    --delta "$(awk "BEGIN { print 2 / $length }")" --batch $((batch / 4)) --lr 3e-4 --warmup 20 --ema 0.99 --eval_every "$distilled" \
    --save_every 100000 --seed "$seed" $fast --no-progress --no-tensorboard --out "$run/$1"
  last=$(last_round "$run/$1") || return
  # shellcheck disable=SC2086
  draw "$last" "$1" "$TEXTS" --plans comb iid --steps $counts --control_steps $counts
}

pipeline() { # of one task and seed
  task=$1 seed=$2 run="$WORK/$1-s$2" corpus="$WORK/$1"
  settings "$task" || return
  [ "$seed" = "$FIRST" ] || { some="comb permutation iid"; STUDENTS="" ones="" counts=$eighth TEXTS=4096 HEADLINE=4096 one=4096; }
  mkdir -p "$run"
  [ -e "$corpus/index.json" ] || { echo "no corpus $corpus"; return 1; }
  # shellcheck disable=SC2086
  train "$(left $((TIME * 55 / 100)))" "$run/model" --steps "$steps" --length "$length" $shape --dropout 0 --exact_counts \
    --batch "$batch" --muon_lr 0.02 --lr 1.5e-3 --eval_every "$steps" || return
  plain &
  chained &
  [ "$seed" != "$FIRST" ] || blind &
  for method in $STUDENTS; do student "$method" & done
  wait
  collect
  echo "$task, seed $seed: done after $((TIME - $(left))) s"
}

for task in $TASKS; do
  (
    settings "$task" && { [ -e "$WORK/$task/index.json" ] || data "$WORK/$task"; } >"$WORK/logs/$task-data.txt" 2>&1
    for seed in $SEEDS; do pipeline "$task" "$seed" >"$WORK/logs/$task-s$seed.txt" 2>&1 & done
    wait
  ) &
done
wait
tar -czf "$OUT/logs.tar.gz" -C "$WORK" logs $(cd "$WORK" && ls -d ./*/*/metrics.jsonl 2>/dev/null)
named_failures "$WORK/logs"
tail -n 2 "$WORK"/logs/*-s*.txt
