/* Copies a buffer from one engine to another of the same process, and compares.
 *
 *   cc -Iinclude examples/copy.c -L"$LIBRARY_FOLDER" -ltransfer_engine -o copy
 *   LD_LIBRARY_PATH="$LIBRARY_FOLDER" ./copy
 */
#define _POSIX_C_SOURCE 199309L
#include "transfer_engine_c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BYTES ((size_t)1 << 20)
#define TASKS 4

static void check(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "copy: %s\n", what);
        exit(1);
    }
}

/* Polls each task until all are complete. */
static void wait_for(transfer_engine_t engine, batch_id_t batch) {
    const struct timespec pause = {0, 100000};
    for (size_t task = 0; task < TASKS;) {
        transfer_status_t status = {STATUS_INVALID, 0};
        check(getTransferStatus(engine, batch, task, &status) == 0, "getTransferStatus");
        check(status.status != STATUS_FAILED, "a task failed");
        if (status.status == STATUS_COMPLETED) {
            check(status.transferred_bytes == BYTES / TASKS, "a task moved too little");
            task++;
        } else {
            nanosleep(&pause, NULL);
        }
    }
}

int main(void) {
    char address[64];
    unsigned char *source = malloc(BYTES), *target = calloc(BYTES, 1);
    check(source != NULL && target != NULL, "no memory");
    for (size_t place = 0; place < BYTES; place++) {
        source[place] = (unsigned char)(place * 7 + place / 251);
    }

    transfer_engine_t here = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
    transfer_engine_t there = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
    check(here != NULL && there != NULL, "createTransferEngine");
    check(registerLocalMemory(here, source, BYTES, "*", 0) == 0, "registerLocalMemory");
    check(registerLocalMemory(there, target, BYTES, "cpu:0", 1) == 0, "registerLocalMemory");

    /* Another process would send its address, and that of its memory, by any means. */
    check(getLocalIpAndPort(there, address, sizeof address) == 0, "getLocalIpAndPort");
    segment_id_t segment = openSegment(here, address);
    check(segment > LOCAL_SEGMENT, "openSegment");

    transfer_request_t requests[TASKS];
    for (size_t task = 0; task < TASKS; task++) {
        requests[task].opcode = OPCODE_WRITE;
        requests[task].source = source + task * (BYTES / TASKS);
        requests[task].target_id = segment;
        requests[task].target_offset = (uint64_t)(uintptr_t)(target + task * (BYTES / TASKS));
        requests[task].length = BYTES / TASKS;
    }
    batch_id_t batch = allocateBatchID(here, TASKS);
    check(batch != INVALID_BATCH, "allocateBatchID");
    notify_msg_t done = {(char *)"copy", (char *)"done"};
    check(submitTransferWithNotify(here, batch, requests, TASKS, done) == 0, "submit");
    wait_for(here, batch);
    check(freeBatchID(here, batch) == 0, "freeBatchID");
    check(memcmp(source, target, BYTES) == 0, "the copy differs");

    int count = 0;
    notify_msg_t *messages = getNotifsFromEngine(there, &count);
    check(count == 1 && strcmp(messages[0].msg, "done") == 0, "no notification");
    check(freeNotifsMsgBuf(messages, count) == 0, "freeNotifsMsgBuf");

    check(unregisterLocalMemory(here, source) == 0, "unregisterLocalMemory");
    check(unregisterLocalMemory(there, target) == 0, "unregisterLocalMemory");
    destroyTransferEngine(here);
    destroyTransferEngine(there);
    free(source);
    free(target);
    printf("copied %zu bytes to %s\n", BYTES, address);
    return 0;
}
