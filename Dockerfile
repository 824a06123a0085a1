# The images: docker build --target operator|trainer|trainer-cuda .
# To pin the images that the build starts from: --build-arg RUST=...@sha256:... --build-arg BASE=...@sha256:...
# Each image has a list of its components (CycloneDX) in /usr/local/share/sbom.
# The stages operator-binary, trainer-binary and cuda-libraries compile or download. The option `--build-context
# operator-binary=FOLDER` replaces such a stage by a folder with the same /out. images/build.sh uses the option, so that
# it needs no access to a registry.
ARG RUST=docker.io/library/rust:1.95-bookworm
# any image with the C and C++ runtimes and a CA bundle
ARG BASE=gcr.io/distroless/cc-debian12:nonroot

FROM ${RUST} AS source
WORKDIR /src
COPY . .

FROM source AS operator-binary
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --release --locked --package stagecoach-operator \
    && mkdir -p /out/bin /out/sbom && strip -o /out/bin/stagecoach-operator target/release/stagecoach-operator \
    && scripts/sbom.py stagecoach-operator /out/sbom/stagecoach-operator.cdx.json

# The wheels of libtorch are large and change rarely. This stage does not copy the sources, so a change of the sources
# keeps the wheels in Docker's cache.
FROM ${RUST} AS libtorch
RUN apt-get update && apt-get install --yes --no-install-recommends python3-pip && rm -rf /var/lib/apt/lists/*
COPY scripts/fetch.py scripts/libtorch.txt /scripts/
RUN python3 /scripts/fetch.py libtorch /libtorch
COPY images/libraries.sh images/cpu-libraries.txt /images/
RUN /images/libraries.sh gather /images/cpu-libraries.txt /out/lib /libtorch

FROM source AS trainer-binary
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    --mount=type=bind,from=libtorch,source=/libtorch,target=/src/.libtorch \
    cargo build --release --locked --package stagecoach \
    && mkdir -p /out/bin /out/sbom /out/sbom-cuda && strip -o /out/bin/stagecoach target/release/stagecoach \
    && strip -o /out/bin/stagecoach-entrypoint target/release/stagecoach-entrypoint \
    && scripts/sbom.py stagecoach /out/sbom/stagecoach.cdx.json scripts/libtorch.txt \
    && scripts/sbom.py stagecoach /out/sbom-cuda/stagecoach.cdx.json scripts/libtorch.txt images/cuda-wheels.txt
COPY --from=libtorch /out/lib /out/lib
RUN images/libraries.sh check /out/bin /out/lib

FROM libtorch AS cuda-libraries
COPY images/cuda-wheels.txt images/cuda-libraries.txt /images/
RUN python3 -m pip install --no-cache-dir --no-deps --require-hashes --only-binary=:all: --target /cuda -r /images/cuda-wheels.txt \
    && /images/libraries.sh gather /images/cuda-libraries.txt /out/cuda /libtorch /cuda / && rm -rf /cuda \
    && /images/libraries.sh check /out/lib /out/cuda

FROM ${BASE} AS operator
ARG VERSION=dev
LABEL org.opencontainers.image.title="stagecoach-operator" \
      org.opencontainers.image.description="Runs PipelineJobs as pods" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=operator-binary /out/sbom/ /usr/local/share/sbom/
COPY --chmod=755 --from=operator-binary /out/bin/stagecoach-operator /usr/local/bin/
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/usr/local/bin/stagecoach-operator"]

# The binary looks for libtorch in ../lib, and libtorch looks for its libraries in its own folder. Neither needs a
# variable such as LD_LIBRARY_PATH.
FROM ${BASE} AS trainer
ARG VERSION=dev
LABEL org.opencontainers.image.title="stagecoach-trainer" \
      org.opencontainers.image.description="Trains a stage of a language model; libtorch for CPUs, without Python" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0 AND BSD-3-Clause"
COPY --chmod=755 --from=trainer-binary /out/lib/ /usr/local/lib/
COPY --from=trainer-binary /out/sbom/ /usr/local/share/sbom/
COPY --chmod=755 --from=trainer-binary /out/bin/ /usr/local/bin/
USER 65532:65532
EXPOSE 9090 29500
# the entry point blocks SIGTERM and executes stagecoach, so that no SIGTERM is lost while libtorch loads
ENTRYPOINT ["/usr/local/bin/stagecoach-entrypoint"]

# The node provides the libraries of the GPU driver. GKE mounts them into /usr/local/nvidia/lib64. NVIDIA's toolkit
# mounts them into a folder that depends on the base image.
FROM trainer AS trainer-cuda
LABEL org.opencontainers.image.title="stagecoach-trainer-cuda" \
      org.opencontainers.image.description="Trains a stage of a language model; libtorch with CUDA and NCCL, without Python" \
      org.opencontainers.image.licenses="Apache-2.0 AND BSD-3-Clause AND LicenseRef-NVIDIA"
ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/usr/lib64 NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=trainer-binary /out/sbom-cuda/ /usr/local/share/sbom/
COPY --chmod=755 --from=cuda-libraries /out/cuda/ /usr/local/lib/
