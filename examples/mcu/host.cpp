// The same run on the host.
#include <stdio.h>

#include "digest.hpp"

static uint32_t no_clock() { return 0; }

int main(int argc, char **argv) {
    alignas(8) static unsigned char image[1 << 20];
    FILE *file = argc == 2 ? fopen(argv[1], "rb") : nullptr;
    if (file == nullptr) return 2;
    const size_t bytes = fread(image, 1, sizeof(image), file);
    fclose(file);
    uint64_t digest;
    uint32_t elapsed;
    if (!mcu::run(image, bytes, no_clock, &digest, &elapsed)) return 1;
    printf("digest %llx\n", (unsigned long long)digest);
    return 0;
}
