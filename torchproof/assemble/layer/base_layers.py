"""The two small layers that need the base's own files: the virtual environment, and the user.

`python -m venv` is not run (nothing of the image is), so what it would leave is written here: the
links to the interpreter, its activation scripts, and pip from the wheel that the base carries for
it. Debian keeps these wheels in /usr/share/python-wheels, Python itself beside `ensurepip`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from torchproof.assemble.base_image import BaseImage
from torchproof.assemble.layer import tar_headers as tarball
from torchproof.assemble.layer.installation import Installation, install
from torchproof.assemble.layer.stream import Entry, LayerStream
from torchproof.assemble.layer.wheel_file import open_wheel
from torchproof.assemble.layer_facts import write_whole
from torchproof.errors import CellError, HostError
from torchproof.image.config import ImageConfig
from torchproof.image.layer_tar import Member, MemberKind, OpaqueDirectory, Removed
from torchproof.image.layers import PREFIX
from torchproof.index.download import sha256_of

_INTERPRETER_FOLDERS: Final = ("/usr/local/bin", "/usr/bin", "/opt/python/bin")
_WHEEL: Final = re.compile(
    r"(?:/usr/share/python-wheels|.*/ensurepip/_bundled)/((?:pip|setuptools)-[^/]+\.whl)"
)
_SCRIPT: Final = re.compile(r".*/venv/scripts/(?:common|posix)/([^/]+)")
_LARGEST: Final = 32 * 1024**2


@dataclass(slots=True)
class BaseFiles:
    """What the two layers need of a base."""

    interpreter: str = ""
    """Absolute path of the interpreter, links followed within its folder."""
    version: str = ""
    """`3.11.2`, or empty if the base does not tell."""
    passwd: bytes = b""
    passwd_mode: int = 0o644
    folders: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Mode, owner and group of folders that the user's layer may meet."""
    scripts: dict[str, bytes] = field(default_factory=dict)
    wheels: dict[str, bytes] = field(default_factory=dict)


def read_base_files(base: BaseImage, python: str) -> BaseFiles:
    """Find what is needed in the base's layers, the uppermost of each.

    Raises CellError if the base has no such Python, or lacks what `venv` needs.
    """
    files = BaseFiles()
    interpreters = [f"{folder}/python{python}" for folder in _INTERPRETER_FOLDERS]
    there: set[str] = set()
    library = re.compile(rf".*/python{re.escape(python)}/(?:venv|ensurepip)/.*|/usr/share/.*")
    for event in base.contents():
        path = event.path
        if isinstance(event, Removed):
            there.discard(path)
        elif isinstance(event, OpaqueDirectory):
            continue
        elif path in interpreters:
            there.add(path)
        elif event.kind is MemberKind.DIRECTORY:
            files.folders[path] = (event.mode, event.uid, event.gid)
        elif path == "/etc/passwd":
            files.passwd, files.passwd_mode = _content(event), event.mode
        elif path == "/var/lib/dpkg/status" and not files.version:
            files.version = _dpkg_version(_content(event), python)
        elif path.endswith(f"/include/python{python}/patchlevel.h"):
            files.version = _header_version(_content(event)) or files.version
        elif (match := _WHEEL.fullmatch(path)) and library.fullmatch(path):
            files.wheels[match[1]] = _content(event)
        elif (match := _SCRIPT.fullmatch(path)) and library.fullmatch(path):
            files.scripts[match[1]] = _content(event)
    found = [path for path in interpreters if path in there]
    if not found:
        raise CellError(
            f"the base has no python{python}",
            fix="name a base that carries it, or its package under base: in matrix.yaml",
        )
    if not any(name.startswith("pip-") for name in files.wheels) or not files.scripts:
        raise CellError(
            f"the base cannot make virtual environments for Python {python}",
            fix="add python3-venv to its packages",
        )
    files.interpreter = found[0]
    return files


def python_layer(
    files: BaseFiles, python: str, scratch: Path, *, replaced: Collection[str] = ()
) -> LayerStream:
    """Return the layer of the virtual environment. `scratch` takes the base's pip wheel.

    `replaced` are distributions that a later layer brings: an installer would remove the older.
    """
    site = f"{PREFIX}/lib/python{python}"
    executable = f"python{python}"
    folders = (
        str(PurePosixPath(PREFIX).parent),
        PREFIX,
        f"{PREFIX}/bin",
        f"{PREFIX}/include",
        f"{PREFIX}/include/{executable}",
        f"{PREFIX}/lib",
        site,
        f"{site}/site-packages",
    )
    entries = [Entry(header=tarball.directory_header(folder)) for folder in folders]
    links = {
        f"{PREFIX}/bin/{executable}": files.interpreter,
        f"{PREFIX}/bin/python": executable,
        f"{PREFIX}/bin/python3": executable,
        f"{PREFIX}/lib64": "lib",
    }
    entries += [Entry(header=tarball.link_header(*link)) for link in sorted(links.items())]
    made = {f"{PREFIX}/bin/{name}": _activation(text) for name, text in files.scripts.items()}
    made[f"{PREFIX}/pyvenv.cfg"] = _pyvenv(files)
    for path, data in sorted(made.items()):
        entries.append(Entry(header=tarball.file_header(path, len(data), 0o644), data=data))
    return LayerStream(
        entries=entries, wheels=_seeds(files, python, scratch, replaced), known=folders
    )


