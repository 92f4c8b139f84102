#!/usr/bin/env bash
# The causal rival of pocket: its shape, tokenizer and text, with a rate, dropout and number of passes of its own.
#   CLASSICS=classics-0.txt.xz PROSE=prose.txt.xz OUT=runs/rival bash studies/rival/run.sh
# First short runs choose the optimiser and its rate, without dropout, which shows only once text repeats. Then the best
# of them runs longer at each dropout. The best by validation (books of classics-0 that nobody trains on) is scored once on
# PROSE, the 18 validation books of classics-1: exactly, beside pocket's bound on the same blocks. Then texts are drawn
# and timed, one at a time and 64 at a time. The search has a fifth of TIME, the long runs 45%; what has not done its steps
# by then ends there, by its averaged weights. KEEP holds rival.tar (bf16) and results.tgz, written anew after every stage.
# Beside the 24M teacher, whose slices lie in BEGUN: BEGUN=kept SHAPE="--hidden 384 --blocks 10 --heads 6 --cond 64" LENGTH=1024
# BATCH=64 RATES="muon-0.02 adamw-2e-3" TEXTS=128 OUT=runs/rival-24m
# At toy size, a minute or two on a CPU: TOY=1 CLASSICS=sample PROSE=sample OUT=runs/toy bash studies/rival/run.sh
set -uo pipefail
: "${CLASSICS:?the text of corpora/teacher}" "${PROSE:?the held-out books}" "${OUT:=runs/rival}" "${KEEP:=$OUT/kept}" "${TIME:=570}"
: "${SEARCH:=600}" "${STEPS:=6000}" "${DROPOUTS:=0 0.1}" "${TEXTS:=504}" "${TOY:=}"
: "${DRAWN:=1024}" "${BATCHES:=1 64}" "${JUDGE:=}" # such as JUDGE="--judge pocket-judge"
: "${BEGUN:=}" "${SHAPE:=--preset pocket}" "${LENGTH:=256}" "${BATCH:=256}"
: "${RATES:=adamw-1e-3 adamw-2e-3 adamw-4e-3 muon-0.01 muon-0.02 muon-0.04}"
. "$(dirname "$0")/../common.sh"
deadline "$TIME"
size="--batch $BATCH --warmup 100 --precision bf16 --compile --eval_batches 8"
if [ -n "$TOY" ]; then
  SHAPE="--preset tiny" size="--batch 4 --warmup 2 --no-compile --eval_batches 1" SEARCH=4 STEPS=8 TEXTS=8 DRAWN=2 BATCHES=1
  RATES="adamw-2e-3 muon-0.02"
fi

train() { # a rate, steps, a dropout, the folder
  local rate="--optimiser muon --muon_lr ${1#*-} --lr 1.5e-3"
  [ "${1%%-*}" = muon ] || rate="--optimiser adamw --lr ${1#*-}"
  # shellcheck disable=SC2086
  unmask train --data "$OUT/corpus" --objective ar $SHAPE --length "$LENGTH" $rate --steps "$2" --dropout "$3" --beta2 0.95 \
    --weight_decay 0.05 --decay linear --ema 0.99 --eval_every $(($2 / 4)) --save_every 100000 --log_every 100 $size \
    --no-progress --no-tensorboard --out "$4" >"$OUT/logs/$(basename "$4").log" 2>&1
}

best() { # search or long: the run with the lowest nats a token at its end; all of them into search.json
  LIMIT=60 python - "$OUT" "$1" <<'P'
import json, pathlib, sys
out, stage = pathlib.Path(sys.argv[1]), sys.argv[2]
ends = {}
for path in sorted(out.glob(f"{stage}-*/metrics.jsonl")):
    scores = [line["nll"] for line in map(json.loads, path.read_text().splitlines()) if "nll" in line]
    if scores and (path.parent / "checkpoint").exists():
        ends[path.parent.name] = scores[-1]
        print(path.parent.name, *(f"{score:.4f}" for score in scores), file=sys.stderr)
said = out / "search.json"
found = json.loads(said.read_text()) if said.exists() else {}
said.write_text(json.dumps(found | {stage: ends}) + "\n")
print(min(ends, key=ends.get))
P
}

score() { # FOLDER OPTIONS...: the masked model and the rival
  unmask evaluate --models teacher="$teacher" ar="$OUT/$rival/checkpoint" --data "$PROSE" --plans comb --steps 8 16 --out "$OUT/$1" "${@:2}" \
    >"$OUT/logs/$1.log" 2>&1
  results
}

teacher=pocket
[ -z "$BEGUN" ] || { teacher=$OUT/begun && joined "$BEGUN" teacher "$teacher"; }
shared
[ -e "$OUT/corpus/index.json" ] ||
  unmask prepare "$CLASSICS" --tokenizer pocket --test 0 --no-progress --out "$OUT/corpus" >"$OUT/logs/prepare.log" 2>&1
for rate in $RATES; do LIMIT=$((TIME / 5)) train "$rate" "$SEARCH" 0 "$OUT/search-$rate" & done
wait
chosen=$(best search 2>"$OUT/logs/search.log") || { results; cat "$OUT"/logs/*; exit 1; }
results
for dropout in $DROPOUTS; do LIMIT=$((TIME * 45 / 100)) train "${chosen#search-}" "$STEPS" "$dropout" "$OUT/long-${chosen#search-}-$dropout" & done
wait
rival=$(best long 2>"$OUT/logs/long.log") || { results; cat "$OUT"/logs/*; exit 1; }
say "chosen: $rival"
narrow "$OUT/$rival/checkpoint" "$OUT/bf16" && tar -cf "$KEEP/rival.tar" -C "$OUT" bf16
results
score bounds --only_bounds --n "$TEXTS"
alone
# shellcheck disable=SC2086
score drawn --n "$DRAWN" --no-bounds --temperatures 1.0 0.9 0.8 --timed $BATCHES $JUDGE
named_failures
results
tail -n 8 "$OUT/logs/search.log" "$OUT/logs/long.log"
