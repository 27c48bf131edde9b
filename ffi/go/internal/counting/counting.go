// Package counting is an allocator of C's that counts, for the tests: what Close gives back.
package counting

/*
#cgo pkg-config: --static qk
#include <stdint.h>
#include <stdlib.h>
#include <qk.h>

static int64_t blocks;

static void *allocate(void *user, size_t bytes, size_t alignment) {
    (void)user;
    void *block = NULL;
    if (alignment < sizeof(void *)) alignment = sizeof(void *);
    if (posix_memalign(&block, alignment, bytes > 0 ? bytes : 1) != 0) return NULL;
    __atomic_add_fetch(&blocks, 1, __ATOMIC_RELAXED);
    return block;
}

static void release(void *user, void *block) {
    (void)user;
    if (block != NULL) __atomic_sub_fetch(&blocks, 1, __ATOMIC_RELAXED);
    free(block);
}

static int64_t live(void) { return __atomic_load_n(&blocks, __ATOMIC_RELAXED); }

static const qk_allocator counting = {allocate, release, NULL};
static const void *allocator(void) { return &counting; }
*/
import "C"

import "unsafe"

// Allocator is the address of a qk_allocator.
func Allocator() unsafe.Pointer { return unsafe.Pointer(C.allocator()) }

// Live is how many blocks have been allocated and not released.
func Live() int { return int(C.live()) }
