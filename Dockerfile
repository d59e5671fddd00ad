# The CPU image. Build: docker build -t pixelferry .   Run: docker run --rm -p 127.0.0.1:8000:8000 --shm-size 2g pixelferry
FROM python:3.11-slim

# The CPU-only builds of torch; PyPI's own for x86-64 bring gigabytes of CUDA along.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# uid 1000: what owns the device nodes on Ascend hosts, and has an entry in /etc/passwd, which collective libraries ask for.
RUN useradd --uid 1000 --create-home --shell /usr/sbin/nologin pixelferry

WORKDIR /app
COPY pyproject.toml ./
COPY constraints ./constraints
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
      > /tmp/requirements.txt \
    && pip install --extra-index-url "$TORCH_INDEX" --constraint constraints/cpu.txt --requirement /tmp/requirements.txt \
    && rm /tmp/requirements.txt

COPY LICENSE README.md ./
COPY configs ./configs
COPY shm ./shm
COPY tokenization ./tokenization
COPY model ./model
COPY server ./server
RUN pip install --no-deps --editable . && chmod -R a+rX /app

USER pixelferry
EXPOSE 8000

# Alive is not ready: while a checkpoint loads, this is healthy and /health/ready answers 503.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health/live', timeout=4)"]

# Nothing is fetched at start. Docker gives /dev/shm only 64 MiB: run with --shm-size larger than --shm-mib.
ENTRYPOINT ["pixelferry", "serve", "--host", "0.0.0.0"]
