#!/usr/bin/env bash
# Builds the CPU image without a Docker engine: debootstrap makes its base, pip downloads wheels, buildah builds
#
# usage: docker/build-cpu.sh          as root, on Debian or Ubuntu. Image localhost/penstock:cpu in build/image/storage.
# apt, debootstrap and `pip download` need the network and use the settings of this machine; packages inside the image
# come only from the folder of wheels. Base and wheels are kept in build/image and rebuilt when their inputs change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source docker/buildah.sh

export SUITE=bookworm # same as BASE in the Dockerfile, with its Python
WHEELHOUSE=$IMAGE_DIR/wheelhouse
BASE_TAR=$IMAGE_DIR/base-$SUITE.tar
LOG=$IMAGE_DIR/build.log

die() { echo "image: $*" >&2; exit 1; }

# Runs a step with its output in the log; prints how long it took, and the end of the log if it failed.
step() {
  local what=$1 started=$SECONDS
  shift
  echo "== $what" >>"$LOG"
  "$@" >>"$LOG" 2>&1 || { tail -n 40 "$LOG" >&2; die "$what: failed (all of its output is in $LOG)"; }
  echo "image: $what ($((SECONDS - started)) s)"
}

argument() { sed -n "s/^ARG $1=//p" docker/Dockerfile; }

# In memory, because dpkg waits for the disk after every file. The mounts end with the shell that `unshare` starts.
make_base() {
  mkdir -p "$IMAGE_DIR/base"
  export -f fill_base
  unshare --mount bash -euo pipefail -c 'fill_base "$@"' _ "$IMAGE_DIR/base" "$BASE_TAR.new"
  mv "$BASE_TAR.new" "$BASE_TAR"
}

fill_base() {
  local root=$1 tar=$2
  mount -t tmpfs -o mode=755 tmpfs "$root"
  debootstrap --variant=minbase "$SUITE" "$root"
  # Debian's security updates come from the same source as this machine's.
  if grep -qs "Suites:.*$SUITE" /etc/apt/sources.list.d/debian.sources; then
    cp /etc/apt/sources.list.d/debian.sources "$root/etc/apt/sources.list.d/"
    rm "$root/etc/apt/sources.list"
  fi
  # As in Debian's own slim image: without documentation, synced writes and downloaded packages.
  { printf 'path-exclude /usr/share/%s/*\n' doc man info locale; echo force-unsafe-io; } >"$root/etc/dpkg/dpkg.cfg.d/image"
  printf '%s "";\n' Dir::Cache::pkgcache Dir::Cache::srcpkgcache >"$root/etc/apt/apt.conf.d/image"
  echo 'APT::Keep-Downloaded-Packages "false";' >>"$root/etc/apt/apt.conf.d/image"
  rm -rf "$root"/usr/share/{doc,man,info,locale}/* "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/*
  tar -C "$root" -cf "$tar" .
}

# The folder's key is a digest of all files that contain versions.
wheelhouse_key() { cat constraints.txt pyproject.toml docker/requirements.py docker/Dockerfile | sha256sum; }

collect_wheels() {
  local torch key
  key=$(wheelhouse_key)
  torch=$(sed -n 's/^torch==.*/&+cpu/p' constraints.txt)
  rm -rf "$WHEELHOUSE" && mkdir "$WHEELHOUSE"
  "$PYTHON" docker/requirements.py pyproject.toml cpu >"$IMAGE_DIR/requirements.txt"
  "$PYTHON" -m pip download --progress-bar off -d "$WHEELHOUSE" -c constraints.txt "$torch" -r "$IMAGE_DIR/requirements.txt" \
    setuptools wheel "pybind11==$(argument PYBIND11)"
  "$PYTHON" -m pip download --progress-bar off -d "$WHEELHOUSE" --no-deps --no-binary pillow-simd \
    "pillow-simd==$(argument PILLOW_SIMD)"
  echo "$key" >"$WHEELHOUSE/.key"
}

import_base() {
  local base
  base=$(run_buildah from scratch)
  run_buildah add -q "$base" "$BASE_TAR" /
  run_buildah commit -q --rm "$base" localhost/penstock-base
}

build_image() {
  local revision
  revision=$(git describe --always --dirty 2>/dev/null || echo unknown)
  run_buildah bud --isolation chroot --network host --layers=false --target cpu -t "$IMAGE" -f docker/Dockerfile \
    --ignorefile .dockerignore --build-context "wheelhouse=$WHEELHOUSE" --identity-label=false \
    --build-arg BASE=localhost/penstock-base --build-arg PIP_NO_INDEX=1 --build-arg "REVISION=$revision" .
}

test "$(id -u)" = 0 || die 'debootstrap and buildah must run as root here'
mkdir -p "$IMAGE_DIR"
: >"$LOG"
for PYTHON in .venv/bin/python python3.11 python3 ''; do
  test -n "$PYTHON" || die "no Python 3.11 found, for which the image's wheels are downloaded"
  "$PYTHON" -c 'import sys, pip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && break
done
install_tools
test -s "$BASE_TAR" || step "base, $SUITE" make_base
test "$(cat "$WHEELHOUSE/.key" 2>/dev/null)" = "$(wheelhouse_key)" || step 'wheels' collect_wheels
remove_storage
step 'base imported' import_base
step 'image built' build_image
size=$(run_buildah images --format '{{.Size}}' "$IMAGE")
echo "image: $IMAGE, $size, in $STORAGE ($SECONDS s in total)"
