# The image of ceph-rbd-csi: the driver, and Debian 13's packages (Ceph 18.2) of the programs that it calls.
#   make image                                         builds the driver too
#   buildah build --target given -f Dockerfile DIR     takes the driver that lies in DIR
# deploy/docs/release.md: how the same bytes come out again.
ARG BASE=docker.io/library/debian:trixie-slim
ARG BUILD=docker.io/library/rust:1.91-slim-trixie

# --- What the driver calls -----------------------------------------------------------------------
FROM ${BASE} AS runtime

# What packages note of today (when a password was set) is of this day instead, and Python's byte code is
# told from an old one by its text, not by a date.
ARG SOURCE_DATE_EPOCH=1767225600

# Licences are the documentation that stays. What manages CephFS and RGW is never called, and with it and with
# xfs_scrub goes ICU, which nothing else needs. Nor does anything here wait for udev: there is none.
RUN printf 'path-%s\n' \
        'exclude=/usr/share/doc/*' 'include=/usr/share/doc/*/copyright' \
        'exclude=/usr/share/man/*' 'exclude=/usr/share/info/*' 'exclude=/usr/share/locale/*' \
        'exclude=/usr/share/bash-completion/*' 'exclude=/usr/share/lintian/*' \
        'exclude=/usr/bin/radosgw-admin' 'exclude=/usr/bin/cephfs-*' 'exclude=/usr/bin/ceph-syn' \
        'exclude=/usr/sbin/xfs_scrub*' 'exclude=/usr/lib/*/libicu*' \
        >/etc/dpkg/dpkg.cfg.d/ceph-rbd-csi \
    && export DEBIAN_FRONTEND=noninteractive \
    && apt-get -qq update \
    && apt-get -qq install -y --no-install-recommends \
        ceph-common rbd-nbd \
        e2fsprogs xfsprogs cryptsetup-bin \
        mount util-linux kmod coreutils gzip \
        >/dev/null \
    && apt-get -qq clean \
    # What differs from one build to the next.
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/cache/ldconfig/* \
        /var/lib/dpkg/*-old /var/log/apt /var/log/*.log /etc/passwd- /etc/shadow- /etc/group- /etc/gshadow- \
        /tmp/*

ARG BASE
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="ceph-rbd-csi" \
      org.opencontainers.image.description="CSI driver for Ceph RBD: block volumes for Kubernetes and other container orchestrators" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.source="https://github.com/ceph-rbd-csi/ceph-rbd-csi" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${BASE}"

# Nodes mount, and manifests written for ceph-csi name no user. Our controller says runAsNonRoot, and needs no
# more than a folder for its socket and a /tmp that it can write.
USER 0
ENTRYPOINT ["/usr/local/bin/ceph-rbd-csi"]

# --- With a driver that was built before -----------------------------------------------------------
FROM runtime AS given
COPY --chmod=755 ceph-rbd-csi /usr/local/bin/ceph-rbd-csi

# --- With a driver of its own ----------------------------------------------------------------------
FROM ${BUILD} AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked

FROM runtime
COPY --from=build /src/target/release/ceph-rbd-csi /usr/local/bin/ceph-rbd-csi
