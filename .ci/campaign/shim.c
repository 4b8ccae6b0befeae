/*
 * Injects disk faults. Loaded before libc (LD_PRELOAD), this library fails chosen system
 * calls on the files of one folder, and journals the changes that a power loss may revert.
 *
 * Three environment variables control it:
 *   CAMPAIGN_ROOT    only files below this folder are affected (canonical path)
 *   CAMPAIGN_CONTROL a folder on the same file system: `rules` (shared memory with the
 *                    campaign, struct control), `journal`, `graves/`
 *   CAMPAIGN_CLOCK   start of the wall clock, in seconds since 1970
 *
 * Before each change, the journal gets the data that undoes it: the bytes that a write
 * overwrites, the length that a truncation changes, the file that a rename or an unlink
 * removes (kept by a hard link in `graves/`). It also records syncs, so that
 * `powerloss.py` can find the changes that were never synced and revert them.
 *
 * Limits: this does not see calls that bypass libc (raw system calls of some crates) and
 * stores through shared mappings. The log and the views use neither.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* ---- shared with shim.py: keep both in sync ---- */

enum op { OPEN, WRITE, SYNC, RENAME, TRUNCATE, ALLOCATE, MKDIR, UNLINK, MMAP, READ, DIRSYNC, LOCK, OPS };

enum action {
  FAIL = 0,       /* the call does nothing and fails with `error` */
  KILL_BEFORE,    /* the process dies before the call */
  KILL_AFTER,     /* the process dies after the call took effect */
  SHORT,          /* only half of the data is written */
  DELAY,          /* the call takes `error` milliseconds longer */
};

#define RULES 8

struct rule {
  int32_t op;        /* -1: unused, OPS: all but READ, LOCK and MMAP */
  int32_t action;
  int32_t error;
  int32_t unused;
  _Atomic int64_t skip;    /* matching calls to let pass first */
  _Atomic int64_t count;   /* calls to hit; -1: all */
  _Atomic int64_t hits;
  char pattern[88];        /* part of the path, below the root; "" matches all */
};

/* Index in `calls`, behind the ops: opens below `log/`. */
#define LOG_OPENS OPS

struct control {
  _Atomic int64_t calls[16];
  _Atomic int32_t armed;     /* rules are applied */
  _Atomic int32_t journal;   /* changes are journalled */
  _Atomic int32_t fast;      /* syncs succeed without reaching the disk */
  int32_t unused;
  struct rule rules[RULES];
};

/* ---- state ---- */

static char root[PATH_MAX], parent_of_root[PATH_MAX];
static size_t root_length;
static char control_path[PATH_MAX];
static struct control *control;
static int journal = -1;
static uint64_t sequence, graves;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int64_t clock_offset;
static int clock_set;

#define FDS 65536
static unsigned char fds[FDS]; /* 0: unknown, 1: not below the root, 2: below the root */
static __thread int inside;

static void die(const char *what) {
  char text[256];
  int n = snprintf(text, sizeof text, "campaign shim: %s: %s\n", what, strerror(errno));
  if (syscall(SYS_write, 2, text, n) < 0) {}
  _exit(99);
}

__attribute__((constructor)) static void begin(void) {
  const char *given = getenv("CAMPAIGN_CLOCK");
  if (given) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
    clock_offset = atoll(given) - now.tv_sec;
    clock_set = 1;
  }
  const char *folder = getenv("CAMPAIGN_ROOT"), *to = getenv("CAMPAIGN_CONTROL");
  if (!folder || !to) return;
  snprintf(root, sizeof root, "%s", folder);
  root_length = strlen(root);
  /* Syncs of the parent folder are handled too: it holds the name of the data folder. */
  snprintf(parent_of_root, sizeof parent_of_root, "%s", root);
  char *last = strrchr(parent_of_root, '/');
  if (last) *last = 0;
  snprintf(control_path, sizeof control_path, "%s", to);
  char path[PATH_MAX + 32];
  snprintf(path, sizeof path, "%s/rules", to);
  int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
  if (fd < 0) die(path);
  void *at = (void *)syscall(SYS_mmap, 0, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) die("mmap of rules");
  syscall(SYS_close, fd);
  snprintf(path, sizeof path, "%s/journal", to);
  fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) die(path);
  struct stat st;
  syscall(SYS_fstat, fd, &st);
  journal = fd;
  sequence = (uint64_t)st.st_size; /* only needs to increase */
  graves = (uint64_t)getpid() << 24;
  control = at;
}

