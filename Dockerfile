# For a CPU:  docker build -t pixelferry .
#             docker run --rm -p 127.0.0.1:8000:8000 --shm-size 2g pixelferry
# For NPUs:   docker build --build-arg CHIP=910b -t pixelferry:910b .   (Atlas A2; CHIP=a3 for an Atlas A3)
#             docs/npu.md has the line that runs it, with the devices and the driver.
# On aarch64 as on x86-64: both bases have both.
ARG CHIP=
# The other parts of the tag of an NPU's base. constraints/ascend.txt has the torch_npu that belongs to this CANN.
ARG CANN=9.1.0
ARG OS=ubuntu22.04
ARG PYTHON=3.12
ARG BASE=${CHIP:+quay.io/ascend/cann:${CANN}-${CHIP}-${OS}-py${PYTHON}}
FROM ${BASE:-python:3.11-slim}
ARG CHIP

# The CPU-only builds of torch; PyPI's own for x86-64 bring gigabytes of CUDA along.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# A file of constraints/; without a chip: cpu.
ARG CONSTRAINTS=${CHIP:+ascend}

ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# uid 1000: what owns the device nodes on Ascend hosts, and has an entry in /etc/passwd, which collective libraries ask for.
# Ubuntu 24.04 has one with this uid already.
RUN getent passwd 1000 || useradd --uid 1000 --create-home --shell /usr/sbin/nologin pixelferry

WORKDIR /app
COPY pyproject.toml ./
COPY constraints/cpu.txt constraints/ascend.txt ./constraints/
COPY deploy/requirements.py ./deploy/
RUN python deploy/requirements.py otel ${CHIP:+npu} > /tmp/requirements.txt \
    && pip install --extra-index-url "$TORCH_INDEX" --constraint "constraints/${CONSTRAINTS:-cpu}.txt" \
      --requirement /tmp/requirements.txt \
    && rm /tmp/requirements.txt

COPY LICENSE README.md setup.py ./
COPY docs ./docs
COPY examples ./examples
COPY deploy ./deploy
COPY configs ./configs
COPY shm ./shm
COPY tokenization ./tokenization
COPY model ./model
COPY server ./server
COPY pixelferry ./pixelferry
RUN pip install --no-deps --editable . && chmod -R a+rX /app

# --host beats this default. The health check finds the server by the file, whatever port, address or scheme it took.
ENV PIXELFERRY_HOST=0.0.0.0 PIXELFERRY_URL_FILE=/tmp/pixelferry.url
# Without a chip, what they would be anyhow. CANN's own logs would go below the home directory, which --read-only forbids.
ARG DEVICE=${CHIP:+npu}
ENV PIXELFERRY_DEVICE=${DEVICE:-auto} PIXELFERRY_PROFILE=${CHIP:+atlas} ASCEND_PROCESS_LOG_PATH=/tmp/ascend

# docker build --build-arg REVISION=$(git rev-parse HEAD); an argument changes no layer above it.
ARG VERSION=0.1.0
ARG REVISION=unknown
RUN echo "$REVISION" > configs/commit.txt
LABEL org.opencontainers.image.title="Pixelferry" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"

# By its number: Kubernetes sees that it is not root.
USER 1000
EXPOSE 8000

# Alive is not ready: while a checkpoint loads, this is healthy and /health/ready answers 503.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["/app/deploy/healthcheck.sh"]

# Flags alone are those of `pixelferry serve`; `docker run pixelferry models` runs another command.
# Nothing is fetched at start. Docker gives /dev/shm only 64 MiB: run with --shm-size larger than --shm-mib.
ENTRYPOINT ["/app/deploy/entrypoint.sh"]
