#include <qk.h>
#include <stdio.h>

int main(void) {
    qk_context *context = NULL;
    const qk_status status = qk_context_create(NULL, &context);
    printf("%s: %s\n", qk_build_info(), qk_status_string(status));
    qk_context_destroy(context);
    return status == QK_OK ? 0 : 1;
}
