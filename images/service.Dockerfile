# The answering service on a CPU: `docker build -f images/service.Dockerfile -t email-search-agent .` (docs/container.md)
# It answers, reads mail and exports. It does not train: what only training needs (images/service.without.txt) is left out.
FROM python:3.11-slim-bookworm

# Where PyTorch's CPU wheels are: other indexes have CUDA builds, gigabytes that nothing here uses.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

RUN useradd --uid 1000 --home-dir /data --create-home agent
WORKDIR /build
COPY requirements.txt images/service.without.txt ./
# The lock is complete, so that nothing is resolved. Bytecode would be half as large again; it is kept in the volume.
RUN awk -F'[= ;]' 'NR == FNR {left[$1] = 1; next} /^[a-z]/ && !($1 in left)' service.without.txt requirements.txt > serve.txt \
    && pip install --no-cache-dir --no-compile --extra-index-url "$TORCH_INDEX" "$(grep '^torch==' requirements.txt)" --no-deps \
    && pip install --no-cache-dir --no-compile --no-deps -r serve.txt \
    && rm -rf /usr/local/lib/python3.11/site-packages/torch/include
COPY . project
RUN pip install --no-cache-dir --no-compile --no-deps ./project && rm -rf /build

ENV HOME=/data \
    PYTHONPYCACHEPREFIX=/data/.cache/bytecode \
    ZENML_ANALYTICS_OPT_IN=false \
    LITELLM_LOCAL_MODEL_COST_MAP=True
USER agent
WORKDIR /data
VOLUME /data
EXPOSE 8080
# The first start converts the base model, minutes on a slow machine.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/health', timeout=4)"]
ENTRYPOINT ["email-search-agent"]
CMD ["--pipeline", "deploy", "--checkpoint", "/model", "--config", "/usr/local/lib/python3.11/site-packages/configs/service_image.yaml"]
