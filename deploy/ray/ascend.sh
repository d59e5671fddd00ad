# What ../entrypoint.sh loads of CANN's, for every bash of a pod (BASH_ENV): such a pod starts with `ray start`.
[ ! -r /usr/local/Ascend/ascend-toolkit/set_env.sh ] || . /usr/local/Ascend/ascend-toolkit/set_env.sh
[ ! -r /usr/local/Ascend/nnal/atb/set_env.sh ] || . /usr/local/Ascend/nnal/atb/set_env.sh --cxx_abi=1
[ ! -e /usr/local/dcmi/libdcmi.so ] || export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/dcmi"
