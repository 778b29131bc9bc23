#!/usr/bin/env bash
# Waits until all replicas have the limits of a folder or file, and fails after 3 minutes. So it also proves that the
# limits in force are those of Git. It needs jq, and a token with `access: read` in ADMIN_TOKEN.
#
# Usage: wait-for-limits.sh limits [--admin https://HOST:6070 --ca ca.crt]
#
# Use the version of rls that the replicas have. Overrides and other changes at run time change the hash, so the
# script stops with the code 2 while there are some. A replica reports its limits every 5 seconds.
set -euo pipefail
if rls limits show --changes --json "${@:2}" | jq -e '[.overrides, .rules, .switches, .shadow_mode | length] | add > 0' >/dev/null; then
  echo "changes at run time are in force, so the hash can differ from that of Git: see rls limits show --changes" >&2
  exit 2
fi
want=$(rls check --json "$1" | jq -er .limits)
for _ in {1..90}; do
  replicas=$(rls limits show --replicas --json "${@:2}") || replicas='{"replicas": []}'
  if jq -e --arg want "$want" '[.replicas[] | select(.state != "lost").limits] | unique == [$want]' <<<"$replicas" >/dev/null; then
    exit 0
  fi
  sleep 2
done
jq -r '.replicas[] | "\(.name) \(.limits) \(.problems) problems"' <<<"$replicas" >&2
echo "want $want on all replicas" >&2
exit 1
