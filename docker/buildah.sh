# The image's location and how to call buildah: sourced by build-cpu.sh and test-image.sh

IMAGE_DIR=$PWD/build/image
STORAGE=$IMAGE_DIR/storage
IMAGE=localhost/penstock:cpu

# Separate storage, so that the machine's own storage is not touched.
run_buildah() {
  buildah --root "$STORAGE" --runroot "$IMAGE_DIR/runroot" --storage-driver "$(storage_driver)" "$@"
}

# overlay shares the files of layers and stages; vfs copies them all, but also works where overlay does not, such as
# inside a container.
storage_driver() {
  if test ! -s "$STORAGE.driver"; then
    local try=$STORAGE/try
    mkdir -p "$try"/{lower,upper,work,merged}
    if unshare --mount mount -t overlay -o "lowerdir=$try/lower,upperdir=$try/upper,workdir=$try/work" overlay "$try/merged" \
      2>/dev/null; then
      echo overlay >"$STORAGE.driver"
    else
      echo vfs >"$STORAGE.driver"
    fi
    rm -rf "$try"
  fi
  cat "$STORAGE.driver"
}

# buildah builds, runc (Docker's own) runs, debootstrap makes the base.
install_tools() {
  local missing=() tool
  for tool in buildah runc debootstrap; do
    command -v "$tool" >/dev/null || missing+=("$tool")
  done
  test -e /usr/share/keyrings/debian-archive-keyring.gpg || missing+=(debian-archive-keyring)
  test ${#missing[@]} -gt 0 || return 0
  echo "image: apt-get install ${missing[*]}"
  { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"; } \
    >"$IMAGE_DIR/apt.log" 2>&1 || { cat "$IMAGE_DIR/apt.log" >&2; return 1; }
}

remove_storage() {
  if test -d "$STORAGE"; then
    run_buildah rm --all >/dev/null
    run_buildah rmi --all --force >/dev/null
    rm -rf "$STORAGE" "$STORAGE.driver" "$IMAGE_DIR/runroot"
  fi
}