/* ---- which files are below the root ---- */

static int below_root(const char *path) {
  return root_length && strncmp(path, root, root_length) == 0 &&
         (path[root_length] == '/' || path[root_length] == 0);
}

/* Makes a path absolute: resolves its folder, keeps its last part. True if it is below the root. */
static int resolve(int at, const char *name, char *out) {
  char folder[PATH_MAX], given[PATH_MAX];
  if (!name || !*name) return 0;
  if (name[0] != '/' && at != AT_FDCWD) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, folder, sizeof folder - 1);
    if (n <= 0) return 0;
    folder[n] = 0;
    if (snprintf(given, sizeof given, "%s/%s", folder, name) >= (int)sizeof given) return 0;
  } else if (snprintf(given, sizeof given, "%s", name) >= (int)sizeof given) return 0;
  size_t length = strlen(given);
  while (length > 1 && given[length - 1] == '/') given[--length] = 0;
  char *slash = strrchr(given, '/');
  const char *last = slash ? slash + 1 : given;
  char parent[PATH_MAX];
  if (!slash) snprintf(parent, sizeof parent, ".");
  else if (slash == given) snprintf(parent, sizeof parent, "/");
  else { *slash = 0; snprintf(parent, sizeof parent, "%s", given); }
  char real[PATH_MAX];
  if (!realpath(parent, real)) return 0;
  if (snprintf(out, PATH_MAX, "%s/%s", strcmp(real, "/") ? real : "", last) >= PATH_MAX) return 0;
  return below_root(out);
}

static int path_of(int fd, char *out) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, out, PATH_MAX - 1);
  if (n <= 0) { out[0] = 0; return 0; }
  out[n] = 0;
  return below_root(out);
}

static int ours(int fd) {
  if (!control || inside || fd < 0 || fd >= FDS) return 0;
  if (fds[fd] == 0) {
    char path[PATH_MAX];
    fds[fd] = path_of(fd, path) || !strcmp(path, parent_of_root) ? 2 : 1;
  }
  return fds[fd] == 2;
}

static void know(int fd, int is_ours) {
  if (fd >= 0 && fd < FDS) fds[fd] = is_ours ? 2 : 1;
}

/* ---- rules ---- */

struct verdict { int hit, action, error; };

static struct verdict judge(int op, const char *path) {
  struct verdict v = {0, 0, 0};
  atomic_fetch_add(&control->calls[op], 1);
  if (op == OPEN && below_root(path) && !strncmp(path + root_length, "/log/", 5))
    atomic_fetch_add(&control->calls[LOG_OPENS], 1);
  if (!atomic_load(&control->armed)) return v;
  for (int i = 0; i < RULES; i++) {
    struct rule *r = &control->rules[i];
    if (r->op != op && !(r->op == OPS && op != READ && op != LOCK && op != MMAP)) continue;
    const char *below = below_root(path) ? path + root_length : "";
    if (r->pattern[0] && !strstr(below, r->pattern)) continue;
    if (atomic_fetch_sub(&r->skip, 1) > 0) continue;
    int64_t left = atomic_load(&r->count);
    if (left == 0) continue;
    if (left > 0 && atomic_fetch_sub(&r->count, 1) <= 0) continue;
    atomic_fetch_add(&r->hits, 1);
    v.hit = 1;
    v.action = r->action;
    v.error = r->error;
    if (v.action == KILL_BEFORE) kill(getpid(), SIGKILL);
    if (v.action == DELAY) {
      struct timespec t = {v.error / 1000, (v.error % 1000) * 1000000L};
      syscall(SYS_nanosleep, &t, 0);
      v.hit = 0;
    }
    return v;
  }
  return v;
}

static void after(struct verdict v) {
  if (v.hit && v.action == KILL_AFTER) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
  }
}

#define FAILS(v) ((v).hit && (v).action == FAIL)

