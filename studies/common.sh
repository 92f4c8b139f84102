#!/usr/bin/env bash
# What the scripts of studies/ share: a deadline, one GPU for several processes, and files that come back in pieces.
#   OUT=runs/x KEEP=runs/x/kept; . studies/common.sh; deadline 580; shared
# Whatever is kept is written anew at once, so that a machine that goes away takes nothing but the stage it was in.
: "${OUT:?a folder to work in}" "${KEEP:=$OUT/kept}" "${SLICE:=15M}"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} TORCHINDUCTOR_COMPILE_THREADS=${TORCHINDUCTOR_COMPILE_THREADS:-4}
mkdir -p "$OUT/logs" "$KEEP"

say() { echo "$(date +%T) after $SECONDS s: $*"; }

deadline() { end=$(($(date +%s) + $1)); } # in so many seconds

left() { # seconds until so long before the deadline, at least one
  local s=$((end - ${1:-0} - $(date +%s)))
  echo $((s > 1 ? s : 1))
}

python() { # until the deadline, or LIMIT seconds where that is less; says what failed
  local most said="python $*" code
  most=$(left)
  [ -z "${LIMIT:-}" ] || [ "$LIMIT" -gt "$most" ] || most=$LIMIT
  [ "$(left)" -gt 1 ] || { say "ended with 124 (its 1 s were up): ${said:0:200}" >&2; return 124; } # time is up: nothing more begins
  # --foreground: else it would signal twice, which means leave at once
  timeout --foreground -k 10 "$most" "${PYTHON:-python3}" "$@"
  code=$?
  [ $code = 0 ] || say "ended with $code ($([ $code = 124 ] && echo "its $most s were up" || echo failed)): ${said:0:200}" >&2
  return $code
}

unmask() { python -m unmask "$@"; }

named_failures() { grep -sH "ended with" "${1:-$OUT/logs}"/*; } # every stage that did not end well

finish() {
  named_failures
  results
  say "all is in $KEEP: $(du -k "$KEEP"/* | tr '\n\t' '; ')"
}

shared() { # processes run on the GPU at the same time, not in turns, where NVIDIA's daemon for that is installed
  [ -z "${CUDA_MPS_PIPE_DIRECTORY:-}" ] && command -v nvidia-cuda-mps-control >/dev/null || return 0
  CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d)
  export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY=$CUDA_MPS_PIPE_DIRECTORY
  timeout 20 nvidia-cuda-mps-control -d && trap alone EXIT
}

alone() { # the end of that: what follows can be timed
  [ -n "${CUDA_MPS_PIPE_DIRECTORY:-}" ] || return 0
  echo quit | timeout 20 nvidia-cuda-mps-control
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}

trained() { # RUN SECONDS STEPS COOL OPTIONS...: where time is up before all STEPS are done, with COOL more steps from what is saved
  local stopped
  LIMIT=$2 unmask train "${@:5}" --out "$1" --steps "$3" && return
  stopped=$(find "$1/state" -name 'step-*' 2>/dev/null | sed 's/.*step-0*//' | sort -n | tail -n 1)
  [ -n "$stopped" ] || return
  say "${1##*/} was stopped after $stopped steps"
  unmask train "${@:5}" --out "$1" --steps "$((stopped + $4 < $3 ? stopped + $4 : $3))" # over COOL steps its rate falls to zero; over none it is written as it is
}

last_round() { # RUN: the student of the last whole round of a distillation
  find "$1/rounds" -mindepth 1 -maxdepth 1 -name '[0-9]*' 2>/dev/null | sort -V | tail -n 1 | grep . || { say "ended with no round of ${1##*/}" >&2; return 1; }
}

narrow() { # FROM TO: a checkpoint in bf16, also after the deadline
  timeout 60 "${PYTHON:-python3}" -c 'import sys, torch; from unmask.checkpoint.io import save, stored
save(stored(sys.argv[1]), sys.argv[2], dtype=torch.bfloat16)' "$1" "$2" || { say "ended with $?: narrow $1 $2" >&2; return 1; }
}

packed() { # a stream as .xz: weights in bf16 shrink by a quarter. By python, since a bare machine may have no xz
  "${PYTHON:-python3}" -c 'import lzma, shutil, sys
with lzma.open(sys.stdout.buffer, "w", preset=1) as file:
    shutil.copyfileobj(sys.stdin.buffer, file)'
}

slices() { # FOLDER NAME: the folder as $KEEP/NAME.00, NAME.01, ... of at most $SLICE each
  local work
  work=$(mktemp -d "$KEEP/.XXXXXX") || return
  tar -cf - -C "$1" . | packed | split -b "$SLICE" -d - "$work/$2." && rm -f "$KEEP/$2".[0-9][0-9] && mv "$work/$2".* "$KEEP"
  rm -rf "$work"
}

joined() { # FROM NAME TO: the folder again
  mkdir -p "$3" && cat "$1/$2".[0-9][0-9] | "${PYTHON:-python3}" -c 'import sys, tarfile
file = tarfile.open(fileobj=sys.stdin.buffer, mode="r|xz")
file.extraction_filter = getattr(tarfile, "data_filter", None) # Python 3.11.2 has none
file.extractall(sys.argv[1])' "$3"
}

results() { # all small files beneath OUT, logs too, as $KEEP/results.tgz
  (
    flock 9
    cd "$OUT" || return
    find . \( -name '*.json' -o -name '*.json.xz' -o -name '*.jsonl' -o -name '*.log' -o -name '*.md' -o -name '*.svg' \
      -o -name '*.npz' \) \
      -size -4096k -not -name tokenizer.json -not -path '*/cells/*' -not -path '*/state/*' -not -path '*/corpus*/*' \
      -not -path '*/kept/*' -print0 | tar --null -czf .results -T -
    cd - >/dev/null && mv "$OUT/.results" "$KEEP/results.tgz"
  ) 9>"$OUT/lock"
}
