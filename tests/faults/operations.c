/* File operations that fail, for LD_PRELOAD: those whose path, or whose open file's, lies under one folder are counted,
   and at a chosen one an error is returned instead, or the process is killed: before it, or after it (a write: after its
   first half). Nothing is counted before `watch` is called. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NOTHING, FAIL, KILL_BEFORE, KILL_AFTER };

static char folder[PATH_MAX];
static size_t length;
static long at, passed;
static int kind, number, sticky, log_to = -1;

/* Count from now on; the at-th operation (from 0) has the fault. `log` is an open file that gets a line for each. */
void watch(const char *under, long nth, int what, int error, int forever, int log) {
    length = strlen(under);
    memcpy(folder, under, length + 1);
    at = nth, passed = 0, kind = what, number = error, sticky = forever, log_to = log;
}

/* Return the whole path where it lies under the folder, or NULL. */
static const char *within(int directory, const char *path) {
    static __thread char whole[PATH_MAX * 2];
    if (!length || !path) return NULL;
    if (path[0] != '/') {
        char link[64];
        snprintf(link, sizeof link, directory == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", directory);
        ssize_t size = readlink(link, whole, PATH_MAX);
        if (size < 0) return NULL;
        snprintf(whole + size, sizeof whole - size, path[0] ? "/%s" : "%s", path);
        path = whole;
    }
    return !strncmp(path, folder, length) && (path[length] == '/' || !path[length]) ? path : NULL;
}

static int meet(const char *name, int directory, const char *path) {
    int before = errno;
    path = within(directory, path);
    errno = before;
    if (!path) return NOTHING;
    long nth = __sync_fetch_and_add(&passed, 1);
    if (log_to >= 0) dprintf(log_to, "%s\t%s\n", name, path + length);
    if (nth != at && !(sticky && nth > at && at >= 0)) return NOTHING;
    if (kind == KILL_BEFORE) raise(SIGKILL);
    if (kind == FAIL) errno = number;
    return kind;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define AFTER(type, call) type done = (call); if (fault == KILL_AFTER) raise(SIGKILL); return done
#define OPERATION(type, failed, name, parameters, directory, path, arguments) \
    type name parameters { \
        REAL(name); \
        int fault = meet(#name, directory, path); \
        if (fault == FAIL) return failed; \
        AFTER(type, real arguments); \
    }
#define OPENING(name, directory, parameters, ...) \
    int name parameters { \
        REAL(name); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        int fault = meet(flags & O_CREAT ? "create" : "open", directory, path); \
        if (fault == FAIL) return -1; \
        AFTER(int, real(__VA_ARGS__, flags, mode)); \
    }
#define WRITING(name, parameters, half, all) \
    ssize_t name parameters { \
        REAL(name); \
        int fault = meet(#name, file, ""); \
        if (fault == FAIL) return -1; \
        if (fault == KILL_AFTER) { half; raise(SIGKILL); } \
        return all; \
    }
#define OF_PATH(name, parameters, arguments) OPERATION(int, -1, name, parameters, AT_FDCWD, path, arguments)
#define OF_FILE(type, name, parameters, arguments) OPERATION(type, -1, name, parameters, file, "", arguments)

OPENING(open, AT_FDCWD, (const char *path, int flags, ...), path)
OPENING(open64, AT_FDCWD, (const char *path, int flags, ...), path)
OPENING(openat, directory, (int directory, const char *path, int flags, ...), directory, path)
OPENING(openat64, directory, (int directory, const char *path, int flags, ...), directory, path)
OPERATION(FILE *, NULL, fopen, (const char *path, const char *mode), AT_FDCWD, path, (path, mode))
OPERATION(FILE *, NULL, fopen64, (const char *path, const char *mode), AT_FDCWD, path, (path, mode))
OPERATION(DIR *, NULL, opendir, (const char *path), AT_FDCWD, path, (path))
OPERATION(DIR *, NULL, fdopendir, (int file), file, "", (file))
WRITING(write, (int file, const void *data, size_t size), real(file, data, size / 2), real(file, data, size))
WRITING(pwrite, (int file, const void *data, size_t size, off_t place), real(file, data, size / 2, place),
        real(file, data, size, place))
WRITING(pwrite64, (int file, const void *data, size_t size, off64_t place), real(file, data, size / 2, place),
        real(file, data, size, place))
WRITING(writev, (int file, const struct iovec *parts, int count), real(file, parts, count / 2), real(file, parts, count))
OF_FILE(ssize_t, read, (int file, void *data, size_t size), (file, data, size))
OF_FILE(ssize_t, pread, (int file, void *data, size_t size, off_t place), (file, data, size, place))
OF_FILE(ssize_t, pread64, (int file, void *data, size_t size, off64_t place), (file, data, size, place))
OF_FILE(ssize_t, sendfile, (int file, int from, off_t *place, size_t size), (file, from, place, size))
OF_FILE(ssize_t, sendfile64, (int file, int from, off64_t *place, size_t size), (file, from, place, size))
OF_FILE(int, fsync, (int file), (file))
OF_FILE(int, fdatasync, (int file), (file))
OF_FILE(int, ftruncate, (int file, off_t size), (file, size))
OF_FILE(int, ftruncate64, (int file, off64_t size), (file, size))
OF_FILE(int, fchmod, (int file, mode_t mode), (file, mode))
OF_FILE(int, futimens, (int file, const struct timespec times[2]), (file, times))
OF_FILE(int, flock, (int file, int how), (file, how))
OF_PATH(truncate, (const char *path, off_t size), (path, size))
OF_PATH(truncate64, (const char *path, off64_t size), (path, size))
OF_PATH(rename, (const char *from, const char *path), (from, path))
OF_PATH(link, (const char *from, const char *path), (from, path))
OF_PATH(symlink, (const char *from, const char *path), (from, path))
OF_PATH(unlink, (const char *path), (path))
OF_PATH(mkdir, (const char *path, mode_t mode), (path, mode))
OF_PATH(rmdir, (const char *path), (path))
OF_PATH(chmod, (const char *path, mode_t mode), (path, mode))
OPERATION(int, -1, renameat, (int first, const char *from, int second, const char *path), second, path,
          (first, from, second, path))
OPERATION(int, -1, linkat, (int first, const char *from, int second, const char *path, int flags), second, path,
          (first, from, second, path, flags))
OPERATION(int, -1, unlinkat, (int directory, const char *path, int flags), directory, path, (directory, path, flags))
OPERATION(int, -1, mkdirat, (int directory, const char *path, mode_t mode), directory, path, (directory, path, mode))
OPERATION(int, -1, fchmodat, (int directory, const char *path, mode_t mode, int flags), directory, path,
          (directory, path, mode, flags))
OPERATION(int, -1, utimensat, (int directory, const char *path, const struct timespec times[2], int flags), directory,
          path, (directory, path, times, flags))
