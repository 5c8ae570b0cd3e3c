# Versions are bounded in pyproject.toml, and Debian's are those of the base image:
# hadolint global ignore=DL3008,DL3013
#
# Two images from one file, chosen with --target:
#
#   gpu   NVIDIA's Triton container with our Python packages
#   cpu   a plain Python image with the embedded server: slim, no GPU, no CUDA
#
#   docker build --target cpu -t hf-triton:cpu .
#   docker run --rm -p 8000:8000 -p 8001:8001 --shm-size 1g hf-triton:cpu
#   hf-triton generate
#   docker run --rm --gpus all -p 8000-8002:8000-8002 --shm-size 1g \
#       -v "$PWD/model_repository:/models" -e HF_TOKEN hf-triton:gpu \
#       tritonserver --model-repository=/models --disable-auto-complete-config
#
# Python-backend models pass tensors through /dev/shm, of which Docker gives 64 MB: hence --shm-size.
# Tokens come by environment (HF_TOKEN, PRIVATE_REPO_TOKEN) when a container runs, never into a layer;
# weights lie in the mounted model repository (<model>/hf_cache). The user is 1000:1000: what is mounted
# must be writable to it, or run with --user "$(id -u):$(id -g)".

ARG TRITON_VERSION=26.08
ARG TRITON_IMAGE=nvcr.io/nvidia/tritonserver:${TRITON_VERSION}-py3
# Any image with glibc 2.35 or newer, python3 3.10-3.12 with venv, and its libpython3.X.so.1.0.
ARG PYTHON_IMAGE=python:3.12-slim-bookworm


FROM ${TRITON_IMAGE} AS gpu
# A package index with another build of torch, looked at beside the usual one.
ARG TORCH_INDEX_URL=""
# For a model that no release knows yet, for example:
#   --build-arg TRANSFORMERS_SPEC=git+https://github.com/huggingface/transformers
ARG TRANSFORMERS_SPEC=""
USER 0:0
WORKDIR /workspace
# With its bin first on PATH, Triton's Python stub finds this environment as its own; the container's
# packages stay visible below it and are not touched.
ENV VIRTUAL_ENV=/opt/hf-triton \
    PATH=/opt/hf-triton/bin:${PATH} \
    PIP_NO_CACHE_DIR=1 \
    PYTHONUTF8=1 \
    HF_HOME=/var/cache/huggingface \
    HF_TRITON_PYTHON_ENVS=/var/cache/hf-triton/python_envs \
    HTTP_PORT=8000 \
    HEALTH_PORT=8003
RUN python3 -m venv --without-pip --system-site-packages /opt/hf-triton \
    && install --directory --mode=1777 /var/cache/huggingface /var/cache/hf-triton \
    && install --directory --owner=1000 --group=1000 /models
# Packages before sources: a change of ours rebuilds seconds, not gigabytes.
COPY pyproject.toml LICENSE ./
RUN python -m pip install ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} '.[runtime,lora,tracing]' \
    && if [ -n "$TRANSFORMERS_SPEC" ]; then python -m pip install --upgrade "$TRANSFORMERS_SPEC"; fi
COPY generator generator
COPY hf_triton hf_triton
COPY model_templates model_templates
RUN python -m pip install --no-deps --force-reinstall . \
    && rm -rf ./* \
    && chown 1000:1000 /workspace
# The lock too, where there is one: a pattern that matches nothing is no error.
COPY --chown=1000:1000 models.yaml models.loc[k] requirement*.tx[t] ./
COPY --chown=1000:1000 demo/model demo/model
USER 1000:1000
# Files that models.yaml names, such as hooks or local weights, must be copied before.
RUN hf-triton generate
# --build-arg PYTHON_ENVS=1 builds the environments that models ask for (python_env) into the image.
ARG PYTHON_ENVS=""
RUN if [ -n "$PYTHON_ENVS" ]; then hf-triton fetch --envs-only; fi
EXPOSE 8000 8001 8002 8003
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=10m --retries=3 \
    CMD ["python", "-I", "-m", "hf_triton.serving.healthcheck"]
CMD ["hf-triton", "serve", "--host", "0.0.0.0"]


FROM ${PYTHON_IMAGE} AS cpu-packages
# PyTorch's own index of CPU wheels, without which torch brings its CUDA packages along.
ARG TORCH_INDEX_URL=""
ARG TRANSFORMERS_SPEC=""
WORKDIR /build
ENV PATH=/opt/hf-triton/bin:${PATH} \
    PIP_NO_CACHE_DIR=1
RUN case "$TRANSFORMERS_SPEC" in \
        *git+*) apt-get update && apt-get install --yes --no-install-recommends git ;; \
    esac \
    && python3 -m venv /opt/hf-triton
COPY pyproject.toml LICENSE ./
RUN pin="$(sed -n 's/^ *"\(torch==[^";]*\)".*/\1/p' pyproject.toml)" \
    && python -m pip install "${pin}${TORCH_INDEX_URL:++cpu}" \
        ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} \
    && python -m pip install '.[serve,onnx,lora,tracing]' \
    && if [ -n "$TRANSFORMERS_SPEC" ]; then python -m pip install --upgrade "$TRANSFORMERS_SPEC"; fi
COPY generator generator
COPY hf_triton hf_triton
COPY model_templates model_templates
RUN python -m pip install --no-deps --force-reinstall .


FROM ${PYTHON_IMAGE} AS cpu
ENV VIRTUAL_ENV=/opt/hf-triton \
    PATH=/opt/hf-triton/bin:${PATH} \
    PYTHONUTF8=1 \
    HF_HOME=/var/cache/huggingface \
    HF_TRITON_PYTHON_ENVS=/var/cache/hf-triton/python_envs \
    HTTP_PORT=8000 \
    HEALTH_PORT=8003
COPY --from=cpu-packages /opt/hf-triton /opt/hf-triton
# `tritonserver` as NVIDIA's container has it; the arguments are the server's own.
RUN printf '#!/bin/sh\nexec /opt/hf-triton/bin/python -I -m hf_triton.tritonserver.binary "$@"\n' \
        >/usr/local/bin/tritonserver \
    && chmod 755 /usr/local/bin/tritonserver \
    && useradd --uid 1000 --user-group --create-home triton-server \
    && install --directory --mode=1777 /var/cache/huggingface /var/cache/hf-triton \
    && install --directory --owner=1000 --group=1000 /workspace /models
WORKDIR /workspace
COPY --chown=1000:1000 models.yaml models.loc[k] requirement*.tx[t] ./
COPY --chown=1000:1000 demo/model demo/model
USER 1000:1000
# Files that models.yaml names, such as hooks or local weights, must be copied before.
RUN hf-triton generate
# --build-arg PYTHON_ENVS=1 builds the environments that models ask for (python_env) into the image.
ARG PYTHON_ENVS=""
RUN if [ -n "$PYTHON_ENVS" ]; then hf-triton fetch --envs-only; fi
# The server runs here at all: its libraries and this Python's are found. (Its --help exits with 1.)
RUN case "$(tritonserver --help 2>&1)" in *--model-repository*) ;; *) tritonserver --help ;; esac
EXPOSE 8000 8001 8002 8003
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=10m --retries=3 \
    CMD ["python", "-I", "-m", "hf_triton.serving.healthcheck"]
CMD ["hf-triton", "serve", "--host", "0.0.0.0"]
