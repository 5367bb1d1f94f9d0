"""The folder of compiled kernels, and of what was measured for them; found without the compiler."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

from gnnkit.files import is_own_folder, private_folder, temporary_home, user_folder, user_path

# Names the folder of compiled kernels to processes in a user namespace, where all other users look the same: owners of the folders above
# it are not known there, and the process that starts them has looked.
KERNEL_CACHE_VARIABLE = "GNNKIT_KERNEL_CACHE"


@cache
def kernel_cache_root() -> Path:
    """The folder that compiled kernels are kept in, which only this user can write to: in the cache folder, else in the temporary one.

    ``$GNNKIT_KERNEL_CACHE`` is taken as it is, where it is this user's.

    They belong to the machine and to no data: ``$GNNKIT_HOME`` may be a folder of a team, and what lies here is executed.
    """
    if told := os.environ.get(KERNEL_CACHE_VARIABLE):
        with contextlib.suppress(OSError):
            if is_own_folder(user_path(told)):
                return user_path(told)
    for home in filter(None, (user_folder("cache"), temporary_home())):
        try:
            candidate = private_folder(home / "kernels")
            with tempfile.TemporaryFile(dir=candidate):
                return candidate
        except OSError:
            continue
    own = tempfile.mkdtemp(prefix="gnnkit-kernels-")
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return Path(own)
