#!/usr/bin/env bash
# The causal rival of pocket: its shape, tokenizer and text, with a rate, dropout and number of passes of its own.
#   CLASSICS=classics-0.txt.xz PROSE=prose.txt.xz OUT=runs/rival-found bash studies/rival/run.sh
# First short runs choose the optimiser and its rate, without dropout, which shows only once text repeats. Then the best
# of them runs longer at each dropout. The best by validation (books of classics-0 that nobody trains on) is scored once on
# PROSE, the 18 validation books of classics-1: exactly, beside pocket's bound on the same blocks. Then texts are drawn
# and timed, one at a time and 64 at a time.
# At toy size, a minute or two on a CPU: TOY=1 CLASSICS=sample PROSE=sample OUT=runs/toy bash studies/rival/run.sh
set -uo pipefail
: "${CLASSICS:?the text of corpora/teacher}" "${PROSE:?the held-out books}" "${OUT:=runs/rival-found}" "${WORK:=runs/rival}"
: "${SEARCH:=600}" "${STEPS:=6000}" "${DROPOUTS:=0 0.1}" "${MINUTES:=9}" "${TEXTS:=504}" "${TOY:=}"
: "${DRAWN:=1024}" "${BATCHES:=1 64}" "${JUDGE:=}" # such as JUDGE="--judge smollm2 --judge_dtype bf16"
KEEP=$OUT OUT=$WORK . "$(dirname "$0")/../common.sh"
deadline $((MINUTES * 60))
shape="--preset pocket" size="--batch 256 --warmup 100 --precision bf16 --compile --eval_batches 8" bench="--preset pocket"
rates="adamw-1e-3 adamw-2e-3 adamw-4e-3 muon-0.01 muon-0.02 muon-0.04"
if [ -n "$TOY" ]; then
  shape="--preset tiny --length 256" size="--batch 4 --warmup 2 --no-compile --eval_batches 1" SEARCH=4 STEPS=8 TEXTS=8 DRAWN=2 BATCHES=1
  rates="adamw-2e-3 muon-0.02" bench="--preset tiny --repeats 1"
fi

train() { # a rate, steps, a dropout, the folder
  local rate="--optimiser muon --muon_lr ${1#*-} --lr 1.5e-3"
  [ "${1%%-*}" = muon ] || rate="--optimiser adamw --lr ${1#*-}"
  # shellcheck disable=SC2086
  unmask train --data "$WORK/corpus" --objective ar $shape --length 256 $rate --steps "$2" --dropout "$3" --beta2 0.95 \
    --weight_decay 0.05 --decay linear --ema 0.99 --eval_every $(($2 / 4)) --save_every 100000 --log_every 100 $size \
    --no-progress --no-tensorboard --out "$4" >"$WORK/logs/$(basename "$4").txt" 2>&1
  cp "$4/metrics.jsonl" "$WORK/logs/$(basename "$4").jsonl"
}

best() { # of runs: the one with the lowest nats a token at its end
  python - "$@" <<'P'
import json, pathlib, sys
ends = {}
for run in sys.argv[1:]:
    path = pathlib.Path(run, "metrics.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    scores = [line["nll"] for line in lines if "nll" in line]
    if scores and pathlib.Path(run, "checkpoint").exists():
        ends[run] = scores[-1]
        print(run, *(f"{score:.4f}" for score in scores), file=sys.stderr)
print(min(ends, key=ends.get))
P
}

[ -e "$WORK/corpus/index.json" ] ||
  unmask prepare "$CLASSICS" --tokenizer pocket --test 0 --no-progress --out "$WORK/corpus" >"$WORK/logs/prepare.txt" 2>&1
for rate in $rates; do train "$rate" "$SEARCH" 0 "$WORK/search-$rate" & done
wait
chosen=$(best "$WORK"/search-*/ 2>"$OUT/search.txt") || { cat "$WORK"/logs/*; exit 1; }
chosen=$(basename "$chosen") chosen=${chosen#search-}
for dropout in $DROPOUTS; do train "$chosen" "$STEPS" "$dropout" "$WORK/long-$chosen-$dropout" & done
wait
rival=$(best "$WORK"/long-*/ 2>"$OUT/long.txt") || { cat "$WORK"/logs/*; exit 1; }
echo "chosen: $rival" | tee -a "$OUT/long.txt"
narrow "$rival/checkpoint" "$OUT/rival" # in halves it is small enough to come back
tar -cf "$OUT/rival.tar" -C "$OUT" rival && rm -r "$OUT/rival"
keep() { mkdir -p "$OUT/$1" && cp "$WORK/$1"/{results.json,per-text.json.xz,report.md} "$OUT/$1"; }
unmask evaluate --models teacher=pocket ar="$rival" --only_bounds --data "$PROSE" --n "$TEXTS" --plans comb --steps 8 16 \
  --out "$WORK/bounds" && keep bounds
# shellcheck disable=SC2086
unmask bench chain $bench --steps 4 8 16 --batches 1 64 --json >"$OUT/bench.json" 2>"$WORK/logs/bench.txt"
# shellcheck disable=SC2086
unmask evaluate --models teacher=pocket ar="$rival" --data "$PROSE" --n "$DRAWN" --plans comb --steps 8 16 --no-bounds \
  --temperatures 1.0 0.9 0.8 --timed $BATCHES $JUDGE --out "$WORK/drawn" && keep drawn
tar -czf "$OUT/logs.tar.gz" -C "$WORK" logs
named_failures "$WORK/logs"
tail -n 8 "$OUT/search.txt" "$OUT/long.txt"
