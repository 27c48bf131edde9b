/* Opens a file that is no checkpoint: proves that libqk_io.a and its JSON parser are linked. */
#include <qk_io.h>
#include <stdio.h>

int main(void) {
    static const char bytes[] = "\x02\0\0\0\0\0\0\0{}";
    qk_checkpoint *checkpoint = NULL;
    qk_io_message message;
    qk_status status = qk_checkpoint_open_memory(bytes, 10, NULL, 0, NULL, &checkpoint, &message);
    printf("an empty file: %s, %d tensors\n", qk_status_string(status),
           (int)qk_checkpoint_tensor_count(checkpoint));
    qk_checkpoint_destroy(checkpoint);
    return status == QK_OK ? 0 : 1;
}