def config_layer(files: BaseFiles, config: ImageConfig) -> LayerStream:
    """Return the layer that adds the user and the folders that it may write."""
    passwd = files.passwd
    passwd += b"" if not passwd or passwd.endswith(b"\n") else b"\n"
    passwd += config.passwd.encode() + b"\n"
    entries = [_parent(files, "/etc")]
    header = tarball.file_header("/etc/passwd", len(passwd), files.passwd_mode)
    entries.append(Entry(header=header, data=passwd))
    known: set[str] = set()
    own = {directory.path for directory in config.directories}
    for directory in config.directories:
        for parent in reversed(PurePosixPath(directory.path).parents[:-1]):
            if str(parent) not in known | own:
                entries.append(_parent(files, str(parent)))
                known.add(str(parent))
        entries.append(
            Entry(
                header=tarball.directory_header(
                    directory.path, directory.mode, directory.uid, directory.gid
                )
            )
        )
    return LayerStream(entries=entries)


def _parent(files: BaseFiles, path: str) -> Entry:
    """Repeat a folder of the base as it is there, or make it root's."""
    mode, uid, gid = files.folders.get(path, (0o755, 0, 0))
    return Entry(header=tarball.directory_header(path, mode, uid, gid))


def _seeds(
    files: BaseFiles, python: str, scratch: Path, replaced: Collection[str]
) -> Sequence[tuple[Installation, str | None]]:
    """Lay out pip (and setuptools, where `venv` of this Python brings it)."""
    seeds = []
    minor = int(python.split(".")[1])
    for name, data in sorted(files.wheels.items()):
        distribution = name.partition("-")[0]
        if distribution in replaced or (distribution == "setuptools" and minor >= 12):
            continue
        path = scratch / name
        write_whole(path, data)
        installation = install(
            open_wheel(path), python, installer=b"pip\n", interpreter=f"python{python}"
        )
        seeds.append((installation, sha256_of(path)))
    return seeds


def _activation(text: bytes) -> bytes:
    """Fill in an activation script, as `venv.EnvBuilder.replace_variables` does."""
    prompt = f"({PurePosixPath(PREFIX).name}) "
    values = {
        b"__VENV_DIR__": PREFIX,
        b"__VENV_NAME__": PurePosixPath(PREFIX).name,
        # Newer Pythons leave the quoting of values to the one who fills them in.
        b'"__VENV_PROMPT__': f'"{prompt}',
        b"__VENV_PROMPT__": shlex.quote(prompt),
        b"__VENV_BIN_NAME__": "bin",
        b"__VENV_PYTHON__": f"{PREFIX}/bin/python",
    }
    for variable, value in values.items():
        text = text.replace(variable, value.encode())
    return text


def _pyvenv(files: BaseFiles) -> bytes:
    lines = {
        "home": str(PurePosixPath(files.interpreter).parent),
        "include-system-site-packages": "false",
        "version": files.version,
        "executable": files.interpreter,
        "command": f"{files.interpreter} -m venv {PREFIX}",
    }
    return "".join(f"{name} = {value}\n" for name, value in lines.items() if value).encode()


def _content(member: Member) -> bytes:
    if member.kind is not MemberKind.FILE or member.size > _LARGEST:
        raise HostError(f"the base's {member.path} is not a file that can be read")
    return member.read()


def _dpkg_version(status: bytes, python: str) -> str:
    """Read the interpreter's version from dpkg's list of packages (`3.11.2-6+deb12u6`)."""
    pattern = rf"^Package: python{re.escape(python)}-minimal$.*?^Version: (\d+\.\d+\.\d+)"
    match = re.search(pattern, status.decode("utf-8", "replace"), re.MULTILINE | re.DOTALL)
    return match[1] if match else ""


def _header_version(text: bytes) -> str:
    match = re.search(rb'#define PY_VERSION\s+"([^"+]+)', text)
    return match[1].decode() if match else ""
