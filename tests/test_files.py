"""Facts about files: whole or not at all, checked, and written where a folder was tried before any training."""

import os
import time
from pathlib import Path

import pytest
import torch

from ammlib.cli import main
from ammlib.data import files
from ammlib.data.files import read_checked, tensors_digest, write_atomically, write_checked

pytestmark = pytest.mark.usefixtures("own_folders")


# ---- writing


def test_a_file_is_written_with_its_folders_and_readable_by_all(tmp_path):
    path = tmp_path / "a" / "b" / "c.bin"
    for content in (b"first", b"second"):
        write_atomically(path, lambda file, content=content: file.write(content))
        assert path.read_bytes() == content
    assert os.listdir(path.parent) == ["c.bin"]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("moment", ["write", "fsync", "chmod", "replace"])
def test_a_crash_while_writing_leaves_the_old_file_and_no_other(moment, error, tmp_path, monkeypatch):
    def crash(*_):
        raise error

    def write(file):
        file.write(b"half")
        if moment == "write":
            crash()

    path = tmp_path / "file"
    path.write_bytes(b"good")
    if moment != "write":
        monkeypatch.setattr(os, moment, crash)
    with pytest.raises(error):
        write_atomically(path, write)
    assert path.read_bytes() == b"good" and os.listdir(tmp_path) == ["file"]


def test_temporary_files_are_removed_when_they_are_old(tmp_path):
    old, young, other = (tmp_path / name for name in (".c.pt-x.tmp", ".c.pt-y.tmp", ".hidden"))
    for path in (old, young, other):
        path.touch()
    folder = tmp_path / ".mnist-z.tmp"
    folder.mkdir()
    (folder / "half").touch()
    for path in (old, other, folder):
        os.utime(path, (0, time.time() - 2 * files.OLD))
    write_atomically(tmp_path / "c.pt", lambda file: file.write(b"new"))
    assert sorted(os.listdir(tmp_path)) == [".c.pt-y.tmp", ".hidden", "c.pt"]


def test_what_is_checked_is_read_as_it_was_written(tmp_path):
    for content in (b"", b"content", files.SEAL * 9):
        write_checked(tmp_path / "file", content)
        assert read_checked(tmp_path / "file") == content


def test_equal_tensors_have_equal_sums():
    tensors = {"b": torch.arange(3), "a": torch.ones(2, 2)}
    assert tensors_digest(tensors) == tensors_digest(dict(reversed(tensors.items())))


# ---- folders and disks


@pytest.mark.parametrize("folder", ["results", "checkpoints"])
def test_folders_are_tried_before_training(folder, tmp_path, refused):
    (tmp_path / folder).write_text("a file where a folder should be")
    refused("train --dataset digits --method reference --set epochs=1", tmp_path / folder)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_full_disk_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(files.tempfile, "mkstemp", lambda **_: (os.open("/dev/full", os.O_WRONLY), tmp_path / "no"))
    assert main(["train", "--dataset", "digits", "--method", "reference", "--set", "epochs=1"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and "No space left on device" in error and "checkpoints" in error
