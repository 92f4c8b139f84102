#!/usr/bin/env bash
# The chain's registered predictions (docs/results.md), from training to the table; about 5 minutes of one H200.
#   CORPUS=corpora/judge OUT=runs/chain bash studies/chain/run.sh
# What does not wait for one another runs side by side. A stage that fails or takes too long stops no other; its words
# are in $OUT/logs. Stopped, the same call goes on. With KEEP=folder, what is worth keeping lies there after every stage.
# Without STEPS, a short rehearsal says how many steps fit into SECONDS. At toy size, in minutes on a CPU:
#   CORPUS=corpora/sample OUT=runs/toy STEPS=6 TEXTS=2 COUNTS="2 4" ONE=8 PLANS="comb golden" \
#       FLAGS="--batch 2 --warmup 2 --no-compile --precision fp32" bash studies/chain/run.sh
set -uo pipefail
: "${CORPUS:?a folder of unmask prepare, with the tokenizer of the model}" "${OUT:=runs/chain}" "${MODEL:=pocket}"
: "${STEPS:=}" "${SECONDS_MAIN:=100}" "${REHEARSED:=120}" "${TEXTS:=504}" "${ONE:=256}" "${FLAGS:=}" "${KEEP:=}"
: "${PLANS:=comb golden stride iid}" "${COUNTS:=2 4 8 16}" "${LIMIT:=240}"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
here=$(dirname "$0")
mkdir -p "$OUT/logs" ${KEEP:+"$KEEP"}

say() { echo "$(date +%T) $*"; }
stage() { # NAME COMMAND...: its words go to a file, its end is said
  local name=$1 began=$SECONDS
  shift
  if timeout "$LIMIT" "${PYTHON:-python}" -m unmask "$@" >"$OUT/logs/$name.log" 2>&1; then
    say "$name: $((SECONDS - began)) s"
  else
    say "$name FAILED after $((SECONDS - began)) s: $(tail -n 1 "$OUT/logs/$name.log")"
    return 1
  fi
}
# shellcheck disable=SC2086  # FLAGS, PLANS and COUNTS are lists of words
train() { # NAME OPTIONS...
  stage "$1" train --config "$here/chain.yaml" --from "$MODEL" --data "$CORPUS" --no-progress --out "$OUT/$1" $FLAGS "${@:2}"
}
bounds() { # NAME OPTIONS...
  stage "$1" evaluate --only_bounds --data "$CORPUS" -n "$TEXTS" --out "$OUT/$1" "${@:2}"
}
rate() { # steps a second at the end of a run
  "${PYTHON:-python}" - "$OUT/$1/metrics.jsonl" <<'PY'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
one, other = [line for line in lines if "seconds" in line][-2:]
print((other["step"] - one["step"]) / (other["seconds"] - one["seconds"]))
PY
}
keep() { # heads in bf16, and every small file: at once, so that nothing is lost if time runs out
  [ -n "$KEEP" ] || return 0
  local name
  for name in "$@"; do
    [ -f "$OUT/$name/checkpoint/model.safetensors" ] || continue
    "${PYTHON:-python}" "$here/narrow.py" "$OUT/$name/checkpoint" "$OUT/bf16/$name" && tar -cf "$KEEP/$name.tar" -C "$OUT/bf16" "$name"
  done
  (cd "$OUT" && find . \( -name '*.json' -o -name '*.jsonl' -o -name '*.log' -o -name '*.md' \) -not -path './*/cells/*' \
    -not -path './*/state/*' -print0 | tar --null -czf - -T -) >"$KEEP/results.tgz.new" && mv "$KEEP/results.tgz.new" "$KEEP/results.tgz"
}

# the body alone, and as many steps as it takes to know how fast training goes
# shellcheck disable=SC2086
{
  bounds one-token-a-step --models teacher="$MODEL" --plans permutation --steps "$ONE" &
  bounds teacher --models teacher="$MODEL" --plans $PLANS --steps $COUNTS &
  if [ -z "$STEPS" ]; then
    train rehearsal --steps "$REHEARSED" --log_every 20 &
    train rehearsal-blind --steps "$REHEARSED" --log_every 20 --set blind=true &
  fi
  wait
}
if [ -z "$STEPS" ]; then
  STEPS=$("${PYTHON:-python}" -c "print(max(200, min(8000, int($(rate rehearsal || echo 30) * $SECONDS_MAIN) // 100 * 100)))")
fi
say "$STEPS steps"
keep

train chain --steps "$STEPS" &
train blind --steps "$STEPS" --set blind=true & # the control: the same head, blind to the tokens of its step
wait
keep chain blind

# shellcheck disable=SC2086
{
  bounds chain-plans --models chain="$OUT/chain" --plans $PLANS --steps $COUNTS &
  bounds blind-plans --models blind="$OUT/blind" --plans $PLANS --steps $COUNTS &
  train large --steps "$STEPS" --hidden 384 --blocks 4 --heads 6 & # what size buys: 7.4M parameters
  for order in left_to_right plan confidence; do
    train "order-$order" --steps $((STEPS / 10)) --set order=$order &
  done
  wait
}
keep chain blind large
# shellcheck disable=SC2086
{
  bounds large-plans --models large="$OUT/large" --plans $PLANS --steps $COUNTS &
  bounds orders --plans comb golden iid --steps 2 4 --models left_to_right="$OUT/order-left_to_right" \
    plan="$OUT/order-plan" confidence="$OUT/order-confidence" &
  wait
}
"${PYTHON:-python}" "$here/table.py" "$OUT" | tee "$OUT/table.md"
keep
