/* Reads files, ranges of files and parts of a cache. Failures are left to Python, which tries again and reports why. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "batch.h"

int64_t pn_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

pn_result pn_read_at(int fd, int64_t offset, size_t size, uint8_t *out) {
  if (offset < 0) return PN_UNREADABLE;
  size_t done = 0;
  while (done < size) {
    ssize_t got = pread(fd, out + done, size - done, offset + (int64_t)done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return PN_UNREADABLE;
    done += (size_t)got;
  }
  return PN_OK;
}

/* Join root, folder and name to a path that ends in 0. Returns 0 if it is too long or contains another 0. */
static int join_path(const pn_task *task, const pn_row *row, char *path) {
  if (task->root_bytes < 0 || row->folder_bytes < 0 || row->name_bytes <= 0) return 0;
  if ((int64_t)task->root_bytes + row->folder_bytes + row->name_bytes + 2 > PATH_MAX) return 0;
  char *end = path;
  memcpy(end, task->root, (size_t)task->root_bytes);
  end += task->root_bytes;
  if (row->folder_bytes > 0) {
    memcpy(end, task->folders + row->folder, (size_t)row->folder_bytes);
    end += row->folder_bytes;
    *end++ = '/';
  }
  memcpy(end, task->names + row->name, (size_t)row->name_bytes);
  end += row->name_bytes;
  *end = 0;
  return memchr(path, 0, (size_t)(end - path)) == NULL;
}

static int is_as_scanned(int fd, const pn_row *row) {
  struct stat status;
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size != row->file_size) return 0;
  /* A file system can store times that do not fit in 64 bits; unsigned numbers wrap. */
  return (uint64_t)status.st_mtim.tv_sec * 1000000000 + (uint64_t)status.st_mtim.tv_nsec == (uint64_t)row->mtime_ns;
}

pn_result pn_read_file(const pn_task *task, const pn_row *row, uint8_t *out) {
  char path[PATH_MAX];
  if (!join_path(task, row, path)) return PN_UNREADABLE;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return PN_UNREADABLE;
  int is_unchanged =
      is_as_scanned(fd, row) && pn_read_at(fd, row->offset, (size_t)row->size, out) == PN_OK && is_as_scanned(fd, row);
  close(fd);
  return is_unchanged ? PN_OK : PN_UNREADABLE;
}
