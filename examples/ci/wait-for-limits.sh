#!/usr/bin/env bash
# Waits until all replicas have the limits of a folder or file, and fails after 3 minutes. So it also proves that the
# limits in force are those of Git. It needs jq, and a token with `access: read` in ADMIN_TOKEN.
#
# Usage: wait-for-limits.sh limits [--admin https://HOST:6070 --ca ca.crt]
#
# Use the version of rls that the replicas have. The script compares base_limits, so overrides and other changes at run
# time don't matter. A replica reports its limits every 5 seconds.
set -euo pipefail
want=$(rls check --json "$1" | jq -er .limits)
for _ in {1..90}; do
  replicas=$(rls limits show --replicas --json "${@:2}") || replicas='{"replicas": []}'
  if jq -e --arg want "$want" '[.replicas[] | select(.state != "lost").base_limits] | unique == [$want]' <<<"$replicas" >/dev/null; then
    exit 0
  fi
  sleep 2
done
jq -r '.replicas[] | "\(.name) \(.base_limits) \(.problems) problems"' <<<"$replicas" >&2
echo "want $want on all replicas" >&2
exit 1
