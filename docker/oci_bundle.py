"""The bundle with which runc runs an image confined, like `docker run --read-only --network none --cap-drop ALL`.

Only the given volumes of the host are visible. /tmp and /dev/shm (64 MB) are memory. No new privileges. The allowed
system calls are those of containers-common's profile, if that is installed.
"""

import argparse
import json
import platform
from pathlib import Path
from typing import Any

SECCOMP_PROFILE = Path("/usr/share/containers/seccomp.json")
_ARCHES = {"x86_64": ("amd64", "SCMP_ARCH_X86_64"), "aarch64": ("arm64", "SCMP_ARCH_AARCH64")}


def confined(image: dict[str, Any], rootfs: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the runtime's configuration for `image` (Entrypoint, Env, WorkingDir, User) with its files in `rootfs`."""
    entrypoint = [arguments.entrypoint] if arguments.entrypoint else image["Entrypoint"]
    uid, gid = (int(number) for number in (arguments.user or image["User"]).split(":"))
    linux: dict[str, Any] = {
        "namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")],
        "resources": {"devices": [{"allow": False, "access": "rwm"}]},
        "maskedPaths": ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/scsi", "/sys/firmware"],
        "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
    }
    if SECCOMP_PROFILE.exists():
        linux["seccomp"] = seccomp(json.loads(SECCOMP_PROFILE.read_text("utf-8")))
    return {
        "ociVersion": "1.0.2",
        "hostname": "container",
        "root": {"path": str(rootfs), "readonly": True},
        "process": {
            "args": [*entrypoint, *arguments.command],
            "env": [*image["Env"], *arguments.env],
            "cwd": image.get("WorkingDir") or "/",
            "user": {"uid": uid, "gid": gid},
            "capabilities": {kind: [] for kind in ("bounding", "effective", "permitted", "inheritable", "ambient")},
            "noNewPrivileges": True,
        },
        "mounts": [*_system_mounts(), *(_volume(text) for text in arguments.volume)],
        "linux": linux,
    }


def _system_mounts() -> list[dict[str, Any]]:
    rows = [
        ("proc", "/proc", "nosuid,noexec,nodev"),
        ("tmpfs", "/dev", "nosuid,mode=755,size=64k"),
        ("devpts", "/dev/pts", "nosuid,noexec,newinstance,ptmxmode=0666,mode=0620"),
        ("tmpfs", "/dev/shm", "nosuid,noexec,nodev,mode=1777,size=64m"),  # noqa: S108
        ("sysfs", "/sys", "nosuid,noexec,nodev,ro"),
        ("tmpfs", "/tmp", "nosuid,noexec,nodev,mode=1777"),  # noqa: S108
    ]
    return [{"type": kind, "source": kind, "destination": to, "options": text.split(",")} for kind, to, text in rows]


def _volume(text: str) -> dict[str, Any]:
    source, to, *mode = text.split(":")
    return {"type": "bind", "source": source, "destination": to, "options": ["rbind", "nosuid", "nodev", *mode]}


def seccomp(profile: dict[str, Any]) -> dict[str, Any]:
    """Return a profile of containers-common in the runtime's form, for a process without capabilities."""
    arch, native = _ARCHES[platform.machine()]
    (family,) = (row for row in profile["archMap"] if row["architecture"] == native)
    rules = []
    for rule in profile["syscalls"]:
        needs = rule.get("includes") or {}
        if "caps" not in needs and arch in needs.get("arches", [arch]):
            kept = ("names", "action", "args", "errnoRet")
            rules.append({key: rule[key] for key in kept if rule.get(key) is not None})
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "architectures": [native, *family["subArchitectures"]],
        "syscalls": rules,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", type=Path, required=True, help="output of `buildah inspect --type image`")
    parser.add_argument("--rootfs", type=Path, required=True, help="folder with the image's files")
    parser.add_argument("--bundle", type=Path, required=True, help="folder for the bundle")
    parser.add_argument("--user", help="UID:GID instead of the image's")
    parser.add_argument("--entrypoint", help="program instead of the image's")
    parser.add_argument("--env", action="append", default=[], help="NAME=VALUE")
    parser.add_argument("--volume", action="append", default=[], help="SOURCE:DESTINATION:ro or :rw")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="arguments of the program, after --")
    arguments = parser.parse_args()
    arguments.command = arguments.command[arguments.command[:1] == ["--"] :]
    image = json.loads(arguments.image.read_text("utf-8"))["OCIv1"]["config"]
    arguments.bundle.mkdir(parents=True, exist_ok=True)
    config = confined(image, arguments.rootfs.resolve(), arguments)
    (arguments.bundle / "config.json").write_text(json.dumps(config, indent=1), "utf-8")


if __name__ == "__main__":
    main()
