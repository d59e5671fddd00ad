#!/usr/bin/env bash
# Each modality over POST /chat, with curl alone. Start `make serve` in the same directory first: it serves the demo
# model and lets requests name files under examples/media. A file of your own travels as a data: URL (see chat.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

base=${BASE_URL:-http://127.0.0.1:8000}
media=examples/media

ask() { # TITLE PARTS: the parts are the `inputs` of one message, as JSON
  printf '%s\n  ' "$1"
  curl --silent --show-error --fail-with-body "$base/chat" \
    --header 'Content-Type: application/json' --data "{\"inputs\": [$2]}"
  echo
}

ask 'a picture' '{"image": "'$media'/red-circle.png"}, {"text": "What is in this picture?"}'
ask 'a clip' '{"video": "'$media'/moving-right.mp4"}, {"text": "Which way does it move?"}'
ask 'a sound' '{"audio": "'$media'/three-beeps.wav"}, {"text": "How many beeps do you hear?"}'
ask 'text alone' '{"text": "Who are you?"}'
ask 'all four in one message' '{"image": "'$media'/number.png"}, {"video": "'$media'/moving-right.mp4"},
  {"audio": "'$media'/rising.mp3"}, {"text": "Does the tone in the recording rise or fall?"}'
ask 'a box: pixels of the picture in "boxes"' '{"image": "'$media'/shapes.png"}, {"text": "Where is the green circle?"}'
ask 'a clip that is also heard' '{"video": "'$media'/moving-left-two-beeps.mp4", "use_audio_in_video": true},
  {"text": "Which way does it move?"}'
ask 'in Chinese' '{"image": "'$media'/red-circle.png"}, {"text": "图中是什么？"}'
