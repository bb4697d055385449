"""As much of curl as the pages use: `-s`, `-i`, `-X METHOD`, `-H HEADER`, `-d DATA` and a URL.

It is not on every machine, and the tests must run on those as well.
"""

from __future__ import annotations

import argparse
import urllib.error
import urllib.request
from http.client import HTTPResponse
from typing import cast


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser("curl")
    parser.add_argument("url")
    parser.add_argument("-s", action="store_true")
    parser.add_argument("-i", action="store_true")
    parser.add_argument("-X", dest="method")
    parser.add_argument("-H", dest="headers", action="append", default=[])
    parser.add_argument("-d", dest="data", action="append", default=[])
    return parser.parse_args()


def main() -> None:
    """Print the answer, whatever its status."""
    arguments = parsed()
    url = arguments.url if "://" in arguments.url else f"http://{arguments.url}"
    data = "&".join(arguments.data).encode() if arguments.data else None
    headers = dict(header.split(": ", 1) for header in arguments.headers)
    request = urllib.request.Request(url, data, headers, method=arguments.method)
    try:
        answer = cast("HTTPResponse", urllib.request.urlopen(request, timeout=60))
    except urllib.error.HTTPError as refusal:
        answer = cast("HTTPResponse", refusal)
    if arguments.i:
        print(f"HTTP/1.1 {answer.status} {answer.reason}\n{answer.headers}", end="")
    print(answer.read().decode())


if __name__ == "__main__":
    main()
