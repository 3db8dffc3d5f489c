# agentrl in containers: `agentrl` trains and rolls out, `gpu` has vLLM beside it. What was checked: docs/scale.md.
#
#   docker build -t agentrl .                                        # the GPU image; wheels bring CUDA, the host the driver
#   docker build -t agentrl-cpu --target agentrl --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu .
#
# Without Docker Hub: `agentrl sandbox build base` makes the image agentrl/base; --build-arg BASE=agentrl/base
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS agentrl
# A compiler for Triton's kernels, bubblewrap for sandboxes, git for whoever records what ran.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        bubblewrap ca-certificates g++ git procps python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/agentrl
ENV PATH=/opt/agentrl/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 RAY_USAGE_STATS_ENABLED=0
COPY constraints.txt /src/
ARG TORCH_INDEX=
RUN pip install -c /src/constraints.txt torch ${TORCH_INDEX:+--extra-index-url $TORCH_INDEX}
COPY . /src
RUN pip install -c /src/constraints.txt "/src[train,lora,search,docker,maths,ray]"
WORKDIR /work
CMD ["agentrl", "doctor"]

FROM agentrl AS gpu
RUN pip install -c /src/constraints.txt "/src[vllm]"
