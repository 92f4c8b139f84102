#!/usr/bin/env bash
# All that is open at pocket's size, in one lease of thirty minutes: times alone on the card, then heads, both shadows and
# records side by side, then the time of a head, alone again.
#   CLASSICS0=classics-0.txt.xz CLASSICS1=classics-1.txt.xz OUT=runs/session bash studies/session.sh
# ALONE= leaves the first times out. CLASSICS0 may come later: it is waited for. `session.sh fetch FOLDER [WEIGHTS...]` gives at any time
# what is to come back: session.tar.00, ... (all that is small) and the slices of WEIGHTS (heads, models, students). A stage that fails stops no
# other and is named at the end of OUT/log.
# At toy size, on a CPU: TOY=1 CLASSICS0=... CLASSICS1=... OUT=runs/toy TIME=600 bash studies/session.sh
set -uo pipefail
: "${OUT:=runs/session}" "${TIME:=1600}" "${QUIET:=500}" "${LAST:=230}" "${ALONE=1}" "${TOY:=}" "${KEEP:=$OUT/kept}"
here=$(cd "$(dirname "$0")" && pwd)

fetch() { # FOLDER WEIGHTS...: everything small as one archive in slices, then slices of weights
  mkdir -p "$1"
  (cd "$OUT" && find bench logs tasks-found ./*/kept/results.tgz -type f -print0 2>/dev/null | tar --null -cf - -T -) |
    split -b 15M -d - "$1/session.tar."
  for name in "${@:2}"; do find "$OUT" -path "*/kept/$name.[0-9][0-9]" -exec cp {} "$1" \;; done
}

[ "${1:-}" != fetch ] || { fetch "${@:2}"; exit; }
: "${CLASSICS0:?a text}" "${CLASSICS1:?a text}"
. "$here/common.sh"
deadline "$TIME"
mkdir -p "$OUT/bench"
began=$(date +%s)

size="--preset small" rows="--batch 32" llada="--seconds 240" counted=""
heads=() duo=() shadows=() found=() cost=()
if [ -n "$TOY" ]; then
  size="--preset tiny" rows="--batch 2" llada="--size tiny --seconds 30" counted="--batches 1 --rivals 1"
  heads=(STEPS=6 SHORT=2 TEXTS=2 "COUNTS=2 4" ONE=8 "PLANS=comb golden" "FLAGS=--batch 2 --warmup 2 --no-compile" "JOINT=--batch 2 --warmup 2")
  duo=(STEPS=6 "SHAPE=--preset tiny --length 64" "FLAGS=--batch 4 --warmup 2")
  shadows=(TOY=1) found=(TOY=1) cost=("BATCHES=1 2")
fi

aside() { # on a quarter of the cores, while others are timed
  command -v taskset >/dev/null && [ "$(nproc)" -ge 8 ] && taskset -pc $(($(nproc) * 3 / 4))-$(($(nproc) - 1)) "$BASHPID" >/dev/null
  renice -n 10 "$BASHPID" >/dev/null
  "$@"
}

prepared() { # TEXT NAME OPTIONS...
  until [ -e "$1" ]; do [ "$(left)" -gt 1 ] || return; sleep 1; done
  [ -e "$OUT/corpora/$2/index.json" ] || unmask prepare "$1" --tokenizer pocket --no-progress --out "$OUT/corpora/$2" "${@:3}"
  say "corpora/$2 is there"
}

timed() { # NAME OPTIONS...: a bench that prints JSON
  env -u OMP_NUM_THREADS -u TORCHINDUCTOR_COMPILE_THREADS timeout --foreground -k 10 "$(left $((TIME - QUIET)))" "${PYTHON:-python3}" -m unmask bench "${@:2}" \
    >"$OUT/bench/.$1" 2>"$OUT/logs/$1.log" && mv "$OUT/bench/.$1" "$OUT/bench/$1.json" || say "ended with $?: $1"
  say "$1 is timed"
}

aside prepared "$CLASSICS1" judge >"$OUT/logs/judge.log" 2>&1 &
judge=$!
aside prepared "$CLASSICS0" teacher --test 0 >"$OUT/logs/teacher.log" 2>&1 &
# shellcheck disable=SC2086
[ -z "$ALONE" ] || {
  env -u OMP_NUM_THREADS timeout --foreground -k 10 "$(left $((TIME - 300)))" "${PYTHON:-python3}" -m unmask bench llada $llada --out "$OUT/bench/llada.json" >"$OUT/logs/llada.log" 2>&1
  say "llada is timed ($?)"
  timed duo-sampler sampler --process uniform $size --json
  timed duo duo $size $rows --json
  timed chain-small chain $size $counted --json
}
wait "$judge"
say "alone no longer"
shared
S=$(left "$LAST") # seconds for all that is shared

env "${heads[@]}" CORPUS="$OUT/corpora/judge" OUT="$OUT/chain" KEEP="$OUT/chain/kept" TIME=$((S * 80 / 100)) TRAIN=$((S * 40 / 100)) COST= \
  bash "$here/chain/run.sh" >"$OUT/logs/chain.log" 2>&1 &
env "${found[@]}" TASKS=records WORK="$OUT/tasks" OUT="$OUT/tasks-found" KEEP="$OUT/tasks-found" TIME=$((S * 85 / 100)) \
  bash "$here/tasks/run.sh" >"$OUT/logs/tasks.log" 2>&1 &
{
  until [ -e "$OUT/corpora/teacher/index.json" ]; do [ "$(left "$LAST")" -gt 1 ] || exit; sleep 1; done
  env STEPS=1000 "${duo[@]}" CORPUS="$OUT/corpora/teacher" OUT="$OUT/duo" KEEP="$OUT/duo/kept" TRAIN=$((S * 45 / 100)) TIME=$((S * 52 / 100)) \
    bash "$here/duo/train.sh" >"$OUT/logs/duo.log" 2>&1
  env "${found[@]}" OUT="$OUT/shadows-tasks-large" KEEP="$OUT/shadows-tasks-large/kept" TIME="$(left "$LAST")" SHARE=50 \
    bash "$here/duo/tasks.sh" >"$OUT/logs/shadows-tasks.log" 2>&1 &
  M=$OUT/duo/bf16
  env "${shadows[@]}" CORPUS="$OUT/corpora/teacher" HELD="$OUT/corpora/judge" MDLM="$M/mdlm" DUO="$M/duo" CURRICULUM="$M/curriculum" AR="$M/ar" \
    OUT="$OUT/shadows" KEEP="$OUT/shadows/kept" TIME="$(left "$LAST")" bash "$here/duo/run.sh" >"$OUT/logs/shadows.log" 2>&1
  wait
} &
wait
alone
say "alone again"
env -u OMP_NUM_THREADS "${heads[@]}" "${cost[@]}" HEADS= ORDERS= BEYOND= CORPUS="$OUT/corpora/judge" OUT="$OUT/chain" KEEP="$OUT/chain/kept" TIME="$(left 5)" \
  RIVAL="$OUT/shadows/bounds-ar" bash "$here/chain/run.sh" >"$OUT/logs/cost.log" 2>&1
named_failures
say "all is done after $(($(date +%s) - began)) s"
