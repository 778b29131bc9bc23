"""Asks rls once whether a request may pass, as a web service does before its work.

Usage: check.py URL DOMAIN KEY=VALUE[,KEY=VALUE...] [SECONDS]
"""

import json
import math
import sys
import urllib.request


def check(url, domain, entries, timeout=0.1):
    """Returns whether the request may pass, and the seconds to wait if not (None: it can never pass).

    entries is a list of pairs, such as [("user", "Smith, Anna")]. Values may have any characters.
    """
    descriptor = [{"key": key, "value": value} for key, value in entries]
    body = json.dumps({"domain": domain, "checks": [{"descriptor": descriptor}]}).encode()
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
    entries = [part.split("=", 1) for part in sys.argv[3].split(",")]  # this command can't send values with a comma
    may_pass, wait = check(*sys.argv[1:3], entries, *map(float, sys.argv[4:]))
    print("200" if may_pass else f"429 Retry-After: {wait}")
