# The CPU image. Build: docker build -t pixelferry .   Run: docker run --rm -p 127.0.0.1:8000:8000 --shm-size 2g pixelferry
FROM python:3.11-slim

# The CPU-only builds of torch; PyPI's own for x86-64 bring gigabytes of CUDA along.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# uid 1000: what owns the device nodes on Ascend hosts, and has an entry in /etc/passwd, which collective libraries ask for.
RUN useradd --uid 1000 --create-home --shell /usr/sbin/nologin pixelferry

WORKDIR /app
COPY pyproject.toml ./
COPY constraints/cpu.txt ./constraints/
RUN python -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
      print(*project['dependencies'], *project['optional-dependencies']['otel'], sep='\n')" \
      > /tmp/requirements.txt \
    && pip install --extra-index-url "$TORCH_INDEX" --constraint constraints/cpu.txt --requirement /tmp/requirements.txt \
    && rm /tmp/requirements.txt

COPY LICENSE README.md ./
COPY docs ./docs
COPY examples ./examples
COPY deploy ./deploy
COPY configs ./configs
COPY shm ./shm
COPY tokenization ./tokenization
COPY model ./model
COPY server ./server
RUN pip install --no-deps --editable . && chmod -R a+rX /app

# --host beats this default. The health check finds the server by the file, whatever port, address or scheme it took.
ENV PIXELFERRY_HOST=0.0.0.0 PIXELFERRY_URL_FILE=/tmp/pixelferry.url

# docker build --build-arg REVISION=$(git rev-parse HEAD); an argument changes no layer above it.
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Pixelferry" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"

USER pixelferry
EXPOSE 8000

# Alive is not ready: while a checkpoint loads, this is healthy and /health/ready answers 503.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["/app/deploy/healthcheck.sh"]

# Flags alone are those of `pixelferry serve`; `docker run pixelferry models` runs another command.
# Nothing is fetched at start. Docker gives /dev/shm only 64 MiB: run with --shm-size larger than --shm-mib.
ENTRYPOINT ["/app/deploy/entrypoint.sh"]
