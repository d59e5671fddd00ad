#!/usr/bin/env bash
# One chat with a picture over the OpenAI route: examples/chat.sh [PICTURE] [QUESTION]. The picture travels in the body.
set -euo pipefail

picture=${1:-$(dirname "$0")/media/red-circle.png}
question=${2:-What is in this picture?}
base=${BASE_URL:-http://127.0.0.1:8000}

case "$picture" in
  *.png | *.PNG) type=image/png ;;
  *.webp | *.WEBP) type=image/webp ;;
  *.gif | *.GIF) type=image/gif ;;
  *.bmp | *.BMP) type=image/bmp ;;
  *) type=image/jpeg ;;
esac

# jq or python would do as well; the question is escaped by hand so that only curl and base64 are needed.
escaped=${question//\\/\\\\}
escaped=${escaped//\"/\\\"}
escaped=${escaped//$'\n'/\\n}

{
  printf '{"max_tokens": 64, "messages": [{"role": "user", "content": ['
  printf '{"type": "image_url", "image_url": {"url": "data:%s;base64,' "$type"
  base64 <"$picture" | tr -d '\n'
  printf '"}}, {"type": "text", "text": "%s"}]}]}' "$escaped"
} | curl --silent --show-error --fail-with-body "$base/v1/chat/completions" \
  --header 'Content-Type: application/json' --data-binary @- \
  | if command -v jq >/dev/null; then jq -r '.choices[0].message.content? // .'; else cat; fi # the words; else all of it
echo
