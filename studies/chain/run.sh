#!/usr/bin/env bash
# The chain's registered predictions (docs/results.md), from training to the table. Stopped, the same call goes on.
#   CORPUS=corpora/judge OUT=runs/chain bash studies/chain/run.sh
# At toy size, in minutes on a CPU:
#   CORPUS=corpora/sample MODEL=runs/tiny LENGTH=64 STEPS=20 TEXTS=8 FLAGS="--batch 4 --warmup 2 --no-compile --precision fp32" \
#       bash studies/chain/run.sh
set -euo pipefail
: "${CORPUS:?a folder of unmask prepare, with the tokenizer of the model}" "${OUT:=runs/chain}" "${MODEL:=pocket}"
: "${STEPS:=4000}" "${TEXTS:=504}" "${LENGTH:=256}" "${FLAGS:=}"
unmask() { "${PYTHON:-python}" -m unmask "$@"; }
here=$(dirname "$0")

train() { # FLAGS is a list of words
  # shellcheck disable=SC2086
  unmask train --config "$here/chain.yaml" --from "$MODEL" --data "$CORPUS" $FLAGS "$@"
}
bounds() { unmask evaluate --only_bounds --data "$CORPUS" -n "$TEXTS" "$@"; }

train --steps "$STEPS" --out "$OUT/chain"
train --steps "$STEPS" --out "$OUT/blind" --set blind=true # the control: the same head, blind to the tokens of its step
for order in left_to_right plan confidence; do
  train --steps $((STEPS / 10)) --out "$OUT/order-$order" --set order=$order
done
bounds --out "$OUT/one-token-a-step" --models teacher="$MODEL" --plans permutation --steps "$LENGTH"
bounds --out "$OUT/plans" --models teacher="$MODEL" chain="$OUT/chain" blind="$OUT/blind" \
  --plans comb golden stride iid --steps 2 4 8 16
bounds --out "$OUT/orders" --plans comb golden iid --steps 2 4 --models left_to_right="$OUT/order-left_to_right" \
  plan="$OUT/order-plan" confidence="$OUT/order-confidence"
unmask bench chain --model "$OUT/chain" --json >"$OUT/bench.json"
"${PYTHON:-python}" "$here/table.py" "$OUT" | tee "$OUT/table.md"
