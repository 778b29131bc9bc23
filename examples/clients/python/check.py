"""Asks rls once whether a request may pass, as a web service does before its work.

Usage: check.py URL DOMAIN KEY=VALUE[,KEY=VALUE...] [SECONDS]
"""

import json
import math
import sys
import urllib.request


def check(url, domain, descriptor, timeout=0.1):
    """Returns whether the request may pass, and the seconds to wait if not (None: it can never pass)."""
    entries = [dict(zip(("key", "value"), part.split("=", 1))) for part in descriptor.split(",")]
    body = json.dumps({"domain": domain, "checks": [{"descriptor": entries}]}).encode()
    try:
        with urllib.request.urlopen(url + "/v1/check", body, timeout) as response:
            answer = json.load(response)["answers"][0]
        if answer["code"] == "ERROR":
            raise ValueError(answer["error"]["message"])
    except (OSError, ValueError) as error:
        print(f"rls does not decide, so the request passes: {error}", file=sys.stderr)
        return True, 0
    wait = None if answer.get("never") else math.ceil(answer.get("reset_seconds", 0))  # Retry-After has whole seconds
    return answer["code"] != "OVER_LIMIT", wait


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    may_pass, wait = check(*sys.argv[1:4], *map(float, sys.argv[4:]))
    print("200" if may_pass else f"429 Retry-After: {wait}")
