#!/bin/sh
# Makes /testbed in the form of SWE-bench's images: a repository with its history, and an editable install.
set -eu
cd "$(dirname "$0")"
python3 history.py make /testbed
python3 -m pip install -q --break-system-packages --no-cache-dir --no-deps --no-build-isolation --no-index -e /testbed