/* ---- the journal ---- */

struct head {
  uint32_t magic, kind;
  uint64_t sequence, inode, a, b;
  uint32_t path1, path2;
  uint64_t data;
};

enum kind { K_WRITE = 1, K_LENGTH, K_SYNCED, K_SYNC_FAILED, K_CREATE, K_RENAME, K_UNLINK, K_MKDIR, K_RMDIR, K_DIRSYNCED };

/* The caller holds the mutex. Writes once, so that a kill can cut only the last record. */
static void record(int kind, uint64_t inode, uint64_t a, uint64_t b, const char *p1, const char *p2,
                   const void *data, size_t n) {
  struct head h = {0x4a4e5243, kind, ++sequence, inode, a, b,
                   p1 ? strlen(p1) : 0, p2 ? strlen(p2) : 0, n};
  struct iovec io[4] = {{&h, sizeof h}, {(void *)p1, h.path1}, {(void *)p2, h.path2}, {(void *)data, n}};
  size_t all = sizeof h + h.path1 + h.path2 + n;
  if (syscall(SYS_writev, journal, io, 4) != (ssize_t)all) die("the journal");
}

static int journalling(void) { return control && journal >= 0 && atomic_load(&control->journal); }

static uint64_t inode_of(int fd, uint64_t *length) {
  struct stat st;
  if (syscall(SYS_fstat, fd, &st)) return 0;
  if (length) *length = st.st_size;
  return st.st_ino;
}

/* Records what a write at `offset` overwrites, and the length. The caller holds the mutex. */
static void keep_before(int fd, off_t offset, size_t n) {
  uint64_t length = 0, inode = inode_of(fd, &length);
  if (!inode) return;
  char *old = n ? malloc(n) : 0;
  ssize_t got = 0;
  if (n && (uint64_t)offset < length) {
    /* Opens the file again, because the descriptor may be write-only. */
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int reader = syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
    int from = reader >= 0 ? reader : fd;
    while (got < (ssize_t)n) {
      ssize_t one = syscall(SYS_pread64, from, old + got, n - got, offset + got);
      if (one <= 0) break;
      got += one;
    }
    if (reader >= 0) syscall(SYS_close, reader);
  }
  /* a: offset, b: old length; the old data may be shorter than the write. */
  struct { uint64_t written; } extra = {n};
  char *both = malloc(sizeof extra + got);
  memcpy(both, &extra, sizeof extra);
  if (got > 0) memcpy(both + sizeof extra, old, got);
  record(K_WRITE, inode, offset, length, 0, 0, both, sizeof extra + (got > 0 ? got : 0));
  free(both);
  free(old);
}

/* Keeps a file that will be removed, by a hard link. The caller holds the mutex. */
static uint64_t bury(const char *path) {
  char grave[PATH_MAX + 64];
  uint64_t n = ++graves;
  snprintf(grave, sizeof grave, "%s/graves/%llu", control_path, (unsigned long long)n);
  return syscall(SYS_linkat, AT_FDCWD, path, AT_FDCWD, grave, 0) == 0 ? n : 0;
}

/* ---- the calls ---- */

#define REAL(type, name, ...) \
  static type (*real)(__VA_ARGS__); \
  if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static int open_it(int at, const char *name, int flags, mode_t mode) {
  char path[PATH_MAX];
  if (!control || inside) return syscall(SYS_openat, at, name, flags, mode);
  inside = 1;
  int is_ours = resolve(at, name, path);
  inside = 0;
  if (!is_ours) {
    int fd = syscall(SYS_openat, at, name, flags, mode);
    int e = errno;
    /* A link from outside may lead below the root, so `ours` checks the descriptor later. */
    if (fd >= 0 && fd < FDS) fds[fd] = 0;
    errno = e;
    return fd;
  }
  struct verdict v = judge(OPEN, path);
  if (FAILS(v)) { errno = v.error; return -1; }
  int fd, e;
  if (journalling() && (flags & (O_CREAT | O_TRUNC))) {
    pthread_mutex_lock(&mutex);
    struct stat st;
    int there = syscall(SYS_newfstatat, AT_FDCWD, path, &st, 0) == 0;
    if (there && (flags & O_TRUNC) && st.st_size > 0) {
      int reader = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
      if (reader >= 0) {
        keep_before(reader, 0, st.st_size);
        record(K_LENGTH, st.st_ino, 0, st.st_size, 0, 0, 0, 0);
        syscall(SYS_close, reader);
      }
    }
    if (!there && (flags & O_CREAT)) record(K_CREATE, 0, 0, 0, path, 0, 0, 0);
    fd = syscall(SYS_openat, at, name, flags, mode);
    e = errno;
    pthread_mutex_unlock(&mutex);
  } else {
    fd = syscall(SYS_openat, at, name, flags, mode);
    e = errno;
  }
  know(fd, 1);
  after(v);
  errno = e;
  return fd;
}

