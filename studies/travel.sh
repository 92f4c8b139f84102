#!/usr/bin/env bash
# A lent machine takes only so many MiB with a call. This makes the tree small enough, and whole again.
#   bash studies/travel.sh size [CARRIED...]   what travels in MiB: what git tracks or does not ignore, and carried paths
#   bash studies/travel.sh light PATH...       tracked files beneath these paths are empty; git neither shows nor commits that
#   bash studies/travel.sh whole               every such file is as it was
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in
size)
  { git ls-files -z --cached --others --exclude-standard; [ $# = 1 ] || find "${@:2}" -type f -print0; } |
    xargs -0 stat -c %s | awk '{ sum += $1 } END { printf "%.1f MiB travel\n", sum / 2^20 }'
  ;;
light)
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
*) echo "size [CARRIED...], light PATH... or whole, not '${1:-}'" >&2; exit 2 ;;
esac
