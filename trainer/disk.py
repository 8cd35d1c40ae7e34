"""What is written under another name until it is whole, and has its own for good.

    .30-3f9a.new/ ─▶ whole, forced to the disk ─▶ rename ─▶ 30/ ─▶ sync of the folder that they are in
         └▶ the writer was killed: deleted by the next one

Checkpoints and weights are written so; whoever reads them finds whole ones alone.
"""

import os
import shutil
from pathlib import Path


def sync(folder: Path) -> None:
    """Force a folder's own entries (names of files, renames) to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_drafts(folder: Path) -> None:
    """Delete what trainers that were killed while they wrote left in `folder`; drafts are named `.NAME.new`."""
    for draft in folder.glob(".*.new"):
        shutil.rmtree(draft)
