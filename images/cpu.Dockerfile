# Every step that needs no GPU, and the deployed service on a CPU. ZenML adds the stack's requirements and the project on top.
#   docker build -f images/cpu.Dockerfile .
FROM python:3.11-slim-bookworm

# Where PyTorch's CPU wheels are: other indexes have CUDA builds, gigabytes that nothing here uses.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

# ZENML_CUSTOM_SOURCE_ROOT: where ZenML puts the project; without it files that a cached result depends on are not found.
ENV ZENML_CUSTOM_SOURCE_ROOT=/app \
    ZENML_ANALYTICS_OPT_IN=false \
    LITELLM_LOCAL_MODEL_COST_MAP=True \
    WANDB_ERROR_REPORTING=false \
    HOME=/home/agent
RUN useradd --uid 1000 --create-home agent
WORKDIR /app
COPY requirements.txt .
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" "$(grep '^torch==' requirements.txt)" \
    && pip install --no-cache-dir -r requirements.txt
# What ZenML adds for the stack (s3fs and others) must fit the lock. Only its kubernetes below 26 cannot: the configurations install the
# lock once more, last.
RUN sed '/^kubernetes=/d' requirements.txt > constraints.txt
ENV PIP_CONSTRAINT=/app/constraints.txt
