#!/usr/bin/env bash
# Does the chain's head only need more training? The small head by Muon and by AdamW and the large one by Muon, for longer.
#   CORPUS=corpora/judge OUT=runs/longer KEEP=$OUT STEPS=6000 bash studies/chain/longer.sh
# All side by side; the training is bound by the host, so that three heads take little longer than one.
set -uo pipefail
: "${CORPUS:?a folder of unmask prepare, with the tokenizer of the model}" "${OUT:=runs/longer}" "${KEEP:=$OUT}"
: "${STEPS:=6000}" "${TEXTS:=504}" "${FLAGS:=}" "${LIMIT:=500}" "${VARIANTS:=small-muon small-adamw large-muon}"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-3}
here=$(dirname "$0")
mkdir -p "$OUT/logs" "$KEEP"
unmask() { timeout "$LIMIT" "${PYTHON:-python}" -m unmask "$@"; }

one() { # NAME: a head and what it is worth
  local name=$1
  local -a how
  read -ra how <<<"$FLAGS"
  [[ $name != *muon ]] || how+=(--optimiser muon --muon_lr 0.01 --beta2 0.95)
  [[ $name != large* ]] || how+=(--hidden 384 --blocks 4 --heads 6)
  unmask train --config "$here/chain.yaml" --from pocket --data "$CORPUS" --no-progress --steps "$STEPS" --out "$OUT/$name" "${how[@]}" || return
  "${PYTHON:-python}" "$here/narrow.py" "$OUT/$name/checkpoint" "$OUT/bf16/$name" && tar -cf "$KEEP/$name.tar" -C "$OUT/bf16" "$name"
  unmask evaluate --only_bounds --data "$CORPUS" -n "$TEXTS" --plans comb golden stride iid --steps 2 4 8 16 \
    --models "$name=$OUT/bf16/$name" --out "$OUT/$name-bounds"
}
for name in $VARIANTS; do
  one "$name" >"$OUT/logs/$name.log" 2>&1 &
done
wait
(cd "$OUT" && find . \( -name results.json -o -name metrics.jsonl -o -name '*.log' \) -not -path '*/cells/*' -print0 | tar --null -czf - -T -) >"$KEEP/longer.tgz"
