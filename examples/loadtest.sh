#!/usr/bin/env bash
# A minute of mixed load and a report: examples/loadtest.sh [FLAG ...]. Flags are those of `pixelferry loadtest --help`.
set -euo pipefail

cd "$(dirname "$0")/.."
exec .venv/bin/python -m server loadtest --url "${BASE_URL:-http://127.0.0.1:8000}" \
  --mix text:50,image:30,demo:20 --image-sizes 640x480:60,1280x720:40 --rate 2 --seconds 60 --max-tokens 32 \
  --slo ttft=2s,e2el=10s --require 'errors<=1%' --html build/loadtest.html --json build/loadtest.json "$@"
