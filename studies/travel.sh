#!/usr/bin/env bash
# A lent machine takes only so many MiB with a call. This makes the tree small enough, and whole again.
#   bash studies/travel.sh size [CARRIED...]   what travels in MiB: what git tracks or does not ignore, and carried paths
#   bash studies/travel.sh light PATH...       tracked files beneath these paths are empty; git neither shows nor commits that
#   bash studies/travel.sh whole               every such file is as it was
#   bash studies/travel.sh home NAME FOLDER RUN...   what came back in FOLDER goes to runs/NAME, RUNs of studies.yaml into docs, and into a commit
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in
size)
  { git ls-files -z --cached --others --exclude-standard; [ $# = 1 ] || find "${@:2}" -type f -print0; } |
    xargs -0 stat -c %s | awk '{ sum += $1 } END { printf "%.1f MiB travel\n", sum / 2^20 }'
  ;;
light)
  [ $# -gt 1 ] || { echo "light PATH...: which files are to be empty?" >&2; exit 2; } # no path would be all of them
  git diff --quiet HEAD -- "${@:2}" || { echo "commit what was changed beneath ${*:2} first: it would be lost" >&2; exit 2; }
  git ls-files -z -- "${@:2}" | xargs -0 git update-index --skip-worktree
  git ls-files -z -- "${@:2}" | xargs -0 truncate -s 0
  ;;
whole)
  git ls-files -v | sed -n 's/^S //p' | while read -r path; do
    git update-index --no-skip-worktree "$path"
    git checkout -q -- "$path"
  done
  ;;
home)
  bash studies/travel.sh whole
  name=$2 kept=runs/$2/kept
  mkdir -p "$kept" && cp -r --no-preserve=mode "$3"/. "$kept"
  if [ -e "$kept/results.tgz" ]; then tar -xzf "$kept/results.tgz" -C "runs/$name"; else cp "$kept"/*.json "runs/$name"; fi
  for run in "${@:4}"; do "${PYTHON:-python3}" -m tools.results slim "$run" || echo "$run left nothing" >&2; done
  "${PYTHON:-python3}" -m tools.results page >/dev/null || echo "the pages wait: fill them by python -m tools.results page" >&2
  "${PYTHON:-python3}" -m tools.results outcomes
  git add docs && git commit -qm "What came back of $name" && git log --oneline -1
  ;;
*) echo "size [CARRIED...], light PATH..., whole or home NAME FOLDER RUN..., not '${1:-}'" >&2; exit 2 ;;
esac
