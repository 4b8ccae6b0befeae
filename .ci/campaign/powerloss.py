"""Simulates a power loss: reverts changes on disk that were never synced.

The server runs with `shim.c` loaded before libc, and is killed with SIGKILL. The folder
then holds all of its writes; this module reverts what a disk may have lost.

The model
- A write is durable once an fsync or fdatasync of its file started after it and returned 0.
  Any page (4 KiB; or sector, 512 bytes, for torn pages) that was written since may have its
  current state, its state at the last sync, or its state after any write in between. Pages
  are independent of each other.
- After a failed sync, Linux marks the pages clean, so a later sync does not write them. They
  are reverted unless they were written again and then synced.
- A sync of a file makes its length durable. Otherwise it may be that after any later change.
- A name (create, rename, unlink, mkdir) is durable once its *folder* was synced after the
  change. Otherwise each folder is reverted to any moment since its last sync; changes of
  names stay in order. That is stricter than ext4, where a sync of a file makes its name
  durable too, and as strict as POSIX.
- A file whose name is reverted is lost with its content. A name that was replaced gets its
  old file back.

Not modelled: disks that lie about a sync, bit rot (see `damage`), other reordering between
a file's data and its length, hard links.
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
    """The records of a journal. Ignores an incomplete last record: its change took no effect."""
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
        # `a` of a sync is the sequence number of the last change before the sync started.
        if kind in (SYNCED, SYNC_FAILED, DIRSYNCED):
            r.a = (seq, a)
        records.append((seq, r))
        at += n1 + n2 + n
    numbers = [seq for seq, _ in records]
    for _, r in records:
        if r.kind in (SYNCED, SYNC_FAILED, DIRSYNCED):
            seq, began = r.a
            # Sequence numbers rise within a run of the server; a restart may begin lower.
            r.a = r.seq - 1
            while r.a > 0 and began < numbers[r.a - 1] < seq:
                r.a -= 1
    return [r for _, r in records]


def lose(shim, how, rng, page=4096):
    """Reverts `all` unsynced changes or a `random` part of them. Returns counts."""
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
        # The change took no effect, or its folder was reverted too.
        return 0


def inodes(shim):
    """The current path of each inode."""
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
    """Reverts a file to its state on disk. Returns the numbers of reverted pages and lengths."""
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
            # The kernel marks them clean, but they are not on disk.
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
        # A page that a failed sync dropped is reverted; the kernel may have written a dirty page.
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
