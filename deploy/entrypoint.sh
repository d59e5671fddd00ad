#!/usr/bin/env -S --block-signal=TERM --block-signal=INT --block-signal=HUP bash
# What the container runs: flags or ORG/NAME are those of `pixelferry serve`, another word is a command of pixelferry's.
# The kernel drops a signal that PID 1 neither handles nor blocks. These three wait until pixelferry takes them.
set -eu

# A script of CANN's that sets variables, where this image has it. Such scripts read variables that are not set.
load() {
  [ -r "$1" ] || return 0
  set +eu
  . "$@"
  set -eu
}
ascend=${ASCEND_ROOT:-/usr/local/Ascend}
load "$ascend/ascend-toolkit/set_env.sh"
load "$ascend/nnal/atb/set_env.sh" --cxx_abi=1 # else it starts Python to ask torch for its ABI
# Where the driver says which cores are near the card.
[ ! -e /usr/local/dcmi/libdcmi.so ] || export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/dcmi"

[ "${1:-}" != pixelferry ] || shift
case "${1:---}" in
  -h | --help | --version) ;;
  --) set -- serve ;;
  -* | */*) set -- serve "$@" ;;
esac
# What this machine lacks, each in one line with its remedy. Whether that ends the start, the server itself decides.
if [ "${1:-}" = serve ]; then
  pixelferry doctor --faults "${@:2}" || true
fi
exec pixelferry "$@"
