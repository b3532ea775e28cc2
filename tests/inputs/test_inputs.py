"""Where logs come from."""

import gzip
import io
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from allranks.inputs import InputError, open_inputs
from allranks.inputs.unwrap import unwrapped
from tests.ledger.speech import contents, ledger_of, log, world_lines

GOOD = contents(ledger_of(log(*world_lines())))
LINES = [line for rank in world_lines() for line in rank]


def read(*arguments: object) -> dict[str, bytes]:
    return {log.name: b"".join(log.chunks()) for log in open_inputs([str(argument) for argument in arguments])}


def test_files_directories_and_patterns(tmp_path: Path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "pod-0.log").write_bytes(b"a")
    (tmp_path / "deep" / "pod-1").write_bytes(b"b")
    (tmp_path / "result.json").write_bytes(b"{}")
    (tmp_path / ".hidden").write_bytes(b"x")
    assert sorted(read(tmp_path).values()) == [b"a", b"b"]
    assert list(read(f"{tmp_path}/pod-*").values()) == [b"a"]
    assert list(read(f"{tmp_path}/**/pod-?").values()) == [b"b"]
    assert list(read(tmp_path / "result.json").values()) == [b"{}"], "given by name it is read"


def test_names_that_cannot_be_looked_up_or_printed(tmp_path: Path):
    with pytest.raises(InputError, match="File name too long"):
        read("a" * 5000)
    (tmp_path / "a").mkdir()
    try:
        (tmp_path / "a" / os.fsdecode(b"pod-\xff.log")).write_bytes(b"text\n")
    except OSError:
        pytest.skip("this file system takes Unicode names only")
    assert [name.encode().rpartition(b"/")[2] for name in read(tmp_path / "a")] == [b"pod-\\udcff.log"]


def test_standard_input_that_is_closed_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InputError, match="stdin: it is closed"):
        read("-")


def test_a_file_named_twice_is_read_once(tmp_path: Path):
    (tmp_path / "pod-0.log").write_bytes(b"a")
    (tmp_path / "link.log").symlink_to(tmp_path / "pod-0.log")
    assert len(read(tmp_path / "pod-0.log", f"{tmp_path}/*", tmp_path)) == 1


@pytest.mark.parametrize("name", ["missing.log", "missing-*.log", "empty-directory"])
def test_what_is_not_there_is_an_error_that_names_it(tmp_path: Path, name: str):
    (tmp_path / "empty-directory").mkdir()
    with pytest.raises(InputError, match=name.replace("*", r"\*")):
        read(tmp_path / name)


def test_gzip_is_read_whatever_its_name(tmp_path: Path):
    (tmp_path / "pod-0.log").write_bytes(gzip.compress(b"text\n"))
    assert list(read(tmp_path).values()) == [b"text\n"]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_packed_standard_input_is_read_as_a_packed_file_is(pack: Callable[[bytes], bytes], monkeypatch):
    class Stdin:
        buffer = io.BytesIO(pack(b"text\n" * 99_999))

    monkeypatch.setattr("sys.stdin", Stdin)
    assert read("-") == {"stdin": b"text\n" * 99_999}


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_its_mark_is_recognised(encoding: str):
    text = log(*world_lines()).decode()
    assert b"".join(unwrapped([text.encode(encoding)])).decode() == text
    zeros = bytes(4096) + text.encode()
    assert b"".join(unwrapped([zeros])) == zeros, "a log that was truncated under its writer"


def test_a_cut_gzip_file_is_an_error(tmp_path: Path):
    (tmp_path / "pod-0.log.gz").write_bytes(gzip.compress(bytes(range(256)) * 1000)[:-20])
    with pytest.raises(InputError, match=r"pod-0.log.gz: .+"):
        read(tmp_path)


def test_zst_is_read_frame_by_frame(tmp_path: Path):
    first, second = (zstandard.compress(text * 50_000) for text in (b"first\n", b"second\n"))
    (tmp_path / "pod-0.log.zst").write_bytes(first + second)
    assert list(read(tmp_path).values()) == [b"first\n" * 50_000 + b"second\n" * 50_000]


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-8], lambda data: data[:40] + b"xx" + data[42:]], ids=["cut", "damaged"]
)
def test_a_cut_or_damaged_zst_file_is_an_error(tmp_path: Path, damage: Callable[[bytes], bytes]):
    noise = random.Random(0).randbytes(5000)
    (tmp_path / "pod-0.log.zst").write_bytes(damage(zstandard.ZstdCompressor(write_checksum=True).compress(noise)))
    with pytest.raises(InputError, match=r"pod-0.log.zst: .+"):
        read(tmp_path)


def test_zst_without_the_package_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "pod-0.log.zst").write_bytes(zstandard.compress(b"text"))
    with pytest.raises(InputError, match=r"zstd -dc .*pod-0"):
        read(tmp_path)


def test_a_log_in_utf16_is_read(tmp_path: Path):
    (tmp_path / "windows.log").write_bytes("größe\r\n".encode("utf-16"))
    assert list(read(tmp_path).values()) == ["größe\r\n".encode()]


def cri(line: bytes, size: int, stream: bytes = b"stdout") -> list[bytes]:
    parts = [line[at : at + size] for at in range(0, len(line), size)] or [b""]
    tags = [b"P"] * (len(parts) - 1) + [b"F"]
    return [
        b"2026-11-30T10:00:00.123456789Z %s %s %s" % (stream, tag, part) for tag, part in zip(tags, parts, strict=True)
    ]


@pytest.mark.parametrize("size", [40, 16384])
@pytest.mark.parametrize("chunk", [7, 1 << 20])
def test_cri_files_are_unwrapped_and_their_partial_lines_joined(size: int, chunk: int):
    entries = []
    for number, line in enumerate(LINES):
        entries += cri(line, size)
        entries[-1:-1] = cri(b"warning %d" % number, size, b"stderr")  # stderr breaks in between the parts
    data = log(entries)
    plain = b"".join(unwrapped(data[at : at + chunk] for at in range(0, len(data), chunk)))
    assert contents(ledger_of(plain)) == GOOD
    assert plain.count(b"warning") == len(LINES)
    assert b"stdout" not in plain


def test_docker_json_files_are_unwrapped():
    entries = []
    for line in LINES:
        for part, end in ((line[:30], ""), (line[30:], "\n")):
            entry = {"log": part.decode() + end, "stream": "stdout", "time": "2026-11-30T10:00:00Z"}
            entries.append(json.dumps(entry, separators=(",", ":")).encode())
    plain = b"".join(unwrapped([log(entries)]))
    assert plain.replace(b"\n\n", b"\n").lstrip(b"\n") == log(LINES)
    assert plain.split(b"\n")[1::2] == LINES, "each line stands where its last part stands in the file"


def test_a_node_log_whose_first_line_was_cut_by_rotation_is_recognised():
    entries = [entry for line in LINES for entry in cri(line, 60)]
    data = entries[0][40:] + b"\n" + log(entries[1:])
    assert b" F " not in b"".join(unwrapped([data])).split(b"\n", 1)[1]


def test_a_cut_entry_of_a_node_log_is_passed_on_as_it_is():
    data = log(cri(b"one", 99), b"2026-11-30T10", cri(b"two", 99))
    assert b"".join(unwrapped([data])) == b"one\n2026-11-30T10\ntwo\n"


def test_ordinary_logs_pass_unchanged():
    data = [b"a\n", b"b", b"\r\n\0"]
    assert b"".join(unwrapped(data)) == b"".join(data)
    assert b"".join(unwrapped([])) == b""
