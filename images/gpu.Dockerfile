# Steps with a GPU. Torch and CUDA are those of requirements-gpu.txt, which are the ones that ART's backend pins; vLLM's environment
# is built from the lock file that ART ships. ZenML adds the stack's requirements and the project on top.
#   docker build -f images/gpu.Dockerfile .
# "devel", because Triton and FlashInfer compile kernels at run time.
FROM pytorch/pytorch:2.10.0-cuda12.8-cudnn9-devel

# PIP_BREAK_SYSTEM_PACKAGES: the image keeps torch in the system's Python.
# ZENML_CUSTOM_SOURCE_ROOT: where ZenML puts the project; without it files that a cached result depends on are not found.
ENV PIP_BREAK_SYSTEM_PACKAGES=1 \
    ZENML_CUSTOM_SOURCE_ROOT=/app \
    ZENML_ANALYTICS_OPT_IN=false \
    LITELLM_LOCAL_MODEL_COST_MAP=True \
    WANDB_ERROR_REPORTING=false \
    HOME=/home/agent
# The base has a user 1000 already in some versions.
RUN id 1000 >/dev/null 2>&1 || useradd --uid 1000 agent; mkdir -p /home/agent && chown 1000 /home/agent
WORKDIR /app
COPY requirements-gpu.txt .
RUN pip install --no-cache-dir -r requirements-gpu.txt
# What ZenML adds for the stack (s3fs and others) must fit the lock. Only its kubernetes below 26 cannot: the configurations install the
# lock once more, last.
RUN sed '/^kubernetes=/d' requirements-gpu.txt > constraints.txt
ENV PIP_CONSTRAINT=/app/constraints.txt
# Otherwise the first training step of every pod builds it.
USER 1000
RUN python -c "from art.vllm_runtime import ensure_vllm_runtime; ensure_vllm_runtime()"
USER root
