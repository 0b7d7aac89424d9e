# triton-lb as a container image.
#
#   docker build -t triton-lb:0.1.0 .
#   docker run --read-only -p 8000-8002:8000-8002 -v "$PWD/config:/etc/triton-lb:ro" triton-lb:0.1.0
#
# Build arguments:
#   BASE     image with Python 3.11 or later and its venv module; give a digest to build the same again
#   BUILDER  image with the same Python, its headers and gcc; nothing of it is left in the result
#   COMPILE  0 for the sources as they are, without the compiled hot modules; BUILDER needs no gcc then
#   UID      user that it runs as; 0 for platforms that demand root, as SageMaker does
# What is installed is constraints.txt's: the same versions that the tests ran with.

ARG BASE=docker.io/library/python:3.11-slim-bookworm
ARG BUILDER=docker.io/library/python:3.11-bookworm

FROM ${BUILDER} AS build
ARG COMPILE=1
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
# The dependencies first: they change less often than the source.
COPY pyproject.toml constraints.txt tools/image_install.sh ./
RUN ./image_install.sh dependencies /opt/triton-lb
RUN ./image_install.sh compiler /opt/compiler
COPY setup.py README.md LICENSE ./
COPY tools/build_backend.py tools/
COPY deploy deploy
COPY lb lb
RUN TRITON_LB_COMPILE=${COMPILE} ./image_install.sh wheel /opt/compiler /wheel
RUN ./image_install.sh product /opt/triton-lb /wheel

FROM ${BASE}
ARG UID=10001
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="triton-lb" \
      org.opencontainers.image.description="Load balancer that makes N Triton Inference Servers look like one (HTTP and gRPC, KServe v2)" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/triton-lb /opt/triton-lb
COPY config/container.yaml /etc/triton-lb/triton-lb.yaml
ENV PATH=/opt/triton-lb/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER ${UID}:${UID}
EXPOSE 8000 8001 8002
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
  CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8002/livez', timeout=4)"]
ENTRYPOINT ["triton-lb"]
CMD ["serve", "--config", "/etc/triton-lb/triton-lb.yaml"]
