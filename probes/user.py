"""The image's user: not root, with a writable home and caches, and no packages from outside."""

# /// probe
# summary = "non-root user; home, triton's and inductor's caches writable; no user-site packages"
# timeout = 300
# [variant.random_uid]
# summary = "the same as a random uid without a passwd entry, in group 0"
# random_uid = true
# ///

import getpass
import os
import site
import sys
import tempfile
from pathlib import Path

import _support as support

IN_IMAGE = os.environ.get("TORCHPROOF_SUBJECT") == "image"


def check():
    uid = os.getuid()
    home = os.environ.get("HOME") or ""
    support.METRICS.update(uid=uid, gid=os.getgid(), home=home)
    if uid == 0 and IN_IMAGE:
        support.fail(
            "runs_as_root",
            "the image's user is root",
            "add a numeric USER line, as in the generated Dockerfile",
        )
    places(uid, home)
    leaks()
    name = user_name(uid)
    return f"uid {uid} ({name}): home, triton's and inductor's caches are writable"


def places(uid, home):
    """Every directory that torch, triton and Hugging Face write to by default."""
    base = Path(home or "/")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or base / ".cache")
    wanted = {
        "HOME": base,
        "TRITON_CACHE_DIR": Path(os.environ.get("TRITON_CACHE_DIR") or base / ".triton" / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": Path(
            os.environ.get("TORCHINDUCTOR_CACHE_DIR") or tempfile.gettempdir()
        ),
        "XDG_CACHE_HOME": cache,
        "TORCH_HOME": Path(os.environ.get("TORCH_HOME") or cache / "torch"),
        "HF_HOME": Path(os.environ.get("HF_HOME") or cache / "huggingface"),
        "TMPDIR": Path(tempfile.gettempdir()),
    }
    for variable, path in wanted.items():
        why = unwritable(path)
        if why:
            told = f"HOME={home}" if variable == "HOME" else f"{path}"
            support.fail(
                "not_writable",
                f"{told} is not writable for uid {uid}: {why}",
                f"set {variable} to a writable folder; in an image, give the home group 0 and g+w",
            )


def unwritable(path):
    """Why nothing can be written there; an empty string if it can. Leaves nothing behind."""
    made = []
    try:
        missing = path
        while not missing.exists():
            made.append(missing)
            missing = missing.parent
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path):
            pass
    except OSError as error:
        return f"{error.strerror} ({error.filename or path})"
    finally:
        for folder in made:
            try:
                folder.rmdir()
            except OSError:
                break
    return ""


def leaks():
    """Packages of a user or of PYTHONPATH that would be found before or beside the image's."""
    mine = os.path.realpath(sys.prefix)
    user_site = os.path.realpath(site.getusersitepackages())
    for entry in filter(None, sys.path):
        place = os.path.realpath(entry)
        if place.startswith(mine + os.sep) or place == support.HERE or not Path(place).is_dir():
            continue
        packages = sorted(path.name for path in Path(place).glob("*.dist-info"))
        if place == user_site and packages:
            support.fail(
                "user_site",
                f"packages of the user are also found: {len(packages)} in {entry} "
                f"({packages[0].split('-')[0]}, …)",
                "set PYTHONNOUSERSITE=1",
            )
        if entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) and packages:
            support.fail(
                "pythonpath",
                f"PYTHONPATH adds {len(packages)} packages from {entry}",
                "unset PYTHONPATH, or install them into the image",
            )


def user_name(uid):
    """The name that torch's caches are filed under: torch before 2.13 needs one."""
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        failure = error
    support.import_torch()
    try:
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        cache_dir()
    except (KeyError, OSError) as error:
        support.fail(
            "uid_without_passwd",
            f"torch.compile fails for uid {uid}, which has no passwd entry: {error}",
            "set ENV USER=app (or LOGNAME), or use torch 2.13 or newer",
        )
    except ImportError:
        support.fail("uid_without_passwd", f"uid {uid} has no name: {failure}", "set ENV USER=app")
    return "no name, which this torch does not need"


if __name__ == "__main__":
    support.main(check)
