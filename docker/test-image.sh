#!/usr/bin/env bash
# Runs the CPU image confined, as its own user and as another: one PASS line per check, stops at the first failure
#
# usage: docker/test-image.sh         as root, after docker/build-cpu.sh. Logs in build/image/test.
# Docker itself uses runc to run containers. Here: a read-only root, only the loopback network, no capabilities or new
# privileges, a numeric user, 64 MB of /dev/shm, Docker's list of system calls, a separate process namespace. For
# details, see docker/oci_bundle.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source docker/buildah.sh

TEST_DIR=$IMAGE_DIR/test
USERS=(10001:10001 12345:12345)
LIMIT_S=300
passed=0

fail() {
  echo "FAIL $1${2:+: $2}" >&2
  tail -n 40 "$TEST_DIR/$1.log" >&2
  exit 1
}

pass() { echo "PASS $1${2:+: $2}"; passed=$((passed + 1)); }

cleanup() {
  local container
  for container in $(runc --root "$TEST_DIR/runc" list -q 2>/dev/null); do
    runc --root "$TEST_DIR/runc" delete --force "$container"
  done
  run_buildah rm --all >/dev/null
}

# contained NAME [option of oci_bundle.py ...] -- ARGUMENT ...: runs the image with its output in NAME.log; returns
# its exit code.
contained() {
  local name=$1
  shift
  python3 docker/oci_bundle.py --image "$TEST_DIR/image.json" --rootfs "$ROOTFS" --bundle "$TEST_DIR/bundle" \
    --volume "$TEST_DIR/hosts:/etc/hosts:ro" "$@"
  timeout --kill-after 10 "$LIMIT_S" runc --root "$TEST_DIR/runc" run --bundle "$TEST_DIR/bundle" "penstock-$$" \
    >"$TEST_DIR/$name.log" 2>&1 </dev/null
}

# check NAME [option ...] -- ARGUMENT ...: passes if the image exits with 0.
check() {
  local started=$SECONDS
  contained "$@" || fail "$1" "exit code $?"
  pass "$1" "$((SECONDS - started)) s"
}

# Starts a training run that would take hours, and sends SIGTERM to process 1 once it has begun, like `docker stop`.
terminated_training() {
  local name=$1 run code=0 waited=0
  shift
  contained "$name" "$@" --volume "$DEMO:/data:ro" --volume "$OUT:/out:rw" -- \
    train /data/train --epochs 100000 --size 32 --batch-size 16 --checkpoint /out/run.pt &
  run=$!
  until grep -q '^epoch' "$TEST_DIR/$name.log" 2>/dev/null; do
    kill -0 "$run" 2>/dev/null && test $((waited += 1)) -lt "$LIMIT_S" || fail "$name" 'training did not start'
    sleep 1
  done
  runc --root "$TEST_DIR/runc" kill "penstock-$$" TERM
  wait "$run" || code=$?
  test "$code" = 143 || fail "$name" "exit code $code, not 143"
  grep -q "saved to '/out/run.pt'" "$TEST_DIR/$name.log" || fail "$name" 'it does not report that it was saved'
  test -s "$OUT/run.pt" || fail "$name" 'no checkpoint'
  pass "$name" 'checkpoint saved, exit code 143'
}

prepare() {
  rm -rf "$TEST_DIR"
  mkdir -p "$TEST_DIR"
  run_buildah inspect --type image "$IMAGE" >"$TEST_DIR/image.json"
  ROOTFS=$(run_buildah mount "$(run_buildah from "$IMAGE")")
  printf '127.0.0.1 localhost\n::1 localhost\n' >"$TEST_DIR/hosts"
}

test "$(id -u)" = 0 || { echo 'image-test: runc must run as root here' >&2; exit 1; }
test -d "$STORAGE" || { echo 'image-test: no image; docker/build-cpu.sh builds it' >&2; exit 1; }
trap cleanup EXIT
prepare
for user in "${USERS[@]}"; do
  uid=${user%:*}
  OUT=$TEST_DIR/out-$uid
  DEMO=$OUT/demo
  mkdir "$OUT"
  chown "$user" "$OUT"
  as=(--user "$user")
  # The first time, the image's own user.
  test "$user" != "${USERS[0]}" || as=()

  check "$uid-confined" "${as[@]}" --entrypoint python --env "EXPECTED_UID=$uid" \
    --volume "$PWD/docker/check_confined.py:/check_confined.py:ro" -- /check_confined.py
  check "$uid-native" "${as[@]}" --entrypoint python -- \
    -c 'import penstock.pipelines.native.library as native; assert native.native_library(), native.LIBRARY'
  check "$uid-selftest" "${as[@]}" -- selftest
  check "$uid-synth" "${as[@]}" --volume "$OUT:/out:rw" -- synth /out/demo --images 64 --validation 16 --classes 4
  check "$uid-bench" "${as[@]}" --volume "$DEMO:/data:ro" --volume "$OUT:/out:rw" -- \
    bench /data/train --batch-size 16 --size 64 --seconds 0.5 --rounds 1 --json /out/bench.json
  test -s "$OUT/bench.json" || fail "$uid-bench" 'no record'
  check "$uid-torchrun" "${as[@]}" --entrypoint torchrun --volume "$DEMO:/data:ro" --volume "$OUT:/out:rw" -- \
    --standalone --local-addr localhost --nproc-per-node 2 -m penstock.bench.cli train /data/train --epochs 1 --size 32 --batch-size 8 --workers 1 \
    --json /out/ranks.json
  # 64 images in batches of 8 on two ranks: 4 steps; one rank would need 8.
  grep -q '"steps": 4,' "$OUT/ranks.json" || fail "$uid-torchrun" 'not the number of steps of two ranks'
  terminated_training "$uid-sigterm" "${as[@]}"
done
echo "image-test: $passed checks passed in $SECONDS s"
