#!/usr/bin/env bash
# Whether the server is alive whose URL stands in PIXELFERRY_URL_FILE: whatever port, address and scheme it took.
# Needs bash, and openssl where the server speaks TLS: to start Python would cost more than the question.
set -euo pipefail
read -r url <"${PIXELFERRY_URL_FILE:?names the file that pixelferry serve --url-file writes}"
address=${url#*://}
port=${address##*:} host=${address%:*}
host=${host#[} host=${host%]}
request=$'GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n'

case $url in
  http://*)
    exec 3<>"/dev/tcp/$host/$port"
    printf '%s' "$request" >&3
    ;;
  https://*) # Whose certificate it is does not matter here: this asks the server beside it.
    exec 3< <(printf '%s' "$request" | openssl s_client -quiet -connect "$address" 2>/dev/null)
    ;;
esac
read -r -t 4 status <&3
[[ $status == "HTTP/1.1 200 "* ]]