#define MODE(flags) \
  mode_t mode = 0; \
  if ((flags) & (O_CREAT | O_TMPFILE)) { va_list l; va_start(l, flags); mode = va_arg(l, mode_t); va_end(l); }

int open(const char *name, int flags, ...) { MODE(flags); return open_it(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE(flags); return open_it(AT_FDCWD, name, flags, mode); }
int openat(int at, const char *name, int flags, ...) { MODE(flags); return open_it(at, name, flags, mode); }
int openat64(int at, const char *name, int flags, ...) { MODE(flags); return open_it(at, name, flags, mode); }

int close(int fd) {
  if (fd >= 0 && fd < FDS) fds[fd] = 0;
  return syscall(SYS_close, fd);
}

/* `at` -1: at the descriptor's position. */
static ssize_t write_it(int fd, const void *data, size_t n, off_t at) {
  char path[PATH_MAX];
  if (!ours(fd)) return at < 0 ? syscall(SYS_write, fd, data, n) : syscall(SYS_pwrite64, fd, data, n, at);
  path_of(fd, path);
  struct verdict v = judge(WRITE, path);
  if (FAILS(v)) { errno = v.error; return -1; }
  if (v.hit && v.action == SHORT && n > 1) n /= 2;
  ssize_t done;
  int e;
  if (journalling()) {
    pthread_mutex_lock(&mutex);
    off_t where = at;
    if (at < 0) {
      int flags = syscall(SYS_fcntl, fd, F_GETFL);
      where = syscall(SYS_lseek, fd, 0, SEEK_CUR);
      if (flags & O_APPEND) { struct stat st; syscall(SYS_fstat, fd, &st); where = st.st_size; }
    }
    if (where >= 0) keep_before(fd, where, n);
    done = at < 0 ? syscall(SYS_write, fd, data, n) : syscall(SYS_pwrite64, fd, data, n, at);
    e = errno;
    pthread_mutex_unlock(&mutex);
  } else {
    done = at < 0 ? syscall(SYS_write, fd, data, n) : syscall(SYS_pwrite64, fd, data, n, at);
    e = errno;
  }
  after(v);
  errno = e;
  return done;
}

ssize_t write(int fd, const void *data, size_t n) { return write_it(fd, data, n, -1); }
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) { return write_it(fd, data, n, at); }
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at) { return write_it(fd, data, n, at); }
ssize_t writev(int fd, const struct iovec *io, int n) {
  if (!ours(fd)) return syscall(SYS_writev, fd, io, n);
  /* Writes only the first piece: a short count is legal. */
  for (int i = 0; i < n; i++)
    if (io[i].iov_len) return write_it(fd, io[i].iov_base, io[i].iov_len, -1);
  return 0;
}

static ssize_t read_it(int fd, void *data, size_t n, off_t at) {
  if (ours(fd)) {
    char path[PATH_MAX];
    path_of(fd, path);
    struct verdict v = judge(READ, path);
    if (FAILS(v)) { errno = v.error; return -1; }
  }
  return at < 0 ? syscall(SYS_read, fd, data, n) : syscall(SYS_pread64, fd, data, n, at);
}
ssize_t read(int fd, void *data, size_t n) { return read_it(fd, data, n, -1); }
ssize_t pread(int fd, void *data, size_t n, off_t at) { return read_it(fd, data, n, at); }
ssize_t pread64(int fd, void *data, size_t n, off64_t at) { return read_it(fd, data, n, at); }

