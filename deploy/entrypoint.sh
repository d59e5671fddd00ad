#!/bin/sh
# What the container runs: flags alone are those of `pixelferry serve`, a word is a command of pixelferry's.
set -eu
[ "${1:-}" != pixelferry ] || shift
case "${1:---}" in
  -h | --help | --version) ;;
  --) set -- serve ;;
  -*) set -- serve "$@" ;;
esac
exec pixelferry "$@"
