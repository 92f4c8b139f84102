#!/usr/bin/env bash
# Trains heads beside pocket, side by side on one GPU, measures what each is worth and what it costs, and prints the
# predictions' outcomes.
#   CORPUS=corpora/judge OUT=runs/chain bash studies/chain/run.sh
# A head that has not done its STEPS after TRAIN seconds is cooled down in COOL more. BEGUN is a folder of heads to go on
# from, by name. A stage that fails stops no other and is named at the end. KEEP holds these, written anew after every
# head: heads.00, .01, ... (bf16), results.tgz (all else, logs too). All ends after TIME seconds. Stopped, the same call goes on.
# COST= leaves the times out, where other work goes on beside it; HEADS= ORDERS= BEYOND= does nothing else, later.
# At toy size, on a CPU:
#   CORPUS=corpora/sample OUT=runs/toy STEPS=6 SHORT=2 TEXTS=2 COUNTS="2 4" ONE=8 PLANS="comb golden" BATCHES="1 2" \
#       FLAGS="--batch 2 --warmup 2 --no-compile" JOINT="--batch 2 --warmup 2" bash studies/chain/run.sh
set -uo pipefail
: "${CORPUS:?a folder of unmask prepare, with the tokenizer of the model}" "${OUT:=runs/chain}" "${KEEP:=$OUT/kept}" "${MODEL:=pocket}"
: "${STEPS:=6000}" "${SHORT:=500}" "${TRAIN:=200}" "${COOL:=200}" "${LIMIT:=120}" "${TEXTS:=504}" "${ONE:=256}" "${FLAGS:=}"
: "${PLANS:=comb golden stride iid}" "${COUNTS:=2 4 8 16}" "${HEADS=small-muon blind-muon small-adamw large-muon}"
: "${TIME:=590}" "${COST=1}" "${ORDERS=left_to_right plan confidence}" "${BEYOND=joint distil}" "${JOINT:=}" "${BEGUN:=}" "${BATCHES:=1 64}" "${RIVAL:=}"
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../common.sh"
deadline "$TIME"

options() { # of a head, by its name
  case $1 in *adamw) ;; *) echo "--optimiser muon --muon_lr 0.01 --beta2 0.95" ;; esac
  case $1 in distil*) echo "--set teacher_steps=4" ;; esac
  if [ -d "$BEGUN/$1" ]; then
    echo "--from $BEGUN/$1 --lr 1.5e-3"
    case $1 in *adamw) ;; *) echo "--muon_lr 0.0075" ;; esac
  else
    echo "--from $MODEL"
    case $1 in large*) echo "--hidden 384 --blocks 4 --heads 6" ;; blind*) echo "--set blind=true" ;; esac
  fi
}

train() { # NAME STEPS OPTIONS...
  # shellcheck disable=SC2046,SC2086
  trained "$OUT/$1" "$TRAIN" "$2" "$COOL" --config "$here/chain.yaml" --data "$CORPUS" --no-progress $(options "$1") $FLAGS "${@:3}"
}

bounds() { # NAME MODEL OPTIONS...
  unmask evaluate --only_bounds --data "$CORPUS" -n "$TEXTS" --models "${1/#one-token/teacher}=$2" --out "$OUT/$1-bounds" "${@:3}"
}

keep() { # at once, so that nothing is lost if time runs out
  (
    flock 8
    mkdir -p "$OUT/bf16"
    slices "$OUT/bf16" heads
  ) 8>"$OUT/lock-heads"
  results
}

joint() { # heads with none and two of the model's last blocks, in lockstep
  # shellcheck disable=SC2086
  LIMIT=$((TRAIN + LIMIT)) python "$here/joint.py" --model "$MODEL" --data "$CORPUS" --steps "$SHORT" --seconds "$TRAIN" --out "$OUT" $JOINT
  for name in joint-2 joint-0; do bounds $name "$OUT/$name" --plans comb golden iid --steps 2 4 && say "$name is done"; done
  keep
}

one() { # NAME STEPS PLANS COUNTS OPTIONS...: a head from its training to what it is worth
  local name=$1
  # shellcheck disable=SC2086
  { [ -d "$OUT/bf16/$name" ] || { train "$name" "$2" "${@:5}" && narrow "$OUT/$name/checkpoint" "$OUT/bf16/$name" && keep; }; } &&
    bounds "$name" "$OUT/bf16/$name" --plans $3 --steps $4 && say "$name is done"
  keep
}

short() { one "$1" "$SHORT" "comb golden iid" "2 4" "${@:2}"; }

cost() { # of a step with the best head, alone on the machine; and the figure of both
  local head
  [ -n "$COST" ] || return 0
  head=$(find "$OUT/bf16" -maxdepth 1 -name '*-muon' ! -name 'blind*' 2>/dev/null | sort | tail -n 1) # small before large
  [ -n "$head" ] || return
  # shellcheck disable=SC2086
  unmask bench chain --model "$head" --steps $COUNTS --batches $BATCHES --rivals $BATCHES --data "$CORPUS" --texts "$TEXTS" \
    --json >"$OUT/.bench" && mv "$OUT/.bench" "$OUT/bench.json" &&
    python "$here/figure.py" "$OUT" --bench "$OUT/bench.json" --head "${head##*/}" ${RIVAL:+--rival "$RIVAL"}
}

for name in $HEADS; do one "$name" "$STEPS" "$PLANS" "$COUNTS" >"$OUT/logs/$name.log" 2>&1 & done
for order in $ORDERS; do short "order-$order" --set order="$order"; done >"$OUT/logs/orders.log" 2>&1 &
for name in $BEYOND; do
  case $name in joint) joint ;; *) short "$name" ;; esac >"$OUT/logs/$name.log" 2>&1 &
done
{
  # shellcheck disable=SC2086
  bounds teacher "$MODEL" --plans $PLANS --steps $COUNTS
  bounds one-token "$MODEL" --plans permutation --steps "$ONE"
} >"$OUT/logs/teacher.log" 2>&1 &
wait
{ python "$here/table.py" "$OUT" && LIMIT=$((2 * LIMIT)) cost; } 2>"$OUT/logs/end.log" | tee "$OUT/table.md"
keep
finish