static int sync_it(int fd, long call) {
  char path[PATH_MAX];
  if (!ours(fd)) return syscall(call, fd);
  path_of(fd, path);
  struct stat st = {0};
  syscall(SYS_fstat, fd, &st);
  int folder = S_ISDIR(st.st_mode);
  pthread_mutex_lock(&mutex);
  uint64_t start = sequence;
  pthread_mutex_unlock(&mutex);
  struct verdict v = judge(folder ? DIRSYNC : SYNC, path);
  int result = 0, e = 0;
  if (FAILS(v)) { result = -1; e = v.error; }
  else if (!atomic_load(&control->fast)) { result = syscall(call, fd); e = errno; }
  if (journalling()) {
    pthread_mutex_lock(&mutex);
    if (folder) { if (!result) record(K_DIRSYNCED, st.st_ino, start, 0, path, 0, 0, 0); }
    /* An interrupted sync leaves the pages dirty; a failed one marks them clean. */
    else if (!result || e != EINTR) record(result ? K_SYNC_FAILED : K_SYNCED, st.st_ino, start, 0, path, 0, 0, 0);
    pthread_mutex_unlock(&mutex);
  }
  after(v);
  errno = e;
  return result;
}
int fsync(int fd) { return sync_it(fd, SYS_fsync); }
int fdatasync(int fd) { return sync_it(fd, SYS_fdatasync); }

