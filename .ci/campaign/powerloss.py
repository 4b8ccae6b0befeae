"""What is on disk after the power went: takes back what was never synced.

The server runs with `shim.c` before its libc, and is killed with SIGKILL. The folder then
holds everything that it ever wrote; this takes away what a disk need not have kept.

The model
- A write is kept for certain once an fsync or fdatasync of its file has begun after it and
  returned 0. Any page (4 KiB; or sector, 512 bytes, for torn pages) that was written since may
  be there as it is now, as it was at the last sync, or as any write in between left it, each
  page on its own.
- After a sync that failed, Linux marks the pages clean: a later sync says nothing of them.
  They are taken back unless they were written again, and then synced.
- A file's length is kept with its file's sync, and otherwise as any change in between left it.
- A name (create, rename, unlink, mkdir) is kept for certain once its *folder* was synced
  after it. Otherwise each folder goes back to any earlier moment since its last sync, names
  in their order. That is stricter than ext4, where a file's sync takes its name along, and
  as strict as POSIX.
- A file whose name is taken back is gone with what it holds; a name that was replaced holds
  what it held.

What it does not model: disks that lie about a sync, bits that rot (`damage` does that),
reordering between a file's data and its own length below what is said above, hard links.
"""

import os
import struct
from collections import defaultdict
from pathlib import Path

HEAD = struct.Struct("<IIQQQQIIQ")
MAGIC = 0x4A4E5243
WRITE, LENGTH, SYNCED, SYNC_FAILED, CREATE, RENAME, UNLINK, MKDIR, RMDIR, DIRSYNCED = range(1, 11)


class Record:
    __slots__ = ("seq", "kind", "inode", "a", "b", "path", "to", "data", "written")


def read_journal(path):
    """The records; a last one that a kill cut off took no effect."""
    bytes_ = Path(path).read_bytes()
    at, records = 0, []
    while at + HEAD.size <= len(bytes_):
        magic, kind, seq, inode, a, b, n1, n2, n = HEAD.unpack_from(bytes_, at)
        at += HEAD.size
        if magic != MAGIC or at + n1 + n2 + n > len(bytes_):
            break
        r = Record()
        r.seq, r.kind, r.inode, r.a, r.b, r.written = len(records) + 1, kind, inode, a, b, 0
        r.path = os.fsdecode(bytes_[at : at + n1])
        r.to = os.fsdecode(bytes_[at + n1 : at + n1 + n2])
        r.data = bytes_[at + n1 + n2 : at + n1 + n2 + n]
        if kind == WRITE:
            r.written, r.data = struct.unpack_from("<Q", r.data)[0], r.data[8:]
        # `a` of a sync is the shim's number of the last change before it began.
        if kind in (SYNCED, SYNC_FAILED, DIRSYNCED):
            r.a = (seq, a)
        records.append((seq, r))
        at += n1 + n2 + n
    numbers = [seq for seq, _ in records]
    for _, r in records:
        if r.kind in (SYNCED, SYNC_FAILED, DIRSYNCED):
            seq, began = r.a
            # Numbers rise in a run of the server; a restart may begin lower.
            r.a = r.seq - 1
            while r.a > 0 and began < numbers[r.a - 1] < seq:
                r.a -= 1
    return [r for _, r in records]


def lose(shim, how, rng, page=4096):
    """Takes back what was not synced: `all` of it, or a `random` part. Returns counts."""
    records = read_journal(shim.control / "journal")
    lost = {"names": undo_names(records, shim.control, how, rng)}
    paths = inodes(shim)
    lost["pages"], lost["lengths"] = undo_data(records, paths, how, rng, page)
    lost["records"] = len(records)
    return lost


# ---- names ----


def undo_names(records, control, how, rng):
    synced, changes = defaultdict(int), defaultdict(list)
    for r in records:
        if r.kind == DIRSYNCED:
            synced[r.path] = max(synced[r.path], r.a)
        elif r.kind in (CREATE, UNLINK, MKDIR, RMDIR):
            changes[os.path.dirname(r.path)].append(r.seq)
        elif r.kind == RENAME:
            for folder in {os.path.dirname(r.path), os.path.dirname(r.to)}:
                changes[folder].append(r.seq)
    keep = {}
    for folder, seqs in changes.items():
        unsynced = [s for s in seqs if s > synced[folder]]
        kept = 0 if how == "all" else rng.randint(0, len(unsynced))
        keep[folder] = unsynced[kept] - 1 if kept < len(unsynced) else records[-1].seq
    undone = 0
    for r in reversed(records):
        if r.kind in (CREATE, UNLINK, MKDIR, RMDIR, RENAME):
            folder = os.path.dirname(r.to if r.kind == RENAME else r.path)
            if r.seq > keep[folder]:
                undone += undo_name(r, control)
    return undone