static int rename_it(int from_at, const char *from, int to_at, const char *to, unsigned flags) {
  char a[PATH_MAX], b[PATH_MAX];
  int is_ours = 0;
  if (control && !inside) { inside = 1; int x = resolve(from_at, from, a), y = resolve(to_at, to, b); is_ours = x && y; inside = 0; }
  if (!is_ours) return syscall(SYS_renameat2, from_at, from, to_at, to, flags);
  struct verdict v = judge(RENAME, b);
  if (FAILS(v)) { errno = v.error; return -1; }
  int result, e;
  pthread_mutex_lock(&mutex);
  if (journalling()) {
    struct stat st;
    uint64_t grave = 0;
    if (syscall(SYS_newfstatat, AT_FDCWD, b, &st, AT_SYMLINK_NOFOLLOW) == 0) grave = bury(b);
    record(K_RENAME, 0, grave, 0, a, b, 0, 0);
  }
  result = syscall(SYS_renameat2, from_at, from, to_at, to, flags);
  e = errno;
  pthread_mutex_unlock(&mutex);
  after(v);
  errno = e;
  return result;
}
int rename(const char *from, const char *to) { return rename_it(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int a, const char *from, int b, const char *to) { return rename_it(a, from, b, to, 0); }
int renameat2(int a, const char *from, int b, const char *to, unsigned f) { return rename_it(a, from, b, to, f); }

static int truncate_it(int fd, off_t length) {
  char path[PATH_MAX];
  if (!ours(fd)) return syscall(SYS_ftruncate, fd, length);
  path_of(fd, path);
  struct verdict v = judge(TRUNCATE, path);
  if (FAILS(v)) { errno = v.error; return -1; }
  int result, e;
  pthread_mutex_lock(&mutex);
  if (journalling()) {
    uint64_t before = 0, inode = inode_of(fd, &before);
    if ((uint64_t)length < before) keep_before(fd, length, before - length);
    record(K_LENGTH, inode, length, before, 0, 0, 0, 0);
  }
  result = syscall(SYS_ftruncate, fd, length);
  e = errno;
  pthread_mutex_unlock(&mutex);
  after(v);
  errno = e;
  return result;
}
int ftruncate(int fd, off_t length) { return truncate_it(fd, length); }
int ftruncate64(int fd, off64_t length) { return truncate_it(fd, length); }

static int allocate_it(int fd, int mode, off_t at, off_t n) {
  char path[PATH_MAX];
  if (!ours(fd)) return syscall(SYS_fallocate, fd, mode, at, n);
  path_of(fd, path);
  struct verdict v = judge(ALLOCATE, path);
  if (FAILS(v)) { errno = v.error; return -1; }
  pthread_mutex_lock(&mutex);
  if (journalling() && !(mode & FALLOC_FL_KEEP_SIZE)) {
    uint64_t before = 0, inode = inode_of(fd, &before);
    if ((uint64_t)(at + n) > before) record(K_LENGTH, inode, at + n, before, 0, 0, 0, 0);
  }
  int result = syscall(SYS_fallocate, fd, mode, at, n), e = errno;
  pthread_mutex_unlock(&mutex);
  after(v);
  errno = e;
  return result;
}
int fallocate(int fd, int mode, off_t at, off_t n) { return allocate_it(fd, mode, at, n); }
int fallocate64(int fd, int mode, off64_t at, off64_t n) { return allocate_it(fd, mode, at, n); }
int posix_fallocate(int fd, off_t at, off_t n) { return allocate_it(fd, 0, at, n) ? errno : 0; }
int posix_fallocate64(int fd, off64_t at, off64_t n) { return allocate_it(fd, 0, at, n) ? errno : 0; }

static int folder_it(int at, const char *name, int op, int kind, mode_t mode) {
  char path[PATH_MAX];
  int is_ours = 0;
  if (control && !inside) { inside = 1; is_ours = resolve(at, name, path); inside = 0; }
  if (!is_ours) return kind == K_MKDIR ? syscall(SYS_mkdirat, at, name, mode)
                                       : syscall(SYS_unlinkat, at, name, kind == K_RMDIR ? AT_REMOVEDIR : 0);
  struct verdict v = judge(op, path);
  if (FAILS(v)) { errno = v.error; return -1; }
  pthread_mutex_lock(&mutex);
  if (journalling()) {
    struct stat st;
    int there = syscall(SYS_newfstatat, AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (kind == K_MKDIR ? !there : there)
      record(kind, 0, kind == K_UNLINK ? bury(path) : 0, 0, path, 0, 0, 0);
  }
  int result = kind == K_MKDIR ? syscall(SYS_mkdirat, at, name, mode)
                               : syscall(SYS_unlinkat, at, name, kind == K_RMDIR ? AT_REMOVEDIR : 0);
  int e = errno;
  pthread_mutex_unlock(&mutex);
  after(v);
  errno = e;
  return result;
}
int mkdir(const char *name, mode_t mode) { return folder_it(AT_FDCWD, name, MKDIR, K_MKDIR, mode); }
int mkdirat(int at, const char *name, mode_t mode) { return folder_it(at, name, MKDIR, K_MKDIR, mode); }
int unlink(const char *name) { return folder_it(AT_FDCWD, name, UNLINK, K_UNLINK, 0); }
int rmdir(const char *name) { return folder_it(AT_FDCWD, name, UNLINK, K_RMDIR, 0); }
int unlinkat(int at, const char *name, int flags) {
  return folder_it(at, name, UNLINK, flags & AT_REMOVEDIR ? K_RMDIR : K_UNLINK, 0);
}

static void *map_it(void *to, size_t n, int protection, int flags, int fd, off_t at) {
  if (!(flags & MAP_ANONYMOUS) && ours(fd)) {
    char path[PATH_MAX];
    path_of(fd, path);
    struct verdict v = judge(MMAP, path);
    if (FAILS(v)) { errno = v.error; return MAP_FAILED; }
  }
  return (void *)syscall(SYS_mmap, to, n, protection, flags, fd, at);
}
void *mmap(void *to, size_t n, int p, int f, int fd, off_t at) { return map_it(to, n, p, f, fd, at); }
void *mmap64(void *to, size_t n, int p, int f, int fd, off64_t at) { return map_it(to, n, p, f, fd, at); }

int flock(int fd, int what) {
  if (ours(fd)) {
    char path[PATH_MAX];
    path_of(fd, path);
    struct verdict v = judge(LOCK, path);
    if (FAILS(v)) { errno = v.error; return -1; }
  }
  return syscall(SYS_flock, fd, what);
}

int clock_gettime(clockid_t which, struct timespec *to) {
  REAL(int, "clock_gettime", clockid_t, struct timespec *);
  int result = real(which, to);
  if (!result && clock_set && which == CLOCK_REALTIME) to->tv_sec += clock_offset;
  return result;
}