def undo_name(r, control):
    grave = control / "graves" / str(r.a)
    try:
        if r.kind == CREATE:
            os.unlink(r.path)
        elif r.kind == MKDIR:
            for below, folders, files in os.walk(r.path, topdown=False):
                for name in files:
                    os.unlink(os.path.join(below, name))
                for name in folders:
                    os.rmdir(os.path.join(below, name))
            os.rmdir(r.path)
        elif r.kind == RMDIR:
            os.mkdir(r.path)
        elif r.kind == UNLINK and r.a:
            os.link(grave, r.path)
        elif r.kind == RENAME:
            os.rename(r.to, r.path)
            if r.a:
                os.link(grave, r.to)
        return 1
    except (FileNotFoundError, FileExistsError, NotADirectoryError):
        # It never took effect, or what held it is gone as well.
        return 0


def inodes(shim):
    """Where each file is now."""
    found = {}
    for root in (shim.control / "graves", shim.data):
        for path in Path(root).rglob("*"):
            if path.is_file() and not path.is_symlink():
                found[path.stat().st_ino] = path
    return found


# ---- data ----


def undo_data(records, paths, how, rng, page):
    by_inode = defaultdict(list)
    for r in records:
        if r.kind in (WRITE, LENGTH, SYNCED, SYNC_FAILED):
            by_inode[r.inode].append(r)
    pages = lengths = 0
    for inode, changes in by_inode.items():
        if inode in paths and any(c.kind in (WRITE, LENGTH) for c in changes):
            p, n = undo_file(paths[inode], changes, how, rng, page)
            pages, lengths = pages + p, lengths + n
    return pages, lengths


def undo_file(path, changes, how, rng, page):
    """A file as the disk has it. Returns the pages and lengths that went back."""
    on_disk, dirty, writes = defaultdict(int), defaultdict(int), defaultdict(list)
    length_on_disk, length_changes = 0, []
    for c in changes:
        if c.kind == WRITE:
            for n in range(c.a // page, (c.a + max(c.written, 1) - 1) // page + 1):
                dirty[n] = c.seq
                writes[n].append(c)
            if c.a + c.written > c.b:
                length_changes.append(c)
        elif c.kind == LENGTH:
            length_changes.append(c)
        elif c.kind == SYNCED:
            for n in [n for n, seq in dirty.items() if first_after(writes[n], on_disk[n]) <= c.a]:
                on_disk[n] = max((w.seq for w in writes[n] if w.seq <= c.a), default=on_disk[n])
                if dirty[n] <= c.a:
                    del dirty[n]
            length_on_disk = max(length_on_disk, c.a)
        elif c.kind == SYNC_FAILED:
            # Clean in the kernel's eyes, and not on the disk.
            for n in [n for n, seq in dirty.items() if seq <= c.a]:
                del dirty[n]
    return rewind(path, writes, on_disk, dirty, length_on_disk, length_changes, how, rng, page)


def first_after(changes, seq):
    return next((c.seq for c in changes if c.seq > seq), 1 << 62)


def rewind(path, writes, on_disk, dirty, length_on_disk, length_changes, how, rng, page):
    content = bytearray(path.read_bytes())
    size, lost_lengths, lost_pages = len(content), 0, 0
    unsynced = [c for c in length_changes if c.seq > length_on_disk]
    if unsynced:
        kept = 0 if how == "all" else rng.randint(0, len(unsynced))
        if kept < len(unsynced):
            size, lost_lengths = unsynced[kept].b, 1
    if len(content) < size:
        content.extend(bytes(size - len(content)))
    for n, changes in writes.items():
        later = [c for c in changes if c.seq > on_disk[n]]
        if not later:
            continue
        # A page that a failed sync dropped stays as it was; one that waits may have got out.
        kept = rng.randint(0, len(later)) if how == "random" and n in dirty else 0
        undone = later[kept:]
        if not undone:
            continue
        lost_pages += 1
        for c in reversed(undone):
            start, end = max(c.a, n * page), min(c.a + c.written, (n + 1) * page)
            if len(content) < end:
                content.extend(bytes(end - len(content)))
            old = c.data[start - c.a : end - c.a]
            content[start : start + len(old)] = old
            content[start + len(old) : end] = bytes(end - start - len(old))
    del content[size:]
    if lost_pages or lost_lengths:
        with open(path, "r+b") as file:
            file.write(content)
            file.truncate(len(content))
    return lost_pages, lost_lengths
